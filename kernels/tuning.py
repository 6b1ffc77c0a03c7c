"""How the work of each kernel is dealt out to blocks of threads, by GPU."""

import dataclasses

OPS = ("moments", "ternary_encode", "ternary_decode", "shard_sum")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What may be tuned; results are the same bits under all of them.

    Attributes:
      warpgroups: of 128 threads, in a block; 1 to 8.
      items: that each warpgroup works on, one after the other; 1 to 64.
    """

    warpgroups: int = 1
    items: int = 1

    def __post_init__(self):
        for name, limit in (("warpgroups", 8), ("items", 64)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ValueError(f"{name}={value!r}: must be an integer from 1 to {limit}")


# moments adds over threads, for which a block of several warpgroups takes all of a processor's sixteen barriers.
DEFAULTS = {op: Tuning(warpgroups=1 if op == "moments" else 2) for op in OPS}

# By the name of the device, as JAX gives it, then by op; `python -m benchmarks.kernels --tune` prints an entry.
TABLES: dict[str, dict[str, Tuning]] = {}


def tuning_for(op: str, device_kind: str) -> Tuning:
    """What was found best for `op` on such a device, or what suits most.

    Raises:
      ValueError: if there is no such op.
    """
    if op not in OPS:
        raise ValueError(f"op={op!r}: must be one of {', '.join(OPS)}")
    return TABLES.get(device_kind, {}).get(op, DEFAULTS[op])
