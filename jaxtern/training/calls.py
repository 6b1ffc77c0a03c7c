"""Which steps go to the devices together, and which of them exchange float gradients."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxtern.training.recipe import Recipe


class Call(NamedTuple):
    """Steps that the devices take without the host.

    Attributes:
      num_steps: 1 to `steps_per_call`.
      compresses: whether their gradients are compressed.
    """

    num_steps: int
    compresses: bool


def plan_calls(recipe: Recipe, num_examples: int, step: int, examples_seen: int) -> Iterator[Call]:
    """The calls from `step` to the last one; none goes beyond a step after which something is logged or saved.

    Args:
      recipe: of the run.
      num_examples: in one epoch.
      step: steps that were taken.
      examples_seen: in them.
    """
    while step < recipe.num_steps:
        compresses, count = compresses_at(recipe, num_examples, step, examples_seen), 1
        most = min(recipe.steps_per_call, recipe.num_steps - step)
        while count < most and not _ends_call(recipe, step + count):
            seen = examples_seen + count * recipe.batch_size
            if compresses_at(recipe, num_examples, step + count, seen) != compresses:
                break
            count += 1
        yield Call(count, compresses)
        step, examples_seen = step + count, examples_seen + count * recipe.batch_size


def compresses_at(recipe: Recipe, num_examples: int, step: int, examples_seen: int) -> bool:
    """Whether the gradients of a step are compressed, before which so many examples were seen."""
    epoch = examples_seen // num_examples
    in_float_epoch = recipe.float_epochs > 0 and (epoch + 1) % recipe.float_epochs == 0
    return recipe.codec != "float" and step >= recipe.ternary_from and not in_float_epoch


def _ends_call(recipe: Recipe, step: int) -> bool:
    """Whether the host has to look at the state after so many steps."""
    periods = recipe.log_every, recipe.evaluate_every, recipe.checkpoint_every
    return any(period and step % period == 0 for period in periods)
