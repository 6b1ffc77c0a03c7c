"""Preprocessing of images: geometry happens as they are decoded, colour in the compiled step."""
