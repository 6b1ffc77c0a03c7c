"""Predicts the time of a training step on a cluster: a model, its measurements, and forecasts."""
