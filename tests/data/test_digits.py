"""The digits of scikit-learn as a dataset, and datasets by name."""

import numpy as np
import pytest

from jaxtern.data.dataset import Dataset
from jaxtern.data.digits import load_digits
from jaxtern.data.sources import load_dataset


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def test_digits_have_the_shapes_and_dtypes_of_a_split(digits: Dataset):
    for split, size in ((digits.train, 1437), (digits.test, 360)):
        assert split.images.shape == (size, 8, 8, 1)
        assert split.images.dtype == np.uint8
        assert split.labels.shape == (size,)
        assert split.labels.dtype == np.int32
        assert (split.images.min(), split.images.max()) == (0, 255)
    assert digits.train.image_shape == (8, 8, 1)
    assert digits.num_classes == 10


def test_digits_are_split_the_same_way_every_time(digits: Dataset):
    again = load_digits()
    for split, other in zip(digits[:2], again[:2], strict=True):
        np.testing.assert_array_equal(split.images, other.images)
        np.testing.assert_array_equal(split.labels, other.labels)


def test_digits_are_every_image_of_scikit_learn_once(digits: Dataset):
    from sklearn.datasets import load_digits as load

    original = load()
    levels = np.concatenate([split.images for split in digits[:2]])[..., 0].astype(np.float64) * 16 / 255
    labels = np.concatenate([split.labels for split in digits[:2]])
    ours = sorted((int(label), *row) for label, row in zip(labels, np.round(levels).reshape(-1, 64), strict=True))
    theirs = sorted((int(label), *row) for label, row in zip(original.target, original.data, strict=True))
    assert ours == theirs


def test_digits_of_every_class_have_the_same_share_in_both_splits(digits: Dataset):
    train, test = (np.bincount(split.labels, minlength=10) for split in digits[:2])
    assert test.min() > 0
    np.testing.assert_allclose(test / (train + test), 0.2, atol=0.005)


@pytest.mark.parametrize(
    ("name", "data_dir", "words"),
    [
        ("cifar99", None, "dataset='cifar99': is no folder, and TFDS knows none of that name"),
        ("digits", "/data", "data_dir='/data'"),
    ],
)
def test_dataset_that_cannot_be_loaded_is_named(name: str, data_dir: str | None, words: str):
    with pytest.raises(ValueError, match="data") as caught:
        load_dataset(name, data_dir)
    assert words in str(caught.value)
