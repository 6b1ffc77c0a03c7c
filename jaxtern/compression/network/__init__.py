"""The links between workers: their cost model, and how they are measured."""
