"""A checkpoint of one recipe as the state of a run of another: of more workers, or fewer, or another exchange.

A state is the same on every worker but for what the compressor carries of each worker's own, which its reducer hands
over to as many workers as go on.
"""

from typing import Any

import jax
import numpy as np
import optax

from jaxtern.compression.reducer import Layout, Reducer
from jaxtern.compression.transform import describe
from jaxtern.models import MODELS
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.saved.arrange import MisfitError, arrange
from jaxtern.training.saved.checkpoints import Checkpoint
from jaxtern.training.step.mean import create_local_steps, create_reducers
from jaxtern.training.step.state import TrainState


def carry_over(saved: Checkpoint, like: TrainState, recipe: Recipe) -> TrainState:
    """The state of a checkpoint as NumPy arrays in the structure of `like`, a first state of this recipe.

    Raises:
      MisfitError: for what cannot be carried over, as the moments of another optimiser or what another method carries.
    """
    rest, sent = dict(saved.state), dict(saved.state.get("compressor") or {})
    rest.pop("compressor", None)
    own = jax.tree.map(np.asarray, like.compressor)
    statistics = getattr(own, "statistics", None)  # local steps have none
    if statistics is not None and sent.get("statistics") is None:
        sent["statistics"] = statistics
    elif statistics is None:
        sent.pop("statistics", None)
    local = sent.pop("local", None)
    try:
        state = arrange(rest, like._replace(compressor=None))
        compressor = arrange(sent, own._replace(local=None))._replace(local=_hand_over(local, own.local, recipe, state))
    except MisfitError as error:
        before, now = map(_name_method, (saved.metadata.get("recipe") or {}, recipe.to_dict()))
        raise MisfitError(f"of {before} does not go on by {now}: {error}" if before != now else str(error)) from None
    return state._replace(compressor=compressor)


def _hand_over(saved: Any, own: Any, recipe: Recipe, state: TrainState) -> Any:
    """What each of N workers carried, arrays [N, ...], as it goes on among M, who have `own` [M, ...] in a first state.

    The recipe is that of the run that goes on; gradients look like the weights of `state`.
    """
    leaves, first = jax.tree.leaves(saved), jax.tree.leaves(own)
    if not leaves or not first or len(leaves[0]) == len(first[0]):
        return arrange(saved, own)
    reducer = create_reducers(recipe.mean, MODELS[recipe.model.name].last_layer)[0]
    layout, before, after = describe(state.params), len(leaves[0]), recipe.run.num_workers
    if not recipe.local.steps:
        return reducer.resize(arrange(saved, _local_shapes(reducer, layout, before)), layout, after)
    steps = create_local_steps(recipe, reducer, 1, optax.identity(), {})
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((before, *leaf.shape[1:]), leaf.dtype), own)
    carried = [_local_shapes(reducer, part, before) for part in steps.layouts(state.params)]
    return steps.resize(arrange(saved, like._replace(reducers=carried)), state.params, after)


def _local_shapes(reducer: Reducer, layout: Layout, num_workers: int) -> Any:
    """The shapes of what N workers carry, [N, ...]."""
    alone = jax.eval_shape(lambda: reducer.init(layout, num_workers).local)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_workers, *leaf.shape), leaf.dtype), alone)


def _name_method(recipe: dict[str, Any]) -> str:
    """That of a recipe's sections."""
    mean, local = recipe.get("mean", {}), recipe.get("local", {})
    steps = f" with local.steps={local['steps']}" if local.get("steps") else ""
    return f"mean.method={mean.get('method')!r}{steps}{', delayed,' * bool(mean.get('delayed'))}"
