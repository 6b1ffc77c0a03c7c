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
    mean turns into another, and is too short for the other, goes step by step. A plan that begins where one of these
    calls ends is the rest of this one: a run that was stopped there goes on by the same programs.

    An epoch has `num_examples`; `examples_seen` were seen in the `step` steps that were taken.
    """
    stops = [period for period in (run.evaluate_every, run.checkpoint_every) if period]
    epoch = num_examples // run.batch_size if mean.float_epochs or mean.density_warmup else 0
    longest = min(run.steps_per_call, run.num_steps, *stops, epoch or run.num_steps)
    while step < run.num_steps:
        # of what lies in between, the host needs no state; what it logs, each step tells it
        goes_on = all((step + longest - 1) // period == step // period for period in stops)
        places = ((step + taken, examples_seen + taken * run.batch_size) for taken in range(longest))
        phases = {phase_at(mean, num_examples, *place) for place in places}
        count = longest if goes_on and step + longest <= run.num_steps and len(phases) == 1 else 1
        yield Call(count, phase_at(mean, num_examples, step, examples_seen))
        step, examples_seen = step + count, examples_seen + count * run.batch_size


def phase_at(mean: MeanSection, num_examples: int, step: int, examples_seen: int) -> int:
    """The phase of a step before which so many examples were seen: 0 without compression, else 1 behind a warm-up."""
    epoch = examples_seen // num_examples
    in_float_epoch = mean.float_epochs > 0 and (epoch + 1) % mean.float_epochs == 0
    if mean.method == "float" or step < mean.compress_from or in_float_epoch:
        return 0
    return 1 + max(0, len(mean.density_warmup) - epoch)
