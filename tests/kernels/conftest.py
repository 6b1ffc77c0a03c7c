"""Strict dtypes for every test here, and words in NumPy."""

from collections.abc import Callable

import numpy as np
import pytest

from jaxtern.kernels import digits_per_word

RUN = 128


@pytest.fixture(autouse=True, scope="module")
def _strict(strict_promotion: None) -> None:
    del strict_promotion


def _weights(radix: int) -> np.ndarray:
    return np.array([radix**k for k in range(digits_per_word(radix))], np.int64)[:, None]


@pytest.fixture(scope="session")
def numpy_pack() -> Callable[..., np.ndarray]:
    """`pack` written a second time: int[..., n] digits to uint32[..., W] words."""

    def pack(digits: np.ndarray, radix: int, fill: int = 0) -> np.ndarray:
        tile = RUN * digits_per_word(radix)
        missing = [(0, 0)] * (digits.ndim - 1) + [(0, -digits.shape[-1] % tile)]
        tiles = np.pad(digits.astype(np.int64), missing, constant_values=fill)
        tiles = tiles.reshape(*digits.shape[:-1], -1, digits_per_word(radix), RUN)
        return (tiles * _weights(radix)).sum(axis=-2).reshape(*digits.shape[:-1], -1).astype(np.uint32)

    return pack


@pytest.fixture(scope="session")
def numpy_unpack() -> Callable[..., np.ndarray]:
    """`unpack` written a second time: uint32[W] words to int64[n] digits."""

    def unpack(words: np.ndarray, radix: int, size: int) -> np.ndarray:
        return ((words.astype(np.int64).reshape(-1, 1, RUN) // _weights(radix)) % radix).reshape(-1)[:size]

    return unpack
