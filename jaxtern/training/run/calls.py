"""Plans which steps the devices take together, and with which mean."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import jax

from jaxtern.training.recipe.mean import MeanSection
from jaxtern.training.recipe.run import RunSection

_MOST_STEPS = 100  # of a call by default; the run hears no signal within one


class Call(NamedTuple):
    """Steps that the devices take without the host."""

    num_steps: int  # 1, or the one larger number of this run
    phase: int  # index of their mean in `Program.means`; 0 is without compression


def steps_per_call(run: RunSection, is_resident: bool) -> int:
    """`run.steps_per_call`, or its default: on GPUs the largest divisor of the steps between stops and log lines.

    A GPU waits for the host after every call, for longer than a step of a small network takes.
    """
    if run.steps_per_call is not None:
        return run.steps_per_call
    if not is_resident or jax.default_backend() != "gpu":
        return 1
    common = math.gcd(run.num_steps, run.log_every, run.evaluate_every, run.checkpoint_every)
    return max(steps for steps in range(1, _MOST_STEPS + 1) if common % steps == 0)


def plan_calls(run: RunSection, mean: MeanSection, num_examples: int, step: int, examples_seen: int) -> Iterator[Call]:
    """Yields the calls from `step` to the last step; none extends over an evaluation, a checkpoint or a phase's end.

    As each length is a program to compile, there are two: the longest one, and single steps for what is left over. A
    resumed run makes the same calls. An epoch has `num_examples`; `examples_seen` are those of the first `step` steps.
    """
    stops = [period for period in (run.evaluate_every, run.checkpoint_every) if period]
    epoch = num_examples // run.batch_size if mean.float_epochs or mean.density_warmup else 0
    longest = min(run.steps_per_call or 1, run.num_steps, *stops, epoch or run.num_steps)
    while step < run.num_steps:
        # The host needs no state in between; metrics come from each step.
        goes_on = all((step + longest - 1) // period == step // period for period in stops)
        places = ((step + taken, examples_seen + taken * run.batch_size) for taken in range(longest))
        phases = {phase_at(mean, num_examples, *place) for place in places}
        count = longest if goes_on and step + longest <= run.num_steps and len(phases) == 1 else 1
        yield Call(count, phase_at(mean, num_examples, step, examples_seen))
        step, examples_seen = step + count, examples_seen + count * run.batch_size


def phase_at(mean: MeanSection, num_examples: int, step: int, examples_seen: int) -> int:
    """The phase of a step: 0 with float gradients in place of the method's, more than 1 in a warm-up, then 1."""
    if mean.method == "float":
        return 1
    epoch = examples_seen // num_examples
    in_float_epoch = mean.float_epochs > 0 and (epoch + 1) % mean.float_epochs == 0
    if step < mean.compress_from or in_float_epoch:
        return 0
    return 1 + max(0, len(mean.density_warmup) - epoch)
