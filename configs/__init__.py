"""Recipes: every module has a `get_config` that returns an ml_collections.ConfigDict of `Recipe` fields."""
