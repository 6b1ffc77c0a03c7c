"""Recipes: the fields that decide a run, and their rules."""
