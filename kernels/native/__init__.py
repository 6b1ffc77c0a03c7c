"""The ops as C functions for CPUs."""
