"""Sources of images, and the order in which a run sees them."""
