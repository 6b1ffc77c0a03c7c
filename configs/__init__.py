"""The installed recipes: each module's `get_config` returns an ml_collections.ConfigDict of `Recipe` fields."""
