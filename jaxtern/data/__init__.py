"""Datasets of images and text: how they are opened, ordered, decoded, augmented and batched."""
