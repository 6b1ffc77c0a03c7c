"""Everything that decides a run, by name: the fields of a recipe, what they mean, and which values they take."""

import dataclasses
import difflib
import math
import re
from typing import Any

from jaxtern.compression.buckets import BUCKET_SIZE

OPTIMIZERS = ("sgd", "momentum", "adam", "rmsprop")
SCHEDULES = ("fixed", "exponential", "polynomial", "cosine")
DECAY_MODES = ("loss", "decoupled")
VIRTUAL_WORKERS = ("unrolled", "vmapped")
CODECS = ("ternary", "float")
FEEDS = ("auto", "resident", "streaming")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run's settings; `configs/` holds ready ones, and a command line may override any field.

    Attributes:
      dataset: what to train on: "digits" (carried by scikit-learn), "synthetic", the path of a prepared folder (with a
        slash in it), or a name that TFDS knows ("mnist" also from its four idx files in `data_dir`).
      data_dir: folder of TFDS's datasets, or of idx files; None for a dataset that needs none, or TFDS's default.
      train_split: what of a prepared dataset to train on, a split or a part of one: "train[:90%]".
      test_split: what to evaluate on, likewise; None: "test", or "validation" where there is no such split.
      synthetic_shape: height, width, channels of the images of "synthetic".
      synthetic_classes: their classes.
      synthetic_examples: how many to train on.
      preprocessing: what becomes of the images, in training and evaluation: "mnist", "cifar10", "alexnet", "vgg",
        "inception" (also for GoogLeNet and ResNet) or "vgg_f".
      image_size: pixels, side of the images after that; None: as the preprocessing has it.
      feed: "resident" (images lie on the devices), "streaming" (they are read and decoded beside training) or "auto":
        resident where the preprocessing takes whole images, and all of them together are at most 1 GiB.
      decode_threads: that decode at the same time, in each process; None: one, without processes one a core.
      decode_processes: to decode in; 0: in the trainer's own. Neither changes any bit of a run.
      model: name of the network.
      num_workers: N, workers whose gradients are averaged; more than one may live on a device.
      num_devices: devices to spread them over; None: as many as there are on which the workers divide.
      virtual_workers: how the workers of one device are run: "unrolled" (bit-identical on any number of devices) or
        "vmapped" (compiles faster).
      batch_size: examples of one step over all workers.
      num_steps: updates of the weights.
      codec: "ternary", or "float" for a plain mean.
      exchange: "auto" (the fastest of the exact ones by the links' latency and bandwidth), "gather", "sum", "scatter",
        "two_way" (fewest bits, more noise) or "float".
      devices_per_worker: devices that share a worker's batch; their gradients are averaged as floats before the
        workers' are exchanged.
      bucket_size: elements; gradients are exchanged in buckets of about so many, the last layers' first; None: all in
        one.
      delayed: whether the weights move by the mean of the step before, which is exchanged beside this step's work.
      network_latency: seconds a message takes between workers, for "auto"; None: measured at the start.
      network_bandwidth: bytes a second that a worker can send, likewise.
      clip_sigmas: clip gradients at so many standard deviations of their tensor; 0: do not.
      scale: "exact" or "pow2".
      block_size: elements under one scale; None: a whole tensor.
      levels: levels a side; 1 is ternary.
      min_size: tensors with fewer elements stay float.
      float_last_layer: whether the last layer's gradients stay float.
      exclude: regular expressions; a tensor whose whole path ("conv1/kernel") matches one stays float.
      optimizer: "sgd", "momentum", "adam" or "rmsprop".
      momentum: of the optimiser "momentum".
      learning_rate: at the start.
      schedule: "fixed", "exponential" (a staircase), "polynomial" or "cosine" (both to 0 at the last step).
      decay_epochs: epochs between the stairs of "exponential".
      decay_factor: by which each of them multiplies the rate.
      power: of "polynomial": rate (1 - t/T)^power.
      weight_decay: factor of L2 over the kernels.
      weight_decay_mode: "loss": weight_decay * sum(w^2) / 2 is part of every worker's loss, so of what is compressed;
        "decoupled": rate * weight_decay * w is taken off the weights.
      seed: of the weights, the order of the examples and the noise.
      log_every: steps between lines of the log.
      log_compression: also log zero trits, scale, and cosine to the float mean; costs a float exchange a step.
      evaluate_every: steps between evaluations on the test split; 0: only at the end.
      checkpoint_every: steps between checkpoints.
      keep_checkpoints: how many to keep.
    """

    dataset: str = "digits"
    data_dir: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    synthetic_shape: tuple[int, ...] = (224, 224, 3)
    synthetic_classes: int = 1000
    synthetic_examples: int = 1024
    preprocessing: str = "mnist"
    image_size: int | None = None
    feed: str = "auto"
    decode_threads: int | None = None
    decode_processes: int = 0
    model: str = "lenet"
    num_workers: int = 4
    num_devices: int | None = None
    virtual_workers: str = "unrolled"
    batch_size: int = 64
    num_steps: int = 1000
    codec: str = "ternary"
    exchange: str = "auto"
    devices_per_worker: int = 1
    bucket_size: int | None = BUCKET_SIZE
    delayed: bool = False
    network_latency: float | None = None
    network_bandwidth: float | None = None
    clip_sigmas: float = 2.5
    scale: str = "exact"
    block_size: int | None = None
    levels: int = 1
    min_size: int = 1
    float_last_layer: bool = False
    exclude: tuple[str, ...] = ()
    optimizer: str = "momentum"
    momentum: float = 0.9
    learning_rate: float = 0.01
    schedule: str = "fixed"
    decay_epochs: float = 20.0
    decay_factor: float = 0.1
    power: float = 0.5
    weight_decay: float = 0.0
    weight_decay_mode: str = "loss"
    seed: int = 0
    log_every: int = 100
    log_compression: bool = False
    evaluate_every: int = 0
    checkpoint_every: int = 1000
    keep_checkpoints: int = 3

    def __post_init__(self):
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be one of {', '.join(choices)}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not math.isfinite(value) or value < least:
                raise ValueError(f"{name}={value!r}: must be {least} or more")
        self._require_batch()
        for name in ("num_devices", "bucket_size", "image_size", "decode_threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be 1 or more")
        if self.delayed and self.log_compression:
            raise ValueError(
                "log_compression=True: must be False where delayed=True, whose means are of other gradients"
            )
        if not self.seed < 2**32:
            raise ValueError(f"seed={self.seed}: must be below 2^32")
        _require_patterns(self.exclude)

    def _require_batch(self) -> None:
        """Refuses a batch that does not divide among all workers and devices."""
        if self.batch_size % self.num_workers:
            raise ValueError(f"batch_size={self.batch_size}: must divide among num_workers={self.num_workers}")
        if self.batch_size // self.num_workers % self.devices_per_worker:
            raise ValueError(
                f"batch_size={self.batch_size}: each worker's part must divide among"
                f" devices_per_worker={self.devices_per_worker}"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Recipe":
        """A recipe of these fields, the others at their defaults.

        Raises:
          ValueError: for an unknown field, or a value out of its range.
        """
        for name in values:
            require_field(name)
        fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in values.items()}
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them."""
        values = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _require_patterns(patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"exclude={pattern!r}: is no regular expression: {error}") from None


def require_field(name: str) -> None:
    """Refuses a name that is no field, naming those like it."""
    known = [field.name for field in dataclasses.fields(Recipe)]
    if name not in known:
        near = difflib.get_close_matches(name, known, cutoff=0.4) or known
        raise ValueError(f"{name!r} is no field of a recipe; there is {', '.join(near)}")


_CHOICES = {
    "virtual_workers": VIRTUAL_WORKERS,
    "codec": CODECS,
    "feed": FEEDS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "weight_decay_mode": DECAY_MODES,
}

_LEAST = {
    "synthetic_classes": 1,
    "synthetic_examples": 1,
    "decode_processes": 0,
    "num_workers": 1,
    "devices_per_worker": 1,
    "batch_size": 1,
    "num_steps": 1,
    "momentum": 0,
    "learning_rate": 0,
    "decay_factor": 0,
    "power": 0,
    "weight_decay": 0,
    "seed": 0,
    "log_every": 1,
    "evaluate_every": 0,
    "checkpoint_every": 1,
    "keep_checkpoints": 1,
    "decay_epochs": 1e-9,
}
