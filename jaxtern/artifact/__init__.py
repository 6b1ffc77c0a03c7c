"""Exported networks: a folder that predicts without the code that trained it."""
