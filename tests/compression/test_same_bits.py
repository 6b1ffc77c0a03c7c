"""The bits of means stay what they were: runs can be resumed with a newer version of the package.

`same_bits.json` holds digests of three updates each, over layouts, exchanges and options; every two of these that go
together are in one of its rows. Those of a dozen are compared every time. Where a change of the noise or the format is
meant, the digests are written anew, and CHANGELOG.md says so.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtern

pytestmark = pytest.mark.optimized

TREES = {
    "small": {"large": 2503, "small": 100, "float": 9, "one": 1},
    "spans": {"large": 2**17 + 999, "small": 50, "float": 3, "odd": 2**15 + 1, "also": 2**16 - 1},
}
CASES = json.loads(Path(__file__).with_name("same_bits.json").read_text())


def _name(case: dict[str, Any]) -> str:
    return ", ".join([case["layout"], case["tree"], *(f"{name}={value}" for name, value in case["options"].items())])


def _gradients(num_workers: int, sizes: dict[str, int]) -> dict[str, Any]:
    random = np.random.default_rng(5)
    tree = {name: random.standard_normal((num_workers, size), np.float32) for name, size in sizes.items()}
    tree["large"][:, 7] *= 30
    return {**tree, "half": jnp.asarray(tree["small"], jnp.bfloat16), "absent": None}


def _transformation(axes: tuple[str, ...], virtual_workers: int | None, options: dict[str, Any]) -> Any:
    of_mean = {name: options[name] for name in ("min_size", "seed", "delayed") if name in options}
    plain = {"levels": 1, "rotation": False, "rounding": "stochastic"}
    of_reducer = plain | {name: value for name, value in options.items() if name not in of_mean}
    if options["exchange"] == "float":
        of_mean.pop("min_size", None)
        return jaxtern.compressed_mean(axes, jaxtern.float_mean(), virtual_workers=virtual_workers, **of_mean)
    return jaxtern.compressed_mean(axes, jaxtern.quantized(**of_reducer), virtual_workers=virtual_workers, **of_mean)


@pytest.mark.parametrize(
    "case", [pytest.param(each, id=_name(each), marks=() if each["fast"] else pytest.mark.slow) for each in CASES]
)
def test_means_have_the_bits_they_always_had(workers: Callable, case: dict[str, Any]):
    placed = workers(case["layout"])
    transformation = _transformation(placed.names, placed.virtual_workers, case["options"])

    def steps(local: Any, _: Any) -> list[Any]:
        state = transformation.init(local if placed.virtual_workers is None else local[0])
        again, means = jax.tree.map(lambda x: x[::-1] * jnp.asarray(0.5, x.dtype), local), []
        for tree in (local, again, local):
            mean, state = transformation.update(tree, state)
            means.append(mean)
        return means

    made = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(placed.over(steps)(_gradients(placed.size, TREES[case["tree"]]), None)):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        made.update(np.ascontiguousarray(leaf[0]).tobytes())
    assert made.hexdigest() == case["digest"]
