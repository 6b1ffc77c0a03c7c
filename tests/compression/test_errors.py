"""Whatever is wrong: one line that names the argument, its value and the rule."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern import Network, Ternary, compressed_mean, ternary_mean

ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"exchange": "ring"}, r"exchange='ring': must be one of auto, gather, sum, scatter, two_way, float"),
    ({"exchange": None}, r"exchange=None: must be one of"),
    ({"fast_axis_name": "data"}, r"fast_axis_name='data': must name other axes than axis_name='data'"),
    ({"fast_axis_name": ()}, r"axis_name=\(\): must be the name of an axis, or a tuple of different names"),
    ({"bucket_size": 0}, r"bucket_size=0: must be None or an integer of 1 or more"),
    ({"bucket_size": 1e6}, r"bucket_size=1000000\.0: must be None or an integer of 1 or more"),
    ({"delayed": True, "statistics": True}, r"statistics=True: must be False where delayed=True"),
    ({"codec": "binary"}, r"codec='binary': must be ternary, float, or a Codec"),
    ({"codec": None}, r"codec=None: must be ternary, float, or a Codec"),
    ({"codec": 3}, r"codec=3: must be ternary, float, or a Codec"),
    ({"min_size": 0}, r"min_size=0: must be an integer of 1 or more"),
    ({"min_size": 1.5}, r"min_size=1\.5: must be an integer of 1 or more"),
    ({"min_size": True}, r"min_size=True: must be an integer of 1 or more"),
    ({"exclude": "head"}, r"exclude='head': must be None or a function of a path"),
    ({"seed": -1}, r"seed=-1: must be an integer from 0 to 2\^32 - 1"),
    ({"seed": 2**32}, r"seed=4294967296: must be an integer from 0 to 2\^32 - 1"),
    ({"seed": 1.0}, r"seed=1\.0: must be an integer"),
    ({"seed": False}, r"seed=False: must be an integer"),
    ({"virtual_workers": 0}, r"virtual_workers=0: must be None or an integer of 1 or more"),
    ({"virtual_workers": 2.0}, r"virtual_workers=2\.0: must be None or an integer of 1 or more"),
]
CODEC_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"clip_sigmas": -1.0}, r"clip_sigmas=-1\.0: must be a finite number of 0 or more"),
    ({"clip_sigmas": np.nan}, r"clip_sigmas=nan: must be a finite number of 0 or more"),
    ({"clip_sigmas": np.inf}, r"clip_sigmas=inf: must be a finite number of 0 or more"),
    ({"clip_sigmas": True}, r"clip_sigmas=True: must be a finite number"),
    ({"clip_sigmas": "2.5"}, r"clip_sigmas='2\.5': must be a finite number of 0 or more"),
    ({"clip_sigmas": None}, r"clip_sigmas=None: must be a finite number of 0 or more"),
    ({"scale": "max"}, r"scale='max': must be one of exact, pow2"),
    ({"levels": 0}, r"levels=0: must be an integer from 1 to 32767"),
    ({"levels": 32768}, r"levels=32768: must be an integer from 1 to 32767"),
    ({"levels": 1.0}, r"levels=1\.0: must be an integer"),
    ({"levels": True}, r"levels=True: must be an integer"),
    ({"block_size": 0}, r"block_size=0: must be None or an integer of 1 or more"),
    ({"block_size": 2.0}, r"block_size=2\.0: must be None or an integer of 1 or more"),
    ({"block_size": True}, r"block_size=True: must be None or an integer of 1 or more"),
]
AXES = ["", (), ("data", "data"), None, 3, ("data", 1)]


def _refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS)
def test_compressed_mean_refuses_an_argument_out_of_its_range(arguments: dict[str, Any], message: str):
    _refused(lambda: compressed_mean("data", **arguments), message)


@pytest.mark.parametrize(("arguments", "message"), CODEC_ARGUMENTS)
@pytest.mark.parametrize("make", [Ternary, functools.partial(ternary_mean, "data")])
def test_the_ternary_codec_refuses_an_argument_out_of_its_range(
    make: Callable, arguments: dict[str, Any], message: str
):
    _refused(lambda: make(**arguments), message)


def test_an_unknown_implementation_is_refused():
    _refused(lambda: Ternary(implementation="cuda"), r"implementation='cuda': must be one of auto, reference")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"latency": -1.0}, r"latency=-1\.0: must be a finite number of 0 or more"),
        ({"bandwidth": 0}, r"bandwidth=0: must be a finite number of 1 or more"),
        ({"bandwidth": np.inf}, r"bandwidth=inf: must be a finite number of 1 or more"),
        ({"latency": "1 ms"}, r"latency='1 ms': must be a finite number of 0 or more"),
    ],
)
def test_a_network_that_cannot_be_is_refused(arguments: dict[str, Any], message: str):
    _refused(lambda: Network(**arguments), message)


@pytest.mark.parametrize("axis_name", AXES)
def test_what_is_no_axis_name_is_refused(axis_name: Any):
    _refused(
        lambda: ternary_mean(axis_name), r"axis_name=.*: must be the name of an axis, or a tuple of different names"
    )


def test_an_axis_that_does_not_exist_is_refused(updates_over: Callable):
    transformation = ternary_mean("rows")
    message = r"axis_name='rows': no such axis here; call inside shard_map, pmap or vmap"
    _refused(lambda: transformation.update(jnp.ones(3), transformation.init(None)), message)
    for layout in ("vmap:2", "mesh:2", "pmap:2"):
        update = updates_over(lambda names: ternary_mean((*names, "rows")), layout)
        _refused(functools.partial(update, jnp.ones((2, 3))), message)


@pytest.mark.parametrize("exchange", ["auto", "float"])
def test_integer_gradients_are_refused_by_path(updates_over: Callable, exchange: str):
    update = updates_over(functools.partial(ternary_mean, exchange=exchange), "vmap:2")
    gradients = {"conv": {"kernel": jnp.ones((2, 3)), "steps": jnp.ones((2, 3), jnp.int32)}}
    _refused(
        lambda: update(gradients), r"gradient 'conv/steps' is int32: only floating-point gradients can be averaged"
    )


@pytest.mark.parametrize("exchange", ["sum", "float"])
def test_gradients_that_shard_map_has_summed_already_are_refused(workers: Callable, exchange: str):
    placed = workers("mesh:4")
    transformation = ternary_mean(placed.names, exchange=exchange)

    def step(x: jax.Array, params: Any) -> Any:
        gradients = jax.grad(lambda p: jnp.sum((x * p["w"]) ** 2))(params)
        return transformation.update(gradients, transformation.init(None))[0]

    message = r"gradient 'w' is the same on all workers of axis 'axis0': shard_map has summed it already"
    _refused(lambda: placed.replicated(step, check_vma=True)(jnp.ones((4, 3)), {"w": jnp.ones(3)}), message)
    placed.replicated(step, check_vma=False)(jnp.ones((4, 3)), {"w": jnp.ones(3)})

    def local_step(x: jax.Array, params: Any) -> Any:
        return step(x, jax.lax.pcast(params, placed.names, to="varying"))

    placed.replicated(local_step, check_vma=True)(jnp.ones((4, 3)), {"w": jnp.ones(3)})


def test_a_vmapped_axis_beside_a_checked_one_is_refused(updates_over: Callable):
    update = updates_over(ternary_mean, "mesh:2 vmap:2", check_vma=True)
    _refused(
        lambda: update(jnp.ones((4, 3))), r"axis_name=\('axis0', 'axis1'\): a vmapped axis beside axes of a shard_map"
    )


def test_sums_of_too_many_levels_are_refused_and_auto_gathers_them(updates_over: Callable):
    gradients = jnp.ones((3, 5))
    update = updates_over(functools.partial(ternary_mean, levels=20_000, exchange="sum"), "vmap:3")
    _refused(lambda: update(gradients), r"exchange='sum': the words of 3 workers of .* do not add; take 'gather'")
    mean, _ = updates_over(functools.partial(ternary_mean, levels=20_000), "vmap:3")(gradients)
    np.testing.assert_allclose(mean, gradients, rtol=1e-4)


def test_another_number_of_trees_than_virtual_workers_is_refused():
    transformation = compressed_mean("data", virtual_workers=3)

    def step(gradient: jax.Array) -> Any:
        return transformation.update([gradient, gradient], transformation.init(None))[0]

    _refused(lambda: jax.vmap(step, axis_name="data")(jnp.ones((2, 3))), r"updates: 2 trees .* virtual_workers=3")
