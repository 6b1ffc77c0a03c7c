"""Histograms of the elements of tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

_BINS = 64


class Histograms(NamedTuple):
    """Histograms of T tensors."""

    counts: jax.Array  # int32[T, bins], elements in bins of equal width from `least` to `greatest`
    least: jax.Array  # float32[T]
    greatest: jax.Array  # float32[T]
    zeros: jax.Array  # float32[T], share of the elements that are 0


def count_where(is_due: jax.Array, tensors: Sequence[jax.Array]) -> Histograms:
    """Computes the histograms in a step that needs them; zeros in other steps, at no cost."""
    likes = jax.eval_shape(_count_all, tensors)
    nothing = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), likes)
    return jax.lax.cond(is_due, _count_all, lambda _: nothing, tensors)


def _count_all(tensors: Sequence[jax.Array]) -> Histograms:
    return jax.tree.map(lambda *each: jnp.stack(each), *map(_count, tensors))


def _count(tensor: jax.Array) -> Histograms:
    elements = tensor.astype(jnp.float32).reshape(-1)
    least, greatest = jnp.min(elements), jnp.max(elements)
    places = (elements - least) / jnp.where(greatest > least, greatest - least, 1.0) * _BINS
    counts = jnp.bincount(jnp.minimum(places.astype(jnp.int32), _BINS - 1), length=_BINS)
    return Histograms(counts, least, greatest, jnp.mean((elements == 0).astype(jnp.float32)))
