"""A run from its inputs to its last step, and who reads it afterwards."""
