"""A run's files on disk: checkpoints, recipe, and facts about its dataset and network."""
