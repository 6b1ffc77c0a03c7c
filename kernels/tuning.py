"""How the GPU kernels distribute their work over blocks of threads."""

OPS = ("moments", "ternary_encode", "ternary_decode", "shard_sum")

# Warpgroups in a block, which change no bits. `python -m benchmarks.kernels --tune` measures other numbers of them.
# moments adds over threads, which a block of several warpgroups cannot.
DEFAULTS = {op: 1 if op == "moments" else 2 for op in OPS}
