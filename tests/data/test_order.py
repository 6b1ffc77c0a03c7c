"""The order of examples: each once an epoch, another order every epoch, and a function of the place alone."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from jaxtern.data.order import ExampleOrder

COUNTS = st.integers(1, 60)


@hypothesis.given(num_examples=COUNTS, batch_size=st.integers(1, 150), seed=st.integers(0, 2**32 - 1))
def test_order_shows_each_example_once_an_epoch(num_examples: int, batch_size: int, seed: int):
    order = ExampleOrder(num_examples, seed)
    batches = [order.batch(start, batch_size) for start in range(0, 4 * num_examples, batch_size)]
    assert {len(batch) for batch in batches} == {batch_size}
    assert {batch.dtype for batch in batches} == {np.dtype(np.int32)}
    epochs = np.concatenate(batches)[: 4 * num_examples].reshape(4, num_examples)
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(num_examples))


@hypothesis.given(
    num_examples=COUNTS,
    places=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 100)), min_size=1, max_size=8),
)
def test_order_depends_on_the_place_alone(num_examples: int, places: list[tuple[int, int]]):
    sequence = np.concatenate([ExampleOrder(num_examples, 3).batch(place, 1) for place in range(600)])
    order = ExampleOrder(num_examples, 3)  # jumps back and forth
    for start, size in places:
        np.testing.assert_array_equal(order.batch(start, size), sequence[start : start + size])


def test_order_differs_between_epochs_and_seeds():
    # Two shuffles of 1000 examples share a place at 1 in 1000 places; 20 in common have probability 1e-18.
    shuffles = [ExampleOrder(1000, seed).batch(1000 * epoch, 1000) for seed in range(3) for epoch in range(3)]
    for i, first in enumerate(shuffles):
        for second in shuffles[:i]:
            assert np.sum(first == second) < 20
