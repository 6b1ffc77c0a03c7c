"""Learning rates over steps.

optax's schedules divide the step by a constant, which a compiled program may turn into a product with its inverse. A
stair could then come a step late, and a root be NaN at the last step. Here stairs are counted in integers.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxtern.training.recipe.optimizer import OVER_ALL_STEPS, OptimizerSection
from jaxtern.training.recipe.rates import Span, parse_rates
from jaxtern.training.recipe.run import RunSection

_MAX_STEP = 2**31 - 1  # a step is an int32
_ROUNDING = 1e-6  # of a step: 0.29 epochs of 100 steps are 28.999999999999996

_Rates = Callable[[jax.Array], jax.Array]


def create_schedule(optimizer: OptimizerSection, run: RunSection, num_examples: int) -> optax.Schedule:
    """The rate at each step, counted from 0; the epoch is step * batch_size / num_examples.

    fixed        rate
    exponential  rate * decay_factor^floor(step / steps in decay_epochs)
    piecewise    rate * decay_factor^(boundaries at or before the epoch)
    polynomial   end_rate + (rate - end_rate) * (1 - step / num_steps)^power
    cosine       end_rate + (rate - end_rate) * (1 + cos(pi step / num_steps)) / 2
    "E:A->B"     A + (B - A) * u, where u is the share of the span, from the previous END to E, that is over
    "E:A=>B"     A * (B / A)^u

    At an END the next span holds; after the last END, its last rate stays. Before warmup_steps the rate is
    warmup_rate + (peak - warmup_rate) * step / warmup_steps. The peak is warmup_peak; if that is None, the schedule's
    own rate at warmup_steps, or learning_rate for polynomial and cosine if the run ends before. If rate_batch_size is
    given, all rates are multiplied by batch_size / rate_batch_size.

    Args:
      optimizer: names the schedule and its numbers.
      run: number of steps, and batch size.
      num_examples: examples in an epoch.

    Returns:
      A function of an int or traced int32 scalar, to a float32 scalar.
    """
    main = _create_main(optimizer, run.num_steps, num_examples / run.batch_size)
    factor = run.batch_size / optimizer.rate_batch_size if optimizer.rate_batch_size else 1.0
    steps, first = optimizer.warmup_steps, optimizer.warmup_rate
    is_cut = optimizer.schedule in OVER_ALL_STEPS and steps >= run.num_steps

    def schedule(step: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(step)
        rate = main(step)
        if steps:
            peak = optimizer.warmup_peak
            if peak is None:
                peak = optimizer.learning_rate if is_cut else main(jnp.asarray(steps))
            warming = first + (peak - first) * (step / steps)
            rate = jnp.where(step < steps, warming, rate)
        return jnp.asarray(factor * rate, jnp.float32)

    return schedule


def _create_main(optimizer: OptimizerSection, steps: int, steps_per_epoch: float) -> _Rates:
    """The schedule without warm-up and scaling."""
    rate, end = optimizer.learning_rate, optimizer.end_rate
    if ":" in optimizer.schedule:
        return _follow_spans(parse_rates(optimizer.schedule), steps_per_epoch)
    if optimizer.schedule == "exponential":
        stair = max(1, int(min(optimizer.decay_epochs * steps_per_epoch + _ROUNDING, _MAX_STEP)))
        return lambda step: rate * _power(optimizer.decay_factor, step // stair)
    if optimizer.schedule == "piecewise":
        starts = np.array([_first_step(epoch, steps_per_epoch) for epoch in optimizer.boundaries], np.int32)
        return lambda step: rate * _power(optimizer.decay_factor, _count_passed(starts, step))
    if optimizer.schedule == "polynomial":
        return lambda step: end + (rate - end) * jnp.power(jnp.maximum(steps - step, 0) / steps, optimizer.power)
    if optimizer.schedule == "cosine":
        return lambda step: end + (rate - end) * (1 + jnp.cos(jnp.pi * jnp.minimum(step, steps) / steps)) / 2
    return lambda step: jnp.full_like(step, rate, jnp.float32)


def _follow_spans(spans: tuple[Span, ...], steps_per_epoch: float) -> _Rates:
    """The rates of a rate string: (first + slope * u) * exp(growth * u), where slope or growth is 0."""
    ends = np.minimum([span.end * steps_per_epoch for span in spans], _MAX_STEP)
    begins = np.array([0, *ends[:-1]], np.float32)
    lengths = np.diff(ends, prepend=0).astype(np.float32)
    changes = np.array([_first_step(span.end, steps_per_epoch) for span in spans[:-1]], np.int32)
    firsts = np.array([span.first for span in spans], np.float32)
    slopes = np.array([0 if span.exponential else span.last - span.first for span in spans], np.float32)
    growths = np.array([math.log(s.last / s.first) if s.exponential else 0 for s in spans], np.float32)

    def schedule(step: jax.Array) -> jax.Array:
        i = _count_passed(changes, step)
        begin, length, first, slope, growth = (jnp.asarray(x)[i] for x in (begins, lengths, firsts, slopes, growths))
        share = jnp.clip((step - begin) / length, 0, 1)
        return (first + slope * share) * jnp.exp(growth * share)

    return schedule


def _first_step(epoch: float, steps_per_epoch: float) -> int:
    """The first step at or after an epoch."""
    return math.ceil(min(epoch * steps_per_epoch - _ROUNDING, _MAX_STEP))


def _count_passed(starts: np.ndarray, step: jax.Array) -> jax.Array:
    """How many of these rising steps are at or before `step`."""
    return jnp.searchsorted(starts, step, side="right", method="compare_all")


def _power(factor: float, stairs: jax.Array) -> jax.Array:
    """factor^stairs, with 0^0 = 1."""
    return jnp.power(factor, stairs.astype(jnp.float32))
