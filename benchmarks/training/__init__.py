"""The time of whole training steps."""
