"""Rounds a normal variable, as rotated elements are, to levels: without bias, with the least noise."""

import functools
from typing import NamedTuple

import numpy as np
import scipy  # imports its parts when they are used

ROUNDINGS = ("stochastic", "dither", "nearest")
MIN_SCALE = 1.5  # deviations; below sqrt(pi / 2) = 1.253, no stretch makes up for clipping
MAGNITUDE = np.sqrt(2 / np.pi)  # E|x| of a normal variable
SHAPES = np.linspace(0.05, 1, 77)  # (E|x|)^2 / E[x^2] of a table's rows; 2 / pi of a normal variable

_X = np.linspace(-8, 8, 4001)
_MANY = 16  # workers
_FINE = 64  # levels; above, the nearest one is as good as x itself
_DENSITY = np.exp(-_X * _X / 2) / np.exp(-_X * _X / 2).sum()


class Code(NamedTuple):
    """Rounding of x from N(0, 1) to y = s/L q(L a x / s), where q rounds to a level of -L to L.

    a stretches x so that E[x y] = E[x^2], which makes up for clipping and for rounding to the nearest.
    """

    levels: int  # L
    rounding: str  # a name of ROUNDINGS
    scale: float  # s, the largest value, in deviations

    @property
    def noise(self) -> float:
        """E[(y - x)^2], in units of E[x^2]."""
        unit = self.scale / self.levels
        if self.rounding == "nearest":
            level = np.arange(1, self.levels + 1)
            return float(4 * ((level - 0.5) @ _below((0.5 - level) * unit / self._stretch)) * unit * unit - 1)
        scaled = self._scaled()
        part = scaled - np.floor(scaled)
        variance = part * (1 - part) if self.rounding == "stochastic" else 1 / 12
        return float(_DENSITY @ (scaled * scaled + variance) * unit * unit - 1)

    def digits(self, drawn: np.ndarray) -> np.ndarray:
        """int[draws, x], the digits of x from -8 to 8, for each draw of u in [0, 1)."""
        return np.floor(self._scaled() + self.levels + drawn[:, None]).astype(int)

    @property
    def _stretch(self) -> float:
        return float(stretches(self.levels, self.rounding, np.array(MAGNITUDE**2), np.array(self.scale * MAGNITUDE)))

    def _scaled(self) -> np.ndarray:
        return np.clip(_X * self._stretch / self.scale, -1, 1) * self.levels


@functools.cache
def entropy(code: Code, num_workers: int = 1) -> float:
    """Bits an element that a perfect coder needs for the sum of independent workers' digits, averaged over dithers.

    Sums of many workers or levels are taken as normal variables.
    """
    drawn = np.array([0.5]) if code.rounding == "nearest" else (np.arange(64) + 0.5) / 64
    shares = np.stack([np.bincount(row, _DENSITY, 2 * code.levels + 1) for row in code.digits(drawn)])
    if code.rounding == "stochastic":
        shares = shares.mean(axis=0, keepdims=True)
    if num_workers > max(1, min(_MANY, 512 // code.levels)):
        level = np.arange(shares.shape[1])
        variance = np.mean(shares @ level**2 - (shares @ level) ** 2)
        return float(np.log2(2 * np.pi * np.e * num_workers * variance) / 2)
    sums = shares
    for worker in range(1, num_workers):
        other = np.roll(shares, -round(worker * len(shares) / num_workers), axis=0)
        sums = np.stack([np.convolve(*pair) for pair in zip(sums, other, strict=True)])
    return float(-np.sum(sums * np.log2(np.maximum(sums, 1e-30))) / len(sums))


@functools.cache
def best_code(levels: int, rounding: str) -> Code:
    """Of the codes with at most 1.05 times the least noise, the one with the largest scale, which clips least."""
    codes = [Code(levels, rounding, scale / 20) for scale in range(round(20 * MIN_SCALE), 120)]
    noises = [max(code.noise, 1e-6) for code in codes]
    return [code for code, noise in zip(codes, noises, strict=True) if noise <= 1.05 * min(noises)][-1]


def stretches(levels: int, rounding: str, shape: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """a of `Code`, by bisection, for variables of these shapes and scales s E|x| / E[x^2], which broadcast.

    Variables with a shape above 2 / pi are modelled as sign plus normal, like sums that few elements dominate. Below,
    they are normal in a part of the block and zero in the rest.
    """
    shares = np.linspace(0, 0.999, 1000)  # of the energy in the sign
    magnitudes = _beyond(np.zeros(shares.shape), np.sqrt(shares), np.sqrt(1 - shares))
    centre = np.interp(shape, magnitudes**2, np.sqrt(shares))
    present = np.minimum(shape / MAGNITUDE**2, 1.0)
    deviation = np.sqrt((1 - centre**2) / present)
    largest = scale / np.sqrt(shape)
    low, high = np.full(np.shape(largest), 0.5), np.full(np.shape(largest), 8.0)
    for _ in range(30):
        middle = (low + high) / 2
        is_low = present * _inner(levels, rounding, middle, largest, centre, deviation) < 1
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return low


def _inner(
    levels: int, rounding: str, stretch: np.ndarray, largest: np.ndarray, centre: np.ndarray, deviation: np.ndarray
) -> np.ndarray:
    """E[x y], where x is `centre` plus a normal variable."""
    if rounding == "nearest" and levels <= _FINE:
        thresholds = ((k + 0.5) * largest / (levels * stretch) for k in range(levels))
        return largest / levels * sum(_beyond(each, centre, deviation) for each in thresholds)
    clipped = largest / stretch  # E[y | x] is a x up to there
    low, high = ((sign * clipped - centre) / deviation for sign in (-1, 1))
    inside = _below(high) - _below(low)
    edges = deviation * ((centre - clipped) * _normal(low) - (centre + clipped) * _normal(high))
    return stretch * ((centre**2 + deviation**2) * inside + edges) + largest * _beyond(clipped, centre, deviation)


def _beyond(threshold: np.ndarray, centre: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """E[|x|; |x| > threshold], where x is `centre` plus a normal variable."""
    above, below = ((centre - sign * threshold) / deviation for sign in (1, -1))
    return centre * (_below(above) - _below(-below)) + deviation * (_normal(above) + _normal(below))


def _below(x: np.ndarray) -> np.ndarray:
    return scipy.special.ndtr(x)


def _normal(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def scales_of(code: Code) -> np.ndarray:
    """s E|x| / E[x^2] of a table's columns: from the code's own scale, to four times it."""
    return code.scale * MAGNITUDE * np.linspace(1, 4, 256)


@functools.cache
def stretch_table(code: Code) -> np.ndarray:
    """float32[SHAPES, scales_of] of a code."""
    return stretches(code.levels, code.rounding, SHAPES[:, None], scales_of(code)[None]).astype(np.float32)
