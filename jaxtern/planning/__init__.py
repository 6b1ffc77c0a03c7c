"""What a step will take, before anything runs: the model, its measurements, and forecasts of clusters."""
