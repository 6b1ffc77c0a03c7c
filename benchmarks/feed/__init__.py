"""What a batch costs before the first layer."""
