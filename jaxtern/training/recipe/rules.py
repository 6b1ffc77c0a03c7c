"""Which values the fields of a recipe take, and which go together."""

import re
from typing import Any

from jaxtern.training.recipe.field_types import require_types
from jaxtern.training.recipe.masks import split_slice
from jaxtern.training.recipe.rates import is_rate_string, parse_rates

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars", "lamb")
SCHEDULES = ("fixed", "exponential", "piecewise", "polynomial", "cosine")
_TO_LAST_STEP = ("polynomial", "cosine")  # fall until num_steps

CHOICES = {
    "virtual_workers": ("unrolled", "vmapped"),
    "codec": ("ternary", "float"),
    "feed": ("auto", "resident", "streaming"),
    "batch_norm": ("local", "first", "sync"),
    "precision": ("float32", "bfloat16", "float16"),
    "optimizer": OPTIMIZERS,
    "weight_decay_mode": ("loss", "decoupled"),
}
_LEAST = {
    "synthetic_classes": 1,
    "synthetic_examples": 1,
    "sequence_length": 1,
    "decode_processes": 0,
    "num_workers": 1,
    "batch_size": 1,
    "accumulation": 1,
    "num_steps": 1,
    "steps_per_call": 1,
    "float_epochs": 0,
    "ternary_from": 0,
    "loss_scale": 1,
    "trust_coefficient": 0,
    "learning_rate": 0,
    "decay_factor": 0,
    "power": 0,
    "end_rate": 0,
    "warmup_steps": 0,
    "warmup_rate": 0,
    "weight_decay": 0,
    "seed": 0,
    "log_every": 1,
    "evaluate_every": 0,
    "compare_every": 0,
    "checkpoint_every": 1,
    "keep_checkpoints": 1,
    "keep_best": 0,
    "decay_epochs": 1e-9,
}
_LEAST_WHERE_GIVEN = {
    "num_devices": 1,
    "devices_per_worker": 1,
    "bucket_size": 1,
    "image_size": 1,
    "decode_threads": 1,
    "rate_batch_size": 1,
    "dropout_rate": 0,
    "warmup_peak": 0,
}
_MOST = {"decode_threads": 4096, "decode_processes": 4096, "image_size": 2**14}
_BELOW_ONE = ("dropout_rate", "label_smoothing", "average_decay", "momentum")
_PATTERNS = ("exclude", "decay", "init_exclude", "train_only")


def require_valid(recipe: Any) -> None:
    """Refuses a recipe with a value out of its range, or with fields that do not go together.

    Raises:
      ValueError: naming the field, its value and the rule.
    """
    require_types(recipe)
    _require_ranges(recipe)
    _require_batch(recipe)
    _require_schedule(recipe)
    for name in _PATTERNS:
        _require_patterns(name, getattr(recipe, name))
    for entry in recipe.freeze:
        _require_pattern("freeze", entry, split_slice(entry)[0])
    _require_mean(recipe)


def _require_ranges(recipe: Any) -> None:
    for name, choices in CHOICES.items():
        if getattr(recipe, name) not in choices:
            raise ValueError(f"{name}={getattr(recipe, name)!r}: must be one of {', '.join(choices)}")
    for name, least in (_LEAST | _LEAST_WHERE_GIVEN).items():
        value = getattr(recipe, name)
        if value is None and name in _LEAST_WHERE_GIVEN:
            continue
        if value is None or value < least:
            raise ValueError(f"{name}={value!r}: must be {least} or more")
    for name, most in _MOST.items():
        if (getattr(recipe, name) or 0) > most:
            raise ValueError(f"{name}={getattr(recipe, name)!r}: must be {most:,} or less")
    for name in _BELOW_ONE:
        value = getattr(recipe, name)
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{name}={value!r}: must be 0 or more, and below 1")


def _require_schedule(recipe: Any) -> None:
    """Refuses rates that cannot be read, stairs that do not rise, and a warm-up that leaves no step to the schedule."""
    if is_rate_string(recipe.schedule):
        parse_rates(recipe.schedule)
    elif recipe.schedule not in SCHEDULES:
        raise ValueError(f"schedule={recipe.schedule!r}: must be one of {', '.join(SCHEDULES)}, or rates over epochs")
    if recipe.schedule == "piecewise" and not recipe.boundaries:
        raise ValueError("boundaries=(): must hold an epoch or more where schedule='piecewise'")
    if any(not epoch > before for before, epoch in zip((0, *recipe.boundaries), recipe.boundaries, strict=False)):
        raise ValueError(f"boundaries={recipe.boundaries}: must be epochs that rise from above 0")
    if recipe.schedule in _TO_LAST_STEP and recipe.warmup_steps >= recipe.num_steps:
        # the rate would rise to what these have at their end, which is mostly 0
        raise ValueError(
            f"warmup_steps={recipe.warmup_steps}: must be below num_steps={recipe.num_steps} where"
            f" schedule={recipe.schedule!r}"
        )


def _require_batch(recipe: Any) -> None:
    """Refuses a batch that does not divide among all workers, their devices, and the parts of an accumulation."""
    if recipe.batch_size % recipe.num_workers:
        raise ValueError(f"batch_size={recipe.batch_size}: must be a multiple of num_workers={recipe.num_workers}")
    of_worker = recipe.batch_size // recipe.num_workers
    if of_worker % recipe.worker_devices:
        raise ValueError(
            f"batch_size={recipe.batch_size}: each worker's part must be a multiple of"
            f" devices_per_worker={recipe.devices_per_worker}"
        )
    of_device = of_worker // recipe.worker_devices
    if of_device % recipe.accumulation:
        raise ValueError(
            f"accumulation={recipe.accumulation}: must divide the {of_device} examples that a device has of a batch"
        )


def _require_mean(recipe: Any) -> None:
    """Refuses a mean of gradients that its other fields do not allow."""
    if recipe.delayed and recipe.log_compression:
        raise ValueError("log_compression=True: must be False where delayed=True, whose means are of other gradients")
    if recipe.delayed and recipe.precision == "float16":
        raise ValueError(
            "precision='float16': must be another where delayed=True, by which a mean comes in a step that may be"
            " skipped for another's overflow"
        )
    for name in ("float_epochs", "ternary_from"):
        if recipe.delayed and getattr(recipe, name):
            raise ValueError(
                f"{name}={getattr(recipe, name)}: must be 0 where delayed=True, whose words come a step late"
            )


def _require_patterns(name: str, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        _require_pattern(name, pattern, pattern)


def _require_pattern(name: str, entry: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (
        re.error,
        OverflowError,
        RecursionError,
    ) as error:  # of "a{99999999999}" and many brackets
        raise ValueError(f"{name}={entry!r}: is no regular expression: {error}") from None
