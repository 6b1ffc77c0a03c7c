"""Shared parts of the Mosaic GPU kernels.

A block of threads is one or more warpgroups of `RUN` threads. Every warpgroup works on its own item: some tiles of
words, or a chunk of a segment. Each thread loads its own element of a run from device memory into a register, with
consecutive threads loading consecutive elements. Threads exchange only the few sums of `moments`, so nothing needs to
be synchronised and no shared memory managed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from ..radix import RUN
from ..segments import Segments

LAYOUT = plgpu.Layout.WG_STRIDED((RUN,), vec_size=1)
_NO_BOUND = np.iinfo(np.int32).max
_NO_OWNER = np.iinfo(np.int32).min  # of items beyond the bucket, which are left out
_LARGE = 2**23  # elements; filling up so many would cost more than it saves
_SHORT = 16  # runs; tables have room for segments that are so long on average
_PARAMETERS = plgpu.CompilerParams(
    # No thread reads what a thread wrote, so the barriers that Pallas puts around every store are not needed.
    unsafe_no_auto_barriers=True,
    # All layouts are given. The default searches for them, which takes ten times as long and ends in the same program.
    lowering_semantics=plgpu.LoweringSemantics.Lane,
)


@partial(jax.jit, static_argnums=(0, 1, 3, 4, 5, 6, 7))
def launch(
    body: Callable[..., None],
    known: tuple[Any, ...],
    operands: Sequence[jax.Array],
    outputs: tuple[tuple[tuple[int, ...], Any], ...],
    items: int,
    warpgroups: int,
    interpret: Any = None,
    scratch: tuple[int, ...] | None = None,
) -> list[jax.Array]:
    """Runs `body(*known, item, *operand_refs, *output_refs, *scratch_refs)` for every item, in one launch.

    A program lowers the kernel once for all calls with equal arguments, and operands of equal shapes.

    Args:
      body: of the kernel.
      known: constants.
      operands: arrays in device memory; outputs vary over the axes of `shard_map` that the first operand varies over.
      outputs: shape and dtype of each output.
      items: number of items.
      warpgroups: number of warpgroups in a block.
      interpret: `plgpu.InterpretGPUParams` to run on a CPU.
      scratch: shape of float32 in shared memory of a block, which must then be one warpgroup.
    """
    # A single warpgroup is no axis, as Mosaic sums over all threads of a warpgroup only if there is none.
    threads = {"num_threads": warpgroups, "thread_name": "warpgroup"} if warpgroups > 1 else {}

    def block(*refs: Any) -> None:
        item = lax.axis_index("block") * warpgroups + (lax.axis_index("warpgroup") if threads else 0)
        pl.when(item < items)(lambda: body(*known, item, *refs))

    varying = jax.typeof(operands[0]).manual_axis_type
    kernel = plgpu.kernel(
        block,
        out_type=[jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=varying) for shape, dtype in outputs],
        grid=(-(-items // warpgroups),),
        grid_names=("block",),
        scratch_types=[plgpu.SMEM(scratch, jnp.float32)] if scratch else [],
        **threads,
        kernel_name=body.__name__.lstrip("_"),
        compiler_params=_PARAMETERS,
        interpret=interpret,
    )
    return kernel(*operands)


def window(ref: Any, start: jax.Array, runs: int) -> Any:
    """A window of runs of an array; for constant places in it the compiler computes one address for all."""
    return ref.at[pl.ds(start, runs * RUN)]


def load(ref: Any, start: int | jax.Array) -> jax.Array:
    """Loads a run from `start` on, one element for each thread."""
    return plgpu.load(ref.at[pl.ds(start, RUN)], layout=LAYOUT)


def store(ref: Any, start: int | jax.Array, run: jax.Array) -> None:
    """Stores a run at `start`."""
    put(ref.at[pl.ds(start, RUN)], run)


def put(ref: Any, values: jax.Array) -> None:
    """Stores values in all of a window."""
    ref[...] = values


def places(dtype: Any) -> jax.Array:
    """0 to RUN - 1, one number for each thread."""
    return plgpu.broadcasted_iota(dtype, (RUN,), 0, layout=LAYOUT)


def filled(value: Any, dtype: Any) -> jax.Array:
    """A run of one value."""
    return plgpu.layout_cast(jnp.full((RUN,), value, dtype), LAYOUT)


def room(size: int, multiple: int = 1) -> int:
    """Rounds a size up, so that one kernel serves all sizes near it; there are two such sizes up to each power of two.

    The size counts units of `multiple` elements. From `_LARGE` elements on, it stays as it is.
    """
    step = 1 << max((size - 1).bit_length() - 2, 0) if size * multiple < _LARGE else 1
    return -(-size // step) * step


def rooms(segments: Segments, count: int) -> tuple[int, int]:
    """What a bucket is filled up to: its elements, in whole runs, and the `count` rows of a table about it."""
    runs = room(segments.num_runs, RUN)
    return runs * RUN, max(room(count), runs // _SHORT) if segments.num_runs * RUN < _LARGE else count


def fill(array: Any, size: int, value: int = 0) -> Any:
    """Fills the last axis up to a size; a NumPy array stays one, and so a constant of the program."""
    widths = [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])]
    return (np if isinstance(array, np.ndarray) else jnp).pad(array, widths, constant_values=value)


def segment_operands(segments: Segments, factors: jax.Array, item_runs: int) -> tuple[int, tuple[Any, ...]]:
    """The number of elements that a bucket is filled up to, and three tables, filled up likewise.

    They hold the factor of every segment; the first element of every segment, and then bounds out of reach; and the
    owner of every item. That is its segment s, or -1 - s if it begins in s but also has other or missing runs.
    """
    bounds = segments.bounds()
    firsts = np.arange(0, segments.num_elements, item_runs * RUN)
    owners = np.searchsorted(bounds[1:], firsts, side="right")
    ends = firsts + item_runs * RUN
    bounds[-1] = _NO_BOUND
    is_whole = (ends <= segments.num_runs * RUN) & (ends <= bounds[owners + 1])
    owners = np.where(is_whole, owners, -1 - owners).astype(np.int32)
    elements, rows = rooms(segments, segments.num_scales)
    items = -(-elements // (item_runs * RUN))
    tables = fill(bounds.astype(np.int32), rows + 1, _NO_BOUND), fill(owners, items, _NO_OWNER)
    return elements, (fill(factors, rows), *tables)


def branch_by_owner(owner: jax.Array, whole: Callable[[jax.Array], None], mixed: Callable[[jax.Array], None]) -> None:
    """Calls `whole` or `mixed` with the segment where the item begins; neither for an item beyond the bucket."""
    pl.when(owner >= 0)(lambda: whole(owner))
    pl.when((owner < 0) & (owner > _NO_OWNER))(lambda: mixed(-1 - owner))


def factors_of_run(segment: jax.Array, run: jax.Array, bounds: Any, factors: Any) -> tuple[jax.Array, jax.Array]:
    """The segment where a run ends, and the factor of each of its places.

    `segment` is where the run begins, or where the run before it ended.
    """
    place = places(jnp.int32) + run * RUN

    def is_more(carry: Any) -> jax.Array:
        return bounds[carry[0] + 1] < (run + 1) * RUN

    def advance(carry: Any) -> Any:
        segment = carry[0] + 1
        return segment, jnp.where(place >= bounds[segment], factors[segment], carry[1])

    return lax.while_loop(is_more, advance, (segment, filled(factors[segment], jnp.float32)))
