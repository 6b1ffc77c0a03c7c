"""Continues from a checkpoint with another recipe: with more or fewer workers, or another exchange.

A state is the same on every worker, except for the compressor's local state, which its reducer resizes.
"""

from typing import Any

import jax
import numpy as np

from jaxtern.compression.transform import describe
from jaxtern.models import MODELS
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.saved.arrange import MisfitError, arrange
from jaxtern.training.saved.checkpoints import Checkpoint
from jaxtern.training.step.mean import create_reducers
from jaxtern.training.step.state import TrainState


def carry_over(saved: Checkpoint, like: TrainState, recipe: Recipe) -> TrainState:
    """A checkpoint's state as NumPy arrays in the structure of `like`, the first state of a run of this recipe.

    Raises MisfitError if it cannot be carried over, for example from another optimiser or method.
    """
    rest, sent = dict(saved.state), dict(saved.state.get("compressor") or {})
    rest.pop("compressor", None)
    state, own = arrange(rest, like._replace(compressor=None)), jax.tree.map(np.asarray, like.compressor)
    if own.statistics is not None and sent.get("statistics") is None:
        sent["statistics"] = own.statistics
    elif own.statistics is None:
        sent.pop("statistics", None)
    local = sent.pop("local", None)
    try:
        compressor = arrange(sent, own._replace(local=None))._replace(local=_hand_over(local, own.local, recipe, state))
    except MisfitError as error:
        before = _name_method((saved.metadata.get("recipe") or {}).get("mean", {}))
        now = _name_method(vars(recipe.mean))
        raise MisfitError(f"of mean.method={before} does not go on by {now}: {error}") from None
    return state._replace(compressor=compressor)


def _hand_over(saved: Any, own: Any, recipe: Recipe, state: TrainState) -> Any:
    """Resizes the local state of N workers, arrays [N, ...], for M workers, whose first local state is `own`."""
    leaves, first = jax.tree.leaves(saved), jax.tree.leaves(own)
    if not leaves or not first or len(leaves[0]) == len(first[0]):
        return arrange(saved, own)
    reducer = create_reducers(recipe.mean, MODELS[recipe.model.name].last_layer)[0]
    layout, before = describe(state.params), len(leaves[0])
    alone = jax.eval_shape(lambda: reducer.init(layout, before).local)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((before, *leaf.shape), leaf.dtype), alone)
    return reducer.resize(arrange(saved, like), layout, recipe.run.num_workers)


def _name_method(mean: dict[str, Any]) -> str:
    """Names the method of a section's fields."""
    return f"{mean.get('method')!r}{', delayed,' * bool(mean.get('delayed'))}"
