"""One step: local gradients, their mean, one update."""
