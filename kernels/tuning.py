"""How the GPU kernels distribute their work over blocks of threads."""

import dataclasses

OPS = ("moments", "ternary_encode", "ternary_decode", "shard_sum")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """A distribution of work, which does not change the bits of results."""

    warpgroups: int = 1  # of 128 threads each, in a block; 1 to 8
    items: int = 1  # of each warpgroup, in sequence; 1 to 64

    def __post_init__(self):
        for name, limit in (("warpgroups", 8), ("items", 64)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
                raise ValueError(f"{name}={value!r}: must be an integer from 1 to {limit}")


# `python -m benchmarks.kernels --tune` measures others. moments adds over threads, which a block of several warpgroups
# cannot.
DEFAULTS = {op: Tuning(warpgroups=1 if op == "moments" else 2) for op in OPS}
