"""The links between workers: what they take, and how they are measured."""
