"""The float mean, in 32 or 16 bits."""

import jax.numpy as jnp

from jaxtern.compression.network.links import Traffic, all_reduce, mean_in_order
from jaxtern.compression.reducer import Group, Layout, Reduced, Reducer, State, Tensors, stateless

_DTYPES = ("float32", "bfloat16", "float16")


def float_mean(dtype: str = "float32", in_order: bool = False) -> Reducer:
    """The mean of floats, uncompressed or rounded to 16 bits.

    With 16 bits, tensors are rounded to the dtype, sent as 16-bit integers, which no backend widens, and added as
    float32 in the order of the workers. From three workers on, the mean is rounded to the dtype, too. PyTorch DDP's
    fp16 and bf16 hooks send as much.

    Args:
      dtype: "float32", "bfloat16" or "float16".
      in_order: whether float32, too, is added in the order of the workers, so that the mean has the same bits on any
        devices. False: by `lax.pmean`, in the tensors' own dtypes and an order that the backend decides.

    Returns:
      A reducer without state.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype!r}: must be one of {', '.join(_DTYPES)}")
    is_plain = dtype == "float32" and not in_order
    way = "float" if dtype == "float32" else dtype

    def reduce(workers: list[Tensors], state: State, group: Group) -> Reduced:
        mean = group.pmean(workers) if is_plain else group.mean(workers, dtype)
        if dtype != "float32":
            workers = [[tensor.astype(dtype).astype(jnp.float32) for tensor in own] for own in workers]
        return Reduced(mean, state, workers)

    def traffic(layout: Layout, num_workers: int) -> Traffic:
        total = all_reduce(sum(layout.sizes), num_workers) if is_plain else Traffic()
        for places in [] if is_plain else layout.kinds:
            total += mean_in_order(layout.select(places).sizes, num_workers, jnp.dtype(dtype).itemsize)
        return total._replace(ways=(way,))

    return Reducer(stateless, reduce, traffic)
