"""Fragments of a tree: which tensors local steps exchange together, and when."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtern.compression.arguments import as_integer
from jaxtern.compression.reducer import Layout


class Timing(NamedTuple):
    """When fragments are exchanged: they take turns, one every `period` = H / P steps."""

    steps: int  # H, steps between two exchanges of a tensor
    fragments: int = 1  # P, parts of the tree that are exchanged at different steps
    delay: int = 0  # steps between sending a fragment and merging its mean

    @property
    def period(self) -> int:
        """Steps from one merge to the next one, which is of another fragment."""
        return self.steps // self.fragments

    def due(self, step: Any) -> jax.Array:
        """int32 scalar, the fragment, 0 to P - 1, that is merged after this step (the first is 1); P if none is."""
        turn = (step // self.period - 1) % self.fragments
        return jnp.where((step > 0) & (step % self.period == 0), turn, self.fragments)


EVERY_STEP = Timing(1)


def as_timing(steps: Any, fragments: Any = 1, delay: Any = 0) -> Timing:
    """Makes a `Timing`; raises ValueError for numbers that do not fit each other."""
    timing = Timing(as_integer("steps", steps, 1), as_integer("fragments", fragments, 1), as_integer("delay", delay, 0))
    if timing.steps % timing.fragments:
        raise ValueError(f"fragments={timing.fragments}: must divide steps={timing.steps}")
    if timing.delay >= timing.period:
        need = f"must be below steps / fragments = {timing.period}: a fragment is merged before the next is exchanged"
        raise ValueError(f"delay={timing.delay}: {need}")
    return timing


def split_layout(layout: Layout, parts: int) -> list[list[int]]:
    """Places of the tensors of each fragment: neighbours by path, with about as many elements in each fragment.

    Numbers in paths count as numbers: "blocks/2" comes before "blocks/10". Raises ValueError if there are more
    fragments than tensors.
    """
    count = len(layout.paths)
    if parts > max(count, 1):
        raise ValueError(f"fragments={parts}: must be at most the number of tensors, {count}")
    words = [[each for each in re.split(r"(\d+)", path) if each] for path in layout.paths]
    natural = [[(int(each), "") if each.isdecimal() else (0, each) for each in path] for path in words]  # b2 before b10
    order = sorted(range(count), key=natural.__getitem__)
    edges = np.cumsum([0, *(layout.sizes[place] for place in order)])
    cuts = [0]
    for part in range(1, parts):
        nearest = int(np.argmin(np.abs(edges - edges[-1] * part / parts)))
        cuts.append(min(max(nearest, cuts[-1] + 1), count - parts + part))
    return [sorted(order[first:last]) for first, last in zip(cuts, [*cuts[1:], count], strict=True)]
