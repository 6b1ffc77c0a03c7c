"""The section `run` of a recipe."""

import dataclasses
from typing import Literal

from jaxtern.training.recipe.field_types import Natural, Positive, Section


@dataclasses.dataclass(frozen=True)
class RunSection(Section):
    """Workers and steps, and what is logged, evaluated and saved.

    Attributes:
      dry_run: whether only to describe the training, and try three small steps on made data, without writing anything.
      num_workers: N, workers whose gradients are averaged; a device may have several.
      num_devices: devices to use; None: as many as the workers divide among.
      virtual_workers: workers of a device: "unrolled" (same bits on any number of devices) or "vmapped" (compiles
        faster).
      batch_size: examples of a step, over all workers.
      accumulation: parts of a worker's batch, whose gradients are added one after another before the exchange.
      num_steps: updates of the weights.
      steps_per_call: most steps that the devices take without the host; above 1, the feed must be resident. Steps left
        over before an evaluation, a checkpoint, or a change from or to float gradients are taken one by one. None: on
        GPUs with a resident feed the most, up to 100, that leave none over; else 1.
      seed: seed of the weights, the order of examples and the noise.
      log_every: steps between lines of the log; those of a call are written after it.
      histograms_every: steps between histograms, and shares of zeros, of all weights and mean gradients; 0: none.
      evaluate_every: steps between evaluations on the test split; 0: only at the end.
      compare_every: steps between comparisons of the devices' copies of weights, optimiser and all else they share; the
        run stops if they differ. They are compared before every checkpoint, too. 0: never. Under local steps, anything
        but 0 means every `local.steps`.
      checkpoint_every: steps between checkpoints.
      keep_checkpoints: number of last checkpoints to keep.
      keep_best: number of checkpoints to keep in addition, those of best precision@1 (of equals the latest) among those
        evaluated when they were written.
    """

    dry_run: bool = False
    num_workers: Positive = 4
    num_devices: Positive | None = None
    virtual_workers: Literal["unrolled", "vmapped"] = "unrolled"
    batch_size: Positive = 64
    accumulation: Positive = 1
    num_steps: Positive = 1000
    steps_per_call: Positive | None = None
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
