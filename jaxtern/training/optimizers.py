"""Optimisers by name, after the mean of the gradients."""

from typing import Any

import jax
import optax

from jaxtern.training.recipe import Recipe


def create_optimizer(recipe: Recipe, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Mean gradient to update; RMSprop with TernGrad's constants (decay .9, epsilon 1)."""
    rules = {
        "sgd": optax.identity,
        "momentum": lambda: optax.trace(recipe.momentum),
        "adam": optax.scale_by_adam,
        "rmsprop": lambda: optax.scale_by_rms(decay=0.9, eps=1.0, initial_scale=1.0),
    }
    decay = []
    if recipe.weight_decay and recipe.weight_decay_mode == "decoupled":
        decay = [optax.add_decayed_weights(recipe.weight_decay, mask=is_kernel)]
    return optax.chain(rules[recipe.optimizer](), *decay, optax.scale_by_learning_rate(schedule))


def is_kernel(params: Any) -> Any:
    """True for the kernels of a tree of weights, False for its biases: what weight decay applies to."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
