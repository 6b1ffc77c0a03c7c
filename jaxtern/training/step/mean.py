"""The means that a recipe asks for, made."""

from jaxtern.compression.network.links import Network
from jaxtern.compression.reducer import Reducer
from jaxtern.compression.transform import keep_float
from jaxtern.compression.wrappers import delayed, idle
from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.selection import matches


def stays_float(mean: MeanSection, last_layer: str, path: str) -> bool:
    """Whether the recipe keeps a tensor's gradients float whatever its size."""
    in_last_layer = mean.float_last_layer and path.startswith(f"{last_layer}/")
    return in_last_layer or matches(mean.exclude, path)


def create_reducers(mean: MeanSection, last_layer: str, network: Network | None = None) -> list[Reducer]:
    """The reducers of a run's steps: the float mean, the method, and that of each epoch of a warm-up, the last first.

    All carry the same state, which the float mean leaves alone.
    """

    def create(phase: int) -> Reducer:
        def stays(path: str) -> bool:
            return stays_float(mean, last_layer, path)

        reducer = keep_float(mean.create_reducer(phase, network), mean.min_size, stays)
        return delayed(reducer) if mean.delayed else reducer

    compressed = [create(phase) for phase in range(mean.num_phases)]
    return [idle(compressed[0]), *compressed]
