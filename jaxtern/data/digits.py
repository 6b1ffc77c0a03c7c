"""scikit-learn's handwritten digits, from the UCI repository: 1,797 images of 8x8 pixels in 17 grey levels."""

from typing import Any

import numpy as np

from jaxtern.data.dataset import Dataset, Split


def load_digits() -> Dataset:
    """Loads 1,437 training and 360 test images, always split alike; each digit has the same share in both."""
    from sklearn.datasets import load_digits as load  # here because importing scikit-learn takes a second
    from sklearn.model_selection import train_test_split

    digits: Any = load()
    images = np.round(digits.images[..., None] * (255 / 16)).astype(np.uint8)
    labels = digits.target.astype(np.int32)
    parts: Any = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = parts
    return Dataset(Split(train_images, train_labels), Split(test_images, test_labels), num_classes=10)
