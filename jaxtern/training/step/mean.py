"""Creates the reducers, means and local steps of a recipe."""

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

    def create(phase: int) -> Reducer:
        def stays(path: str) -> bool:
            return stays_float(mean, last_layer, path)

        reducer = keep_float(mean.create_reducer(phase, network), mean.min_size, stays)
        return delayed(reducer) if mean.delayed else reducer

    compressed = [create(phase) for phase in range(mean.num_phases)]
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
    outer = optax.sgd(local.outer_rate, momentum=local.outer_momentum, nesterov=True)
    return local_steps(
        DEVICE_AXIS,
        optax.chain(optimizer, masked),
        local.steps,
        outer=optax.chain(outer, masked),  # the mean is noisy even if no worker has moved
        reducer=reducer,
        fragments=local.fragments,
        delay=local.delay,
        mixing=local.mixing,
        **_options(recipe, local_workers),
    )


def _options(recipe: Recipe, local_workers: int) -> dict[str, Any]:
    fast = FAST_AXIS if recipe.mean.worker_devices > 1 else None
    return {"fast_axis_name": fast, "seed": recipe.run.seed, "virtual_workers": local_workers}
