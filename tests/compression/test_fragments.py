"""Fragments: every tensor in one, and each due once in H steps."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.compression.fragments import as_timing, split_layout
from jaxtern.compression.transform import layout_of


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 12])
def test_every_tensor_is_in_one_fragment_and_neighbours_are_together(parts: int):
    random = np.random.default_rng(parts)
    tree = {f"block{number}": jnp.zeros(random.integers(1, 50)) for number in range(12)}
    layout = layout_of(tree)
    found = split_layout(layout, parts)
    assert sorted(place for part in found for place in part) == list(range(12))
    numbers = [sorted(int(layout.paths[place].removeprefix("block")) for place in part) for part in found]
    assert [number for part in numbers for number in part] == list(range(12))  # block2 before block10


def test_fragments_have_about_as_many_elements():
    tree = {f"{number:02}": jnp.zeros(size) for number, size in enumerate([100, 1, 1, 1, 97, 50, 50, 100])}
    layout = layout_of(tree)
    sizes = [sum(layout.sizes[place] for place in part) for part in split_layout(layout, 4)]
    assert sizes == [100, 100, 100, 100]


@pytest.mark.parametrize(("steps", "fragments"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6)])
def test_each_fragment_is_due_once_in_all_steps(steps: int, fragments: int):
    timing = as_timing(steps, fragments)
    due = [int(timing.due(step)) for step in range(1, 3 * steps + 1)]
    assert [number for number in due if number < fragments] == list(range(fragments)) * 3
    assert due[steps - 1] == fragments - 1  # the last of the first round in step H
