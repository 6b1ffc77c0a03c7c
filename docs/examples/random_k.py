"""Random-k: of every tensor the same random elements on all workers."""

import math

import jax
import jax.numpy as jnp

import jaxtern
from jaxtern import Reduced, Reducer, State


def random_k(density):
    def count(size):
        return math.ceil(density * size)

    def init(layout, num_workers):
        return State()  # nothing is carried from one update to the next

    def reduce(workers, state, group):
        key = jax.random.wrap_key_data(group.shared_key())  # the same on all workers, another in every step
        keys = [jax.random.fold_in(key, tensor) for tensor in range(len(group.layout.sizes))]
        places = [jax.random.permutation(key, size)[: count(size)] for key, size in zip(keys, group.layout.sizes)]
        chosen = [[x.reshape(-1)[own] for x, own in zip(tensors, places)] for tensors in workers]

        def spread(values):  # to whole tensors, zero but for the chosen elements
            return [
                jnp.zeros(size, jnp.float32).at[own].set(x.astype(jnp.float32)).reshape(shape)
                for x, own, size, shape in zip(values, places, group.layout.sizes, group.layout.shapes)
            ]

        mean = group.mean(chosen)  # the only message
        return Reduced(spread(mean), state, sent=[spread(own) for own in chosen])

    def traffic(layout, num_workers):
        chosen = layout._replace(shapes=tuple((count(size),) for size in layout.sizes))
        return jaxtern.float_mean(in_order=True).traffic(chosen, num_workers)  # as `group.mean` sends them

    return Reducer(init, reduce, traffic)


REDUCER = jaxtern.error_feedback(random_k(0.1))
OPTIMIZER = jaxtern.compressed_mean("data", REDUCER)  # for optax.chain, as any other
print(jaxtern.wire_report({"kernel": jnp.zeros((300, 100))}, REDUCER, num_workers=4))
