"""State, step, loop, schedules, optimisers, checkpoints, metrics."""
