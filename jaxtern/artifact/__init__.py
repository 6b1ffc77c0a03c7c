"""Exported networks: folders that predict without the code that trained them."""
