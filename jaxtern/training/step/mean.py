"""Creates the reducers, means and local steps of a recipe."""

import functools
from typing import Any

import numpy as np
import optax

from jaxtern.compression.network.links import Network
from jaxtern.compression.reducer import Reducer
from jaxtern.compression.transform import compressed_mean, keep_float
from jaxtern.compression.wrappers import delayed, idle
from jaxtern.local.local_steps import LocalSteps, local_steps
from jaxtern.training.recipe import masks
from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.selection import matches
from jaxtern.training.step.mesh import DEVICE_AXIS, FAST_AXIS


def stays_float(mean: MeanSection, last_layer: str, path: str) -> bool:
    """Whether the recipe keeps a tensor's gradients float, whatever its size."""
    in_last_layer = mean.float_last_layer and path.startswith(f"{last_layer}/")
    return in_last_layer or matches(mean.exclude, path)


def create_reducers(mean: MeanSection, last_layer: str, network: Network | None = None) -> list[Reducer]:
    """Reducers of a run's phases: the float mean, the method, and that of each warm-up epoch, the last epoch first.

    All have the same state, which the float mean leaves as it is.
    """
    stays = functools.partial(stays_float, mean, last_layer)
    compressed = [mean.create_reducer(phase, network) for phase in range(mean.num_phases)]
    if mean.method != "float" or mean.dtype != "float32":
        compressed = [keep_float(each, mean.min_size, stays) for each in compressed]
    if mean.delayed:
        compressed = list(map(delayed, compressed))
    return [idle(compressed[0]), *compressed]


def create_mean(recipe: Recipe, reducer: Reducer, local_workers: int) -> optax.GradientTransformation:
    """The mean of gradients in every step, with `local_workers` workers on each device."""
    return compressed_mean(DEVICE_AXIS, reducer, statistics=recipe.mean.statistics, **_options(recipe, local_workers))


def create_local_steps(
    recipe: Recipe,
    reducer: Reducer,
    local_workers: int,
    optimizer: optax.GradientTransformation,
    slices: dict[str, np.ndarray],
) -> LocalSteps:
    """The local steps of a recipe; their optimisers leave frozen slices as they are."""
    local = recipe.local
    masked = optax.stateless(lambda updates, _: masks.mask_slices(updates, slices))
    nesterov = optax.sgd(local.outer_rate, momentum=local.outer_momentum, nesterov=True)
    inner = optax.chain(optimizer, masked)
    outer = optax.chain(nesterov, masked)  # the mean is noisy even if no worker has moved
    options: dict[str, Any] = _options(recipe, local_workers) | {"fragments": local.fragments, "delay": local.delay}
    return local_steps(DEVICE_AXIS, inner, local.steps, outer=outer, reducer=reducer, mixing=local.mixing, **options)


def _options(recipe: Recipe, local_workers: int) -> dict[str, Any]:
    fast = FAST_AXIS if recipe.mean.worker_devices > 1 else None
    return {"fast_axis_name": fast, "seed": recipe.run.seed, "virtual_workers": local_workers}
