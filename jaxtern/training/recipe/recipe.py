"""Everything that decides a run, by name: the fields of a recipe, and what they mean."""

import dataclasses
import difflib
from typing import Any

from jaxtern.compression.buckets import BUCKET_SIZE
from jaxtern.compression.codecs import Ternary
from jaxtern.training.recipe.rules import require_valid


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run's settings; `configs/` holds ready ones, and a command line may override any field.

    Attributes:
      dry_run: only say what would be trained, and train three small steps of it on made data; nothing is read but data
        that are there, and nothing is written.
      dataset: what to train on: "digits" (carried by scikit-learn), "synthetic", the path of a prepared folder or of a
        text file (with a slash in it), or a name that TFDS knows ("mnist" also from its four idx files in `data_dir`).
      data_dir: folder of TFDS's datasets, or of idx files; None for a dataset that needs none, or TFDS's default.
      train_split: what of a prepared dataset to train on, a split or a part of one: "train[:90%]".
      test_split: what to evaluate on, likewise; None: "test", or "validation" where there is no such split.
      synthetic_shape: height, width, channels of the images of "synthetic".
      synthetic_classes: their classes.
      synthetic_examples: how many to train on.
      preprocessing: what becomes of the images, in training and evaluation: "mnist", "cifar10", "alexnet", "vgg",
        "inception" (also for GoogLeNet and ResNet), "vgg_f"; or "text".
      image_size: pixels, side of the images after that; None: as the preprocessing has it.
      sequence_length: characters of an example of text.
      feed: "resident" (images lie on the devices), "streaming" (they are read and decoded beside training) or "auto":
        resident where the preprocessing takes whole images, and all of them together are at most 1 GiB.
      decode_threads: that decode at the same time, in each process; None: one, without processes one a core.
      decode_processes: to decode in; 0: in the trainer's own. Neither changes any bit of a run.
      model: name of the network, of those that `jaxtern.models.MODELS` and docs/training.md list.
      dropout_rate: share of activations that are dropped in training; None: as the network has it.
      batch_norm: whose moments normalise in training: "local" (each worker's own; the moving ones are averaged over the
        workers), "first" (likewise, but the moving ones are worker 0's) or "sync" (those of all workers' examples).
      precision: of activations and products, "float32", "bfloat16" or "float16", which scales the loss, and skips steps
        whose gradients overflow on any worker, which schedules do not count; weights are float32.
      loss_scale: at the start, for "float16".
      label_smoothing: share of the target that is spread over all classes.
      init_from: a run's folder, one of its checkpoints, or a .safetensors file of torchvision's weights to start from.
      init_exclude: regular expressions; a tensor whose whole path matches one starts fresh.
      init_allow_missing: whether tensors that `init_from` lacks start fresh, too.
      train_only: regular expressions; only tensors whose whole path ("fc3/kernel") matches one are trained.
      freeze: regular expressions; a tensor whose whole path matches one is not trained. Of "conv2/kernel[:, :, 29, 13]"
        only the slice is not; a class of characters at an end that reads as a slice is put in parentheses, "(w[12])".
      num_workers: N, workers whose gradients are averaged; more than one may live on a device.
      num_devices: devices to spread them over; None: as many as there are on which the workers divide.
      virtual_workers: how the workers of one device are run: "unrolled" (bit-identical on any number of devices) or
        "vmapped" (compiles faster).
      batch_size: examples of one step over all workers.
      accumulation: parts of a worker's batch whose gradients are added one behind another, before one exchange.
      num_steps: updates of the weights.
      steps_per_call: that the devices take without the host, at most; the feed must be resident. What is left of them
        before an evaluation, a checkpoint, or a change from or to float gradients goes step by step. CPUs run them
        unrolled.
      codec: "ternary", or "float" for a plain mean.
      float_epochs: F: every F-th epoch exchanges float gradients; 0: none does.
      ternary_from: step from which on gradients are ternary; before, they are float.
      exchange: "auto" (the fastest of the exact ones by the links' latency and bandwidth), "gather", "sum", "scatter",
        "two_way" (fewest bits, more noise) or "float".
      devices_per_worker: devices that share a worker's batch; their gradients are averaged as floats before the
        workers' are exchanged. None: 1; or where each of several processes has more devices than workers, as many as
        share one evenly.
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
      optimizer: "sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop", "lars" or "lamb".
      momentum: of "momentum", "nesterov" and "lars".
      trust_coefficient: of "lars".
      learning_rate: at the start.
      rate_batch_size: the batch for which the rate is meant: it is multiplied by batch_size / rate_batch_size; None: it
        is meant for any.
      schedule: "fixed", "exponential" (a staircase), "piecewise", "polynomial" or "cosine" (both to `end_rate` at the
        last step); or rates over epochs, in place of `learning_rate`: "5:0.01->0.4,30:0.4,60:0.04" rises to .4 in 5
        epochs ("->" linearly, "=>" exponentially), stays there until epoch 30, then is .04 (from 60 on, too).
      decay_epochs: epochs between the stairs of "exponential".
      boundaries: epochs at which "piecewise" has its stairs.
      decay_factor: by which each stair multiplies the rate.
      power: of "polynomial": rate (1 - t/T)^power.
      end_rate: of "polynomial" and "cosine".
      warmup_steps: in which the rate rises linearly from `warmup_rate` to `warmup_peak`.
      warmup_rate: rate at step 0 of the warm-up.
      warmup_peak: rate that it rises to; None: what the schedule has behind it.
      weight_decay: factor of L2 over what is decayed.
      weight_decay_mode: "loss": weight_decay * sum(w^2) / 2 is part of every worker's loss, so of what is compressed;
        "decoupled": rate * weight_decay * w is taken off the weights. "adamw", "lars" and "lamb" decay by themselves.
      decay: regular expressions; a tensor whose whole path matches one is decayed; none: as the network has it.
      average_decay: of moving averages of weights and moments, which are evaluated in place of the last ones; in step
        t, counted from 1, it is min(average_decay, (1 + t) / (10 + t)). 0: none are kept.
      seed: of the weights, the order of the examples and the noise.
      log_every: steps between lines of the log; those of a call are written when it has ended.
      log_compression: also log zero trits, scale, and cosine to the float mean; costs a float exchange a step.
      evaluate_every: steps between evaluations on the test split; 0: only at the end.
      compare_every: steps between comparisons of the devices' copies of weights, optimiser and all else they share,
        which stop the run where one differs; they are compared before every checkpoint, too. 0: never.
      checkpoint_every: steps between checkpoints.
      keep_checkpoints: how many of the last ones to keep.
      keep_best: how many to keep besides, of those that were evaluated when they were written: those of best
        precision@1, of equals the later.
    """

    dry_run: bool = False
    dataset: str = "digits"
    data_dir: str | None = None
    train_split: str = "train"
    test_split: str | None = None
    synthetic_shape: tuple[int, ...] = (224, 224, 3)
    synthetic_classes: int = 1000
    synthetic_examples: int = 1024
    preprocessing: str = "mnist"
    image_size: int | None = None
    sequence_length: int = 128
    feed: str = "auto"
    decode_threads: int | None = None
    decode_processes: int = 0
    model: str = "lenet"
    dropout_rate: float | None = None
    batch_norm: str = "local"
    precision: str = "float32"
    loss_scale: float = 2.0**15
    label_smoothing: float = 0.0
    init_from: str | None = None
    init_exclude: tuple[str, ...] = ()
    init_allow_missing: bool = False
    train_only: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    num_workers: int = 4
    num_devices: int | None = None
    virtual_workers: str = "unrolled"
    batch_size: int = 64
    accumulation: int = 1
    num_steps: int = 1000
    steps_per_call: int = 1
    codec: str = "ternary"
    float_epochs: int = 0
    ternary_from: int = 0
    exchange: str = "auto"
    devices_per_worker: int | None = None
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
    trust_coefficient: float = 0.001
    learning_rate: float = 0.01
    rate_batch_size: int | None = None
    schedule: str = "fixed"
    decay_epochs: float = 20.0
    boundaries: tuple[float, ...] = ()
    decay_factor: float = 0.1
    power: float = 0.5
    end_rate: float = 0.0
    warmup_steps: int = 0
    warmup_rate: float = 0.0
    warmup_peak: float | None = None
    weight_decay: float = 0.0
    weight_decay_mode: str = "loss"
    decay: tuple[str, ...] = ()
    average_decay: float = 0.0
    seed: int = 0
    log_every: int = 100
    log_compression: bool = False
    evaluate_every: int = 0
    compare_every: int = 100
    checkpoint_every: int = 1000
    keep_checkpoints: int = 3
    keep_best: int = 0

    def __post_init__(self):
        require_valid(self)
        create_codec(self)  # which checks its fields, whether they are used or not

    @property
    def worker_devices(self) -> int:
        """`devices_per_worker`, 1 where it is left open."""
        return self.devices_per_worker or 1

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


def create_codec(recipe: Recipe) -> Ternary:
    """The recipe's ternary codec.

    Raises:
      ValueError: for one of its fields that is out of its range.
    """
    return Ternary(
        clip_sigmas=recipe.clip_sigmas, scale=recipe.scale, block_size=recipe.block_size, levels=recipe.levels
    )


def require_field(name: str) -> None:
    """Refuses a name that is no field, naming those like it."""
    known = [field.name for field in dataclasses.fields(Recipe)]
    if name not in known:
        near = difflib.get_close_matches(name[:80], known, cutoff=0.4)
        hint = f"; available: {', '.join(near)}" if near else ""
        raise ValueError(f"{name!r} is no field of a recipe{hint} (--help names all)")
