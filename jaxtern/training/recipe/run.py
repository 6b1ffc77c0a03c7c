"""The section `run` of a recipe."""

import dataclasses
from typing import Literal

from jaxtern.training.recipe.field_types import Natural, Positive, Section


@dataclasses.dataclass(frozen=True)
class RunSection(Section):
    """How many workers train for how many steps, and what is logged, evaluated and saved on the way.

    Attributes:
      dry_run: only say what would be trained, and train three small steps of it on made data; nothing is written.
      num_workers: N, workers whose gradients are averaged; more than one may live on a device.
      num_devices: devices to spread them over; None: as many as there are on which the workers divide.
      virtual_workers: of one device: "unrolled" (same bits on any number of devices) or "vmapped" (compiles faster).
      batch_size: examples of one step over all workers.
      accumulation: parts of a worker's batch whose gradients are added one behind another, before one exchange.
      num_steps: updates of the weights.
      steps_per_call: that the devices take without the host, at most; the feed must be resident. What is left of them
        before an evaluation, a checkpoint, or a change from or to float gradients goes step by step.
      seed: of the weights, the order of the examples and the noise.
      log_every: steps between lines of the log; those of a call are written when it has ended.
      histograms_every: steps between histograms and shares of zeros of every tensor, of weights and of mean gradients.
      evaluate_every: steps between evaluations on the test split; 0: only at the end.
      compare_every: steps between comparisons of the devices' copies of weights, optimiser and all else they share,
        which stop the run where one differs; they are compared before every checkpoint, too. 0: never. Under local
        steps it is once in `local.steps` where this is not 0.
      checkpoint_every: steps between checkpoints.
      keep_checkpoints: how many of the last ones to keep.
      keep_best: how many besides, of best precision@1, of equals the later, of those evaluated when they were written.
    """

    dry_run: bool = False
    num_workers: Positive = 4
    num_devices: Positive | None = None
    virtual_workers: Literal["unrolled", "vmapped"] = "unrolled"
    batch_size: Positive = 64
    accumulation: Positive = 1
    num_steps: Positive = 1000
    steps_per_call: Positive = 1
    seed: Natural = 0
    log_every: Positive = 100
    histograms_every: Natural = 0
    evaluate_every: Natural = 0
    compare_every: Natural = 100
    checkpoint_every: Positive = 1000
    keep_checkpoints: Positive = 3
    keep_best: Natural = 0

    def __post_init__(self):
        super().__post_init__()
        need = f"must be a multiple of run.num_workers={self.num_workers}"
        self.require(self.batch_size % self.num_workers == 0, "batch_size", need)
