"""The speed of the kernels, their noise, and what they become on a GPU."""
