"""The methods that are measured, by the names of their rows."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from benchmarks.exchange.shapes import Shapes
from jaxtern import Network, Reducer, float_mean, low_rank, sign, ternary, terngrad, top_k
from jaxtern.compression.radix.exchanges import EXCHANGES

OTHERS: dict[str, Callable[[], Reducer]] = {
    "float": float_mean,
    "float16": partial(float_mean, "float16"),
    "bfloat16": partial(float_mean, "bfloat16"),
    "low_rank 1": partial(low_rank, 1),
    "low_rank 4": partial(low_rank, 4),
    "top_k .01": partial(top_k, 0.01),
    "top_k .001": partial(top_k, 0.001),
    "sign": sign,
    "sign two_way": partial(sign, two_way=True),
}
TERNGRAD = {f"terngrad {name}": name for name in EXCHANGES}
METHODS = ("float", *EXCHANGES, *(name for name in OTHERS if name != "float"), *TERNGRAD)
BIASED = tuple(name for name in (*OTHERS, *TERNGRAD) if "float" not in name)  # a single mean may be far from float's


def create_reducer(name: str, network: Network | None = None) -> Reducer:
    """The reducer of a row, over links of which only the exchanges of ternary words want to know."""
    if name in OTHERS:
        return OTHERS[name]()
    method = terngrad if name in TERNGRAD else ternary
    return method(exchange=TERNGRAD.get(name, name), network=network)


def tensors_of(shapes: Shapes) -> dict[str, jax.ShapeDtypeStruct]:
    """The gradients, by paths in their order."""
    return {f"{place:03d}": jax.ShapeDtypeStruct(shape, jnp.float32) for place, shape in enumerate(shapes)}
