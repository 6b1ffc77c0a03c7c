"""Processes that train together: how they find, watch and agree with each other."""
