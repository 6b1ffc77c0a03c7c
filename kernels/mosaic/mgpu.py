"""What the Mosaic GPU kernels share.

A block of threads is one or more warpgroups of `RUN` threads, and every warpgroup works on its own item: some tiles of
words, or a chunk of a segment. Each thread loads its own element of a run straight from device memory into a register,
consecutive threads consecutive elements; nothing passes between threads but the few sums of `moments`, so there is
nothing to synchronise and no shared memory to manage.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..radix import RUN
from ..segments import Segments
from ..tuning import Tuning

LAYOUT = plgpu.Layout.WG_STRIDED((RUN,), vec_size=1)
_NO_BOUND = np.iinfo(np.int32).max


def launch(
    body: Callable[..., None], operands: Sequence[jax.Array], outputs: Sequence[tuple[int, Any]], items: int,
    tuning: Tuning, interpret: Any = None,
) -> list[jax.Array]:  # fmt: skip
    """Runs `body(item, *operand_refs, *output_refs)` for every item, all in one launch.

    Args:
      body: of a kernel.
      operands: arrays in device memory; what varies over the axes of `shard_map` is what the first varies over.
      outputs: length and dtype of each output, a vector.
      items: how many.
      tuning: how they are dealt out.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.
    """
    per_block = tuning.warpgroups * tuning.items

    def block(*refs: Any) -> None:
        first = lax.axis_index("block") * per_block + lax.axis_index("warpgroup")

        def step(i: jax.Array, carry: None) -> None:
            item = first + i * tuning.warpgroups

            @pl.when(item < items)
            def _() -> None:
                body(item, *refs)

            return carry

        lax.fori_loop(0, tuning.items, step, None)

    varying = jax.typeof(operands[0]).manual_axis_type
    kernel = plgpu.kernel(
        block,
        out_type=[jax.ShapeDtypeStruct((size,), dtype, manual_axis_type=varying) for size, dtype in outputs],
        grid=(-(-items // per_block),),
        grid_names=("block",),
        num_threads=tuning.warpgroups,
        thread_name="warpgroup",
        kernel_name=body.__name__,
        # Pallas puts barriers around every store, which are for threads that read what they or others wrote: none here.
        compiler_params=plgpu.CompilerParams(unsafe_no_auto_barriers=True),
        interpret=interpret,
    )
    return kernel(*operands)


def window(ref: Any, start: jax.Array, runs: int) -> Any:
    """So many runs of an array: where their places in it are constants, the compiler computes one address for all."""
    return ref.at[pl.ds(start, runs * RUN)]


def load(ref: Any, start: int | jax.Array) -> jax.Array:
    """A run from `start` on, one element a thread."""
    return plgpu.load(ref.at[pl.ds(start, RUN)], layout=LAYOUT)


def store(ref: Any, start: int | jax.Array, run: jax.Array) -> None:
    """The inverse of `load`."""
    ref[pl.ds(start, RUN)] = run


def places(dtype: Any) -> jax.Array:
    """0 to RUN - 1, each thread's own."""
    return plgpu.broadcasted_iota(dtype, (RUN,), 0, layout=LAYOUT)


def filled(value: Any, dtype: Any) -> jax.Array:
    """A run of one value."""
    return plgpu.layout_cast(jnp.full((RUN,), value, dtype), LAYOUT)


def segment_tables(segments: Segments, item_runs: int) -> tuple[np.ndarray, np.ndarray]:
    """The first element of every segment, the last bound out of reach; and the owner of every item.

    That is its segment, or, where the item has runs of others too or runs that are not there, -1 less the segment where
    it begins: one number to read before the work.
    """
    bounds = segments.bounds()
    firsts = np.arange(0, segments.num_elements, item_runs * RUN)
    owners = np.searchsorted(bounds[1:], firsts, side="right")
    ends = firsts + item_runs * RUN
    bounds[-1] = _NO_BOUND
    is_whole = (ends <= segments.num_runs * RUN) & (ends <= bounds[owners + 1])
    return bounds.astype(np.int32), np.where(is_whole, owners, -1 - owners).astype(np.int32)


def branch_by_owner(owner: jax.Array, whole: Callable[[jax.Array], None], mixed: Callable[[jax.Array], None]) -> None:
    """Calls one of the two with the segment where the item begins."""
    pl.when(owner >= 0)(lambda: whole(owner))
    pl.when(owner < 0)(lambda: mixed(-1 - owner))


def factors_of_run(segment: jax.Array, run: jax.Array, bounds: Any, factors: Any) -> tuple[jax.Array, jax.Array]:
    """The segment where a run ends, and the factor of each of its places.

    `segment` is the one where the run begins, or where the run before it ended.
    """
    place = places(jnp.int32) + run * RUN

    def is_more(carry: Any) -> jax.Array:
        return bounds[carry[0] + 1] < (run + 1) * RUN

    def advance(carry: Any) -> Any:
        segment = carry[0] + 1
        return segment, jnp.where(place >= bounds[segment], factors[segment], carry[1])

    return lax.while_loop(is_more, advance, (segment, filled(factors[segment], jnp.float32)))
