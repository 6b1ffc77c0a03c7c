"""Which steps go to the devices together, and which of them exchange float gradients."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxtern.training.recipe import Recipe


class Call(NamedTuple):
    """Steps that the devices take without the host.

    Attributes:
      num_steps: one, or as many as in every other call of several.
      compresses: whether their gradients are compressed.
    """

    num_steps: int
    compresses: bool


def plan_calls(recipe: Recipe, num_examples: int, step: int, examples_seen: int) -> Iterator[Call]:
    """The calls from `step` to the last one; none goes beyond a step after which the state is evaluated or saved.

    Every length of a call is a program to compile, so there are two: what is left before such a step, or before the
    gradients turn from ternary to float or back, and is too short for the other, goes step by step. A plan that begins
    where one of these calls ends is the rest of this one: a run that was stopped there goes on by the same programs.

    Args:
      recipe: of the run.
      num_examples: in one epoch.
      step: steps that were taken.
      examples_seen: in them.
    """
    longest = _longest_call(recipe, num_examples)
    while step < recipe.num_steps:
        compresses = compresses_at(recipe, num_examples, step, examples_seen)
        count = _count_alike(recipe, num_examples, step, examples_seen)
        yield from [Call(longest, compresses)] * (count // longest)
        yield from [Call(1, compresses)] * (count % longest)
        step, examples_seen = step + count, examples_seen + count * recipe.batch_size


def compresses_at(recipe: Recipe, num_examples: int, step: int, examples_seen: int) -> bool:
    """Whether the gradients of a step are compressed, before which so many examples were seen."""
    epoch = examples_seen // num_examples
    in_float_epoch = recipe.float_epochs > 0 and (epoch + 1) % recipe.float_epochs == 0
    return recipe.codec != "float" and step >= recipe.ternary_from and not in_float_epoch


def _longest_call(recipe: Recipe, num_examples: int) -> int:
    """Steps of a call of several: at most what lies between two stops, as else all steps would be single ones."""
    epoch = num_examples // recipe.batch_size if recipe.float_epochs else 0
    periods = recipe.evaluate_every, recipe.checkpoint_every, epoch
    return min(recipe.steps_per_call, recipe.num_steps, *(period for period in periods if period))


def _count_alike(recipe: Recipe, num_examples: int, step: int, examples_seen: int) -> int:
    """Steps from `step` to the first after which the host needs the state, or gradients are compressed or no more."""
    compresses, count = compresses_at(recipe, num_examples, step, examples_seen), 1
    while step + count < recipe.num_steps and not _needs_state(recipe, step + count):
        seen = examples_seen + count * recipe.batch_size
        if compresses_at(recipe, num_examples, step + count, seen) != compresses:
            break
        count += 1
    return count


def _needs_state(recipe: Recipe, step: int) -> bool:
    """Whether the host evaluates or saves after so many steps; what it logs, each step has told it."""
    return any(period and step % period == 0 for period in (recipe.evaluate_every, recipe.checkpoint_every))
