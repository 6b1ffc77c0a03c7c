"""Converts any source of labelled images to one format on disk, which training reads in any order."""
