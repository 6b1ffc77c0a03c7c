"""Runs that are disturbed on purpose, and held to the undisturbed one."""
