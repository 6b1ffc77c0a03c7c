"""What a step will take on a cluster, before anything runs there."""
