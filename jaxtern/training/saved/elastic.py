"""Continues from a checkpoint with another recipe: with more or fewer workers, or another exchange.

A state is the same on every worker, except for the compressor's local state, which its reducer resizes.
"""

from typing import Any

import jax
import numpy as np
import optax

from jaxtern.compression.reducer import Layout, Reducer
from jaxtern.compression.transform import layout_of
from jaxtern.models import MODELS
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.saved.checkpoints import Checkpoint
from jaxtern.training.saved.trees import MisfitError, arrange
from jaxtern.training.step.mean import create_local_steps, create_reducers
from jaxtern.training.step.state import TrainState


def carry_over(saved: Checkpoint, like: TrainState, recipe: Recipe) -> TrainState:
    """A checkpoint's state as NumPy arrays in the structure of `like`, the first state of a run of this recipe.

    Raises MisfitError if it cannot be carried over, for example from another optimiser or method.
    """
    rest, sent = dict(saved.state), dict(saved.state.get("compressor") or {})
    rest.pop("compressor", None)
    own = jax.tree.map(np.asarray, like.compressor)
    statistics = getattr(own, "statistics", None)  # local steps have none
    if statistics is not None and sent.get("statistics") is None:
        sent["statistics"] = statistics
    elif statistics is None:
        sent.pop("statistics", None)
    local, state = sent.pop("local", None), None
    try:
        state = arrange(rest, like._replace(compressor=None))
        compressor = arrange(sent, own._replace(local=None))._replace(local=_hand_over(local, own.local, recipe, state))
    except MisfitError as error:
        before, now = map(_name_method, (saved.metadata.get("recipe") or {}, recipe.to_dict()))
        if state is None and before == now:  # the method is not to blame
            raise
        raise MisfitError(f"of {before} does not go on by {now}: {error}") from None
    return state._replace(compressor=compressor)


def _hand_over(saved: Any, own: Any, recipe: Recipe, state: TrainState) -> Any:
    """Resizes the local state of N workers, arrays [N, ...], for M workers, whose first local state is `own`."""
    leaves, first = jax.tree.leaves(saved), jax.tree.leaves(own)
    if not leaves or not first or len(leaves[0]) == len(first[0]):
        return arrange(saved, own)
    reducer = create_reducers(recipe.mean, MODELS[recipe.model.name].last_layer)[0]
    layout, before, after = layout_of(state.params), len(leaves[0]), recipe.run.num_workers
    if not recipe.local.steps:
        return reducer.resize(arrange(saved, _local_shapes(reducer, layout, before)), layout, after)
    steps = create_local_steps(recipe, reducer, 1, optax.identity(), {})
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((before, *leaf.shape[1:]), leaf.dtype), own)
    carried = [_local_shapes(reducer, part, before) for part in steps.layouts(state.params)]
    return steps.resize(arrange(saved, like._replace(reducers=carried)), state.params, after)


def _local_shapes(reducer: Reducer, layout: Layout, num_workers: int) -> Any:
    """Shapes of the local state of N workers, [N, ...]."""
    alone = jax.eval_shape(lambda: reducer.init(layout, num_workers).local)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_workers, *leaf.shape), leaf.dtype), alone)


def _name_method(recipe: dict[str, Any]) -> str:
    mean, local = recipe.get("mean", {}), recipe.get("local", {})
    steps = f" with local.steps={local['steps']}" if local.get("steps") else ""
    return f"mean.method={mean.get('method')!r}{steps}{', delayed,' * bool(mean.get('delayed'))}"
