"""Which steps go to the devices together, and by which mean."""

from collections.abc import Iterator
from typing import NamedTuple

from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.run import RunSection


class Call(NamedTuple):
    """Steps that the devices take without the host.

    Attributes:
      num_steps: one, or as many as in every other call of several.
      phase: of the run, the place of their mean in `Program.means`; 0 is the one without compression.
    """

    num_steps: int
    phase: int


def plan_calls(run: RunSection, mean: MeanSection, num_examples: int, step: int, examples_seen: int) -> Iterator[Call]:
    """The calls from `step` to the last one; none goes beyond a step after which the state is evaluated or saved.

    Every length of a call is a program to compile, so there are two: what is left before such a step, or before the
    mean turns into another, and is too short for the other, goes step by step. A plan that begins
    where one of these calls ends is the rest of this one: a run that was stopped there goes on by the same programs.

    Args:
      run: how many steps, and which of them stop a call.
      mean: which of its steps go by which mean.
      num_examples: in one epoch.
      step: steps that were taken.
      examples_seen: in them.
    """
    longest = _longest_call(run, mean, num_examples)
    while step < run.num_steps:
        go_together = _go_together(run, mean, num_examples, step, examples_seen, longest)
        count = longest if go_together else 1
        yield Call(count, phase_at(mean, num_examples, step, examples_seen))
        step, examples_seen = step + count, examples_seen + count * run.batch_size


def phase_at(mean: MeanSection, num_examples: int, step: int, examples_seen: int) -> int:
    """The phase of a step before which so many examples were seen: 0 without compression, else 1 behind a warm-up."""
    epoch = examples_seen // num_examples
    in_float_epoch = mean.float_epochs > 0 and (epoch + 1) % mean.float_epochs == 0
    if mean.method == "float" or step < mean.compress_from or in_float_epoch:
        return 0
    return 1 + max(0, len(mean.density_warmup) - epoch)


def _longest_call(run: RunSection, mean: MeanSection, num_examples: int) -> int:
    """Steps of a call of several: at most what lies between two stops, as else all steps would be single ones."""
    epoch = num_examples // run.batch_size if mean.float_epochs or mean.density_warmup else 0
    periods = run.evaluate_every, run.checkpoint_every, epoch
    return min(run.steps_per_call, run.num_steps, *(period for period in periods if period))


def _go_together(
    run: RunSection, mean: MeanSection, num_examples: int, step: int, examples_seen: int, count: int
) -> bool:
    """Whether the next `count` steps are there, need the host at most behind the last, and go by the same mean."""
    phase = phase_at(mean, num_examples, step, examples_seen)
    return step + count <= run.num_steps and all(
        phase_at(mean, num_examples, step + taken, examples_seen + taken * run.batch_size) == phase
        and not _needs_state(run, step + taken)
        for taken in range(1, count)
    )


def _needs_state(run: RunSection, step: int) -> bool:
    """Whether the host evaluates or saves after so many steps; what it logs, each step has told it."""
    return any(period and step % period == 0 for period in (run.evaluate_every, run.checkpoint_every))
