"""What a method leaves of a run's gradients, tensor by tensor: how to choose one for a network.

    python -m benchmarks.accuracy.gradient_noise runs/digits [--methods terngrad ternary] [--batches 24]

Takes the newest checkpoint of a run, and the gradients g of every worker there in so many batches. With p what a method
tells of a worker's part, so that the mean of all p is the mean that it returns, cells are

    gain   sum p.g / sum |g|^2: 1 where nothing is lost, less where clipping bends the mean
    noise  sum |p - gain g|^2 / sum |g|^2: what is added at random, which averaging over workers and steps takes away

over all batches and workers. `workers` is the least over the largest of the workers' deviations, by blocks of 4,096
elements, the median of them all: what a shared scale has to serve. Only tensors that the run compresses and that have
gradients are listed; the last row is the mean, weighted by elements.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import jaxtern
from benchmarks.commands import at_least, create_parser, format_table
from jaxtern.compression.collectives import Axes
from jaxtern.compression.transform import layout_of
from jaxtern.kernels.rotation import BLOCK
from jaxtern.kernels.segments import fill_up
from jaxtern.training.run.inputs import Feed, Inputs, create_network
from jaxtern.training.run.saved_run import SavedRun, open_run
from jaxtern.training.step.gradients import create_local_gradients
from jaxtern.training.step.mean import stays_float
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import create_run

REDUCERS = {
    "terngrad": jaxtern.terngrad(),
    "unclipped": jaxtern.terngrad(clip_sigmas=0.0),
    "ternary": jaxtern.ternary(),
    "stochastic": jaxtern.ternary(rounding="stochastic"),
    "nearest": jaxtern.ternary(rounding="nearest"),
    "5 levels": jaxtern.quantized(2),
    "7 levels": jaxtern.quantized(3),
    "15 levels": jaxtern.quantized(7),
}


class Sums(NamedTuple):
    """Over batches and workers, of one tensor; `along` and `sent` have an entry for each method.

    Attributes:
      elements: of the tensor.
      squares: of the gradients.
      peak: max|g| over its deviation, of one worker.
      workers: the least deviation of a worker over the largest, the median over blocks.
      along: p.g.
      sent: |p|^2.
    """

    elements: jax.Array
    squares: jax.Array
    peak: jax.Array
    workers: jax.Array
    along: jax.Array
    sent: jax.Array


def main() -> None:
    arguments = parse()
    absl.logging.set_verbosity(absl.logging.ERROR)  # orbax tells at length how it opens a folder
    try:
        run, inputs = open_run(arguments.workdir)
        workers = arguments.workers or run.recipe.run.num_workers
        if run.recipe.run.batch_size % workers:
            raise ValueError(f"--workers={workers}: must divide the run's batch_size={run.recipe.run.batch_size}")
        sums = add_up(run, inputs, arguments.methods, workers, arguments.batches)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(make_table(sums, arguments.methods, arguments.batches))


def parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("workdir", type=Path, help="folder of the run")
    parser.add_argument("--batches", type=at_least(1), default=24)
    parser.add_argument("--methods", nargs="+", choices=REDUCERS, default=list(REDUCERS))
    parser.add_argument("--workers", type=at_least(1), help="among whom the batch is divided; default: the run's")
    return parser.parse_args()


def add_up(run: SavedRun, inputs: Inputs, methods: Sequence[str], workers: int, num_batches: int) -> dict[str, Sums]:
    """The sums of every tensor that the run compresses, by path."""
    totals: dict[str, Sums] = {}
    add = jax.jit(functools.partial(measure, methods=tuple(methods)))
    drawn = draw_gradients(run, inputs, workers)
    for batch in range(num_batches):
        of_workers = list(itertools.islice(drawn, workers))
        for path in of_workers[0]:
            found = add([gradients[path] for gradients in of_workers], jnp.int32(batch))
            totals[path] = jax.tree.map(jnp.add, totals[path], found) if path in totals else found
    return {path: sums for path, sums in totals.items() if sums.squares}


def draw_gradients(run: SavedRun, inputs: Inputs, workers: int) -> Iterator[dict[str, jax.Array]]:
    """Of one worker after the other, batch after batch, by path."""
    batch_size = run.recipe.run.batch_size // workers
    recipe = run.recipe.replace(
        model={"batch_norm": "local", "precision": "float32"},
        mean={"method": "float", "devices_per_worker": 1, "delayed": False},
        run={"num_workers": 1, "num_devices": 1, "batch_size": batch_size, "steps_per_call": 1},
    )
    mesh, shape, dataset = create_mesh(recipe), inputs.input_shape, inputs.dataset
    model = create_network(recipe.model, shape, dataset.num_classes, recipe.run.seed)
    program, state = create_run(recipe, model, dataset.train.size, mesh)
    saved = run.restore()
    state = jax.device_put(state._replace(params=saved.params, frozen=saved.frozen, moments=saved.moments))
    local = create_local_gradients(recipe, program, 1, jax.devices()[0].platform == "cpu")

    def differentiate(state: Any, images: Any, batch: Any) -> Any:
        if images is not None:
            batch = batch._replace(examples=images[batch.examples])
        return local(state, jax.tree.map(lambda leaf: leaf[None], batch), jnp.zeros((), jnp.int32))[0].gradients

    specs = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec(), "check_vma": False}
    mapped: Callable = jax.jit(jax.shard_map(differentiate, mesh=mesh, **specs))
    feed = Feed(recipe.data, recipe.run, inputs, mesh)
    for batch in feed.batches(0):
        leaves = jax.tree_util.tree_leaves_with_path(mapped(state, feed.examples, batch))
        named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
        yield {
            path: leaf
            for path, leaf in named.items()
            if leaf.size >= run.recipe.mean.min_size and not stays_float(run.recipe.mean, model.last_layer, path)
        }


def measure(gradients: list[jax.Array], step: jax.Array, methods: tuple[str, ...]) -> Sums:
    """One batch, of one tensor of each worker."""
    rows = jnp.stack([own.reshape(-1) for own in gradients])
    sent = jnp.stack([_send(rows, step, REDUCERS[method]) for method in methods])
    blocks = fill_up(rows, min(BLOCK, rows.shape[1])).reshape(len(rows), -1, min(BLOCK, rows.shape[1]))
    deviations = jnp.sqrt(jnp.mean(blocks**2, axis=2))
    spread = jnp.nanmedian(jnp.min(deviations, axis=0) / jnp.max(deviations, axis=0))
    peak = jnp.max(jnp.abs(rows[0])) / jnp.std(rows[0])
    along, squares = jnp.sum(sent * rows[None], axis=(1, 2)), jnp.sum(sent**2, axis=(1, 2))
    return Sums(jnp.float32(rows.shape[1]), jnp.sum(rows**2), peak, spread, along, squares)


def _send(rows: jax.Array, step: jax.Array, reducer: jaxtern.Reducer) -> jax.Array:
    """float32[workers, n] to what each worker's part stands for."""
    layout = layout_of(rows[0])

    def reduce(rows: jax.Array, step: jax.Array) -> jax.Array:
        group = jaxtern.Group(layout, Axes(("workers",)), len(rows), 0, step, tracks=True)
        reduced = reducer.reduce([[own] for own in rows], reducer.init(layout, len(rows)), group)
        return jnp.stack([own for (own,) in reduced.sent or []])

    mesh, everywhere = Mesh(np.array(jax.devices()[:1]), ("workers",)), PartitionSpec()
    return jax.shard_map(reduce, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)(rows, step)


def make_table(totals: dict[str, Sums], methods: Sequence[str], num_batches: int) -> str:
    """Rows of tensors, columns of methods."""
    table = [["tensor", "elements", "max / sigma", "workers", *(f"{name}: gain, noise" for name in methods)]]
    found = {path: _judge(sums) for path, sums in totals.items()}
    elements = {path: round(float(sums.elements) / num_batches) for path, sums in totals.items()}
    for path, sums in totals.items():
        cells = [f"{gain:.3f}, {noise:.3f}" for gain, noise in found[path]]
        peak, spread = float(sums.peak) / num_batches, float(sums.workers) / num_batches
        table.append([path, f"{elements[path]:,}", f"{peak:.0f}", f"{spread:.2f}", *cells])
    means = np.average(list(found.values()), axis=0, weights=list(elements.values()))
    cells = [f"{gain:.3f}, {noise:.3f}" for gain, noise in means]
    table.append(["all", f"{sum(elements.values()):,}", "", "", *cells])
    return format_table(table)


def _judge(sums: Sums) -> np.ndarray:
    """float64[methods, 2]: gain and noise."""
    gain = np.asarray(sums.along, np.float64) / float(sums.squares)
    return np.stack([gain, np.asarray(sums.sent, np.float64) / float(sums.squares) - gain**2], axis=1)


if __name__ == "__main__":
    main()
