"""Local steps: each worker trains by itself, and only every H-th step is exchanged."""
