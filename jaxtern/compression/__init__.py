"""Averages pytrees of local gradients over few bits."""
