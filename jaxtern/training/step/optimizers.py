"""Optimisers by name."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import optax

from jaxtern.training.recipe.optimizer import OptimizerSection
from jaxtern.training.recipe.selection import mask, matches, path_of

DECAYING_OPTIMIZERS = ("adamw", "lars", "lamb", "muon")  # decay by themselves, whatever weight_decay_mode is


def create_optimizer(
    optimizer: OptimizerSection, schedule: optax.Schedule, decayed: Sequence[str], last_layer: str
) -> optax.GradientTransformation:
    """Creates the optimiser, which turns the mean gradient into an update.

    With gradient g, weight w, momentum m, and d = weight_decay (0 for tensors that are not decayed), the update is
    -rate times

    sgd       g
    momentum  v = m v + g
    nesterov  g + m v, with the new v
    adam      a(g) = (mean of g) / (root of mean g^2 + epsilon), means with decay beta1 and beta2, without their bias
    adamw     a(g) + d w
    rmsprop   g / sqrt(mean g^2 + epsilon), TernGrad's: the mean has decay rms_decay and starts at 1
    lamb      |w| / |u| * u, where u = a(g) + d w
    muon      0.2 sqrt(longer side) o(n) + d w for matrices of hidden layers, where n is Nesterov's mean of g with decay
              m, and o sets singular values to about 1; a(g) + d w with Nesterov's mean of g for other tensors

    With weight_decay_mode="decoupled", d w is added in sgd, momentum, nesterov, adam and rmsprop. In lars,
    v = m v + rate * trust_coefficient * |w| / |u| * u, where u = g + d w, and the update is -v. Norms are of whole
    tensors. Their quotient (with trust_coefficient) is 1 if a norm is 0, and for tensors that are not decayed, which
    are biases and norms in most networks.

    Args:
      optimizer: names the optimiser and its numbers.
      schedule: step to rate.
      decayed: the network's regular expressions of whole paths. They say what is decayed if the recipe's `decay` is
        empty. Muon's matrices are always the tensors of two or more dimensions that match, without the last layer's.
      last_layer: path of the layer that gives the logits.

    References:
      LARS: You et al. 2017, arXiv:1708.03888; LAMB: You et al. 2020, arXiv:1904.00962; AdamW: Loshchilov & Hutter 2019,
      arXiv:1711.05101; Muon: Jordan 2024, with the scale of Liu et al. 2025, arXiv:2502.16982.
    """
    is_decayed = functools.partial(mask, decay_patterns(optimizer, decayed))
    if optimizer.name == "lars":
        return optax.lars(
            schedule,
            optimizer.weight_decay,
            weight_decay_mask=is_decayed,
            trust_coefficient=optimizer.trust_coefficient,
            trust_ratio_mask=is_decayed,
            momentum=optimizer.momentum,
        )
    epsilon = optimizer.epsilon or {"rmsprop": 1.0, "lamb": 1e-6}.get(optimizer.name, 1e-8)
    adam = functools.partial(optax.scale_by_adam, optimizer.beta1, optimizer.beta2, epsilon)
    rules = {
        "sgd": optax.identity,
        "momentum": lambda: optax.trace(optimizer.momentum),
        "nesterov": lambda: optax.trace(optimizer.momentum, nesterov=True),
        **dict.fromkeys(("adam", "adamw", "lamb"), adam),
        "rmsprop": lambda: optax.scale_by_rms(optimizer.rms_decay, epsilon, initial_scale=1.0),
        "muon": lambda: _muon(optimizer, epsilon, functools.partial(_matrices, decayed, last_layer)),
    }
    parts = [rules[optimizer.name]()]
    if optimizer.weight_decay and not decays_in_loss(optimizer):
        parts.append(optax.add_decayed_weights(optimizer.weight_decay, mask=is_decayed))
    if optimizer.name == "lamb":  # optax.lamb also scales biases and norms, which its authors leave out
        parts.append(optax.masked(optax.scale_by_trust_ratio(), is_decayed))
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule))


def _muon(optimizer: OptimizerSection, epsilon: float, matrices: Any) -> optax.GradientTransformation:
    """Muon, and for other tensors Adam, without rate and decay; `matrices` turns a tree into that of `_matrices`."""
    return optax.contrib.muon(
        -1.0,  # the rate: optax multiplies by its negative, so this gives the update itself
        beta=optimizer.momentum,
        eps=epsilon,
        adam_b1=optimizer.beta1,
        adam_b2=optimizer.beta2,
        muon_weight_dimension_numbers=matrices,
        consistent_rms=0.2,
    )


def _matrices(patterns: Sequence[str], last_layer: str, tree: Any) -> Any:
    """For each tensor that Muon takes as a matrix, the axes of its rows and of its columns; None for the others.

    A shape is cut where the matrix is nearest to a square: before the outputs of a convolution, and between the width
    and the heads of attention.
    """

    def axes_of(keys: Any, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        path, shape = path_of(keys), leaf.shape
        if len(shape) < 2 or not matches(patterns, path) or path.startswith(f"{last_layer}/"):
            return None
        cut = min(range(1, len(shape)), key=lambda axis: math.prod(shape[:axis]) + math.prod(shape[axis:]))
        return optax.contrib.MuonDimensionNumbers(tuple(range(cut)), tuple(range(cut, len(shape))))

    return jax.tree_util.tree_map_with_path(axes_of, tree)


def decays_in_loss(optimizer: OptimizerSection) -> bool:
    """Whether weight_decay * sum(w^2) / 2, over what is decayed, is part of every worker's loss."""
    by_itself = optimizer.name in DECAYING_OPTIMIZERS
    return optimizer.weight_decay > 0 and optimizer.weight_decay_mode == "loss" and not by_itself


def decay_patterns(optimizer: OptimizerSection, decayed: Sequence[str]) -> tuple[str, ...]:
    """Regular expressions of the whole paths that are decayed: the recipe's, or else the network's own."""
    return optimizer.decay or tuple(decayed)
