"""What of a run lies on disk."""
