"""What clipping, blocks and levels leave of a run's gradients, tensor by tensor: how to choose them for a network.

    python -m benchmarks.accuracy.gradient_noise runs/digits [--clip_sigmas 0 1.25 2.5] [--block_sizes 0 64]

Takes the newest checkpoint of a run, and the gradients of every worker there in so many batches. With s the scale that
they share, q a worker's gradient clipped to it, and u = s / L, a digit rounds |q| stochastically to a multiple of u,
which adds the variance u^2 f (1 - f), f being the fraction of |q| / u; no random number is drawn. Let now g and q be
means over the workers; means and variances are over batches. Cells:

    cosine  of the mean of q and the mean of g: what clipping does to the direction, which averaging does not mend
    kept    signal over noise, of what is sent over that of g: ((mean q . mean g) / |mean g|^2)^2 var(g) / var(sent)

1 is best in both. Where `kept` is .5, a step has as much noise as one of half the batch. Only tensors that the run
compresses and that have gradients are listed, and the last row is their mean, weighted by elements.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import absl.logging
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from benchmarks.commands import at_least, create_parser, format_table
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.kernels import Segments
from jaxtern.training.run.inputs import Feed, create_network
from jaxtern.training.run.saved_run import SavedRun
from jaxtern.training.step.gradients import create_local_gradients
from jaxtern.training.step.mean import stays_float
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import create_run


class Sums(NamedTuple):
    """Over batches, of one tensor's mean over workers; `clipped` and what follows have an entry for each quantizer."""

    gradient: jax.Array
    squares: jax.Array
    peak: jax.Array  # max|g| over its deviation, of one worker
    clipped: list[jax.Array]
    clipped_squares: list[jax.Array]
    added: list[jax.Array]


def main() -> None:
    arguments = parse()
    absl.logging.set_verbosity(absl.logging.ERROR)  # orbax tells at length how it opens a folder
    try:
        quantizers = [
            Quantizer(clip_sigmas=clip, block_size=size or None, levels=arguments.levels)
            for size, clip in itertools.product(arguments.block_sizes, arguments.clip_sigmas)
        ]
        run = SavedRun(arguments.workdir)
        workers = arguments.workers or run.recipe.run.num_workers
        if run.recipe.run.batch_size % workers:
            raise ValueError(f"--workers={workers}: must divide the run's batch_size={run.recipe.run.batch_size}")
        sums = run.use_latest(lambda step: add_up(run, step, quantizers, workers, arguments.batches))
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    print(make_table(sums, quantizers, arguments.batches))


def parse() -> argparse.Namespace:
    parser = create_parser(__doc__)
    parser.add_argument("workdir", type=Path, help="folder of the run")
    parser.add_argument("--batches", type=at_least(2), default=48)
    parser.add_argument("--clip_sigmas", type=float, nargs="+", default=[0.0, 1.25, 2.5], help="c; 0: not clipped")
    parser.add_argument("--block_sizes", type=int, nargs="+", default=[0, 64], help="elements; 0: a scale a tensor")
    parser.add_argument("--levels", type=int, default=1)
    parser.add_argument("--workers", type=at_least(1), help="among whom the batch is divided; default: the run's")
    return parser.parse_args()


def add_up(run: SavedRun, step: int, quantizers: list[Quantizer], workers: int, num_batches: int) -> dict[str, Sums]:
    """The sums of every tensor that the run compresses, by path."""
    totals: dict[str, Sums] = {}
    add = jax.jit(functools.partial(_add, quantizers=quantizers))
    drawn = draw_gradients(run, step, workers)
    for _ in range(num_batches):
        of_workers = list(itertools.islice(drawn, workers))
        for path in of_workers[0]:
            gradients = jnp.stack([gradients[path].ravel() for gradients in of_workers])
            totals[path] = add(gradients, totals.get(path))
    return {path: sums for path, sums in totals.items() if sums.squares}


def draw_gradients(run: SavedRun, step: int, workers: int) -> Iterator[dict[str, jax.Array]]:
    """Of one worker after the other, batch after batch, by path."""
    batch_size = run.recipe.run.batch_size // workers
    recipe = run.recipe.replace(
        model={"batch_norm": "local", "precision": "float32"},
        mean={"method": "float", "devices_per_worker": 1, "delayed": False},
        run={"num_workers": 1, "num_devices": 1, "batch_size": batch_size, "steps_per_call": 1},
    )
    mesh, shape, dataset = create_mesh(recipe), run.inputs.input_shape, run.inputs.dataset
    model = create_network(recipe.model, shape, dataset.num_classes, recipe.run.seed)
    program, state = create_run(recipe, model, dataset.train.size, mesh)
    saved = run.restore(step)
    state = jax.device_put(state._replace(params=saved.params, frozen=saved.frozen, moments=saved.moments))
    local = create_local_gradients(recipe, program, 1, jax.devices()[0].platform == "cpu")

    def differentiate(state: Any, images: Any, batch: Any) -> Any:
        if images is not None:
            batch = batch._replace(examples=images[batch.examples])
        return local(state, jax.tree.map(lambda leaf: leaf[None], batch), jnp.zeros((), jnp.int32))[0].gradients

    specs = {"in_specs": PartitionSpec(), "out_specs": PartitionSpec(), "check_vma": False}
    mapped: Callable = jax.jit(jax.shard_map(differentiate, mesh=mesh, **specs))
    feed = Feed(recipe.data, recipe.run, run.inputs, mesh)
    for batch in feed.batches(0):
        leaves = jax.tree_util.tree_leaves_with_path(mapped(state, feed.examples, batch))
        named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
        yield {
            path: leaf
            for path, leaf in named.items()
            if leaf.size >= run.recipe.mean.min_size and not stays_float(run.recipe.mean, model.last_layer, path)
        }


def _add(gradients: jax.Array, totals: Sums | None, quantizers: list[Quantizer]) -> Sums:
    """One more batch: float32[workers, n]."""
    workers, size = gradients.shape
    gradient = jnp.mean(gradients, 0)
    clipped, squares, added = [], [], []
    for quantizer in quantizers:
        shared = jnp.max(jnp.stack([quantizer.local_scales(own, (size,)) for own in gradients]), 0)
        scale = Segments((size,), quantizer.block_size).spread(jnp.ones_like(gradient), shared)[None]
        own_clipped = jnp.clip(gradients, -scale, scale)
        clipped.append(jnp.mean(own_clipped, 0))
        unit = scale / quantizer.levels
        fraction = jnp.where(unit > 0, jnp.abs(own_clipped) / unit, 0.0) % 1
        squares.append(jnp.sum(clipped[-1] ** 2))
        added.append(jnp.sum(unit**2 * fraction * (1 - fraction)) / workers**2)
    peak = jnp.max(jnp.abs(gradients[0])) / jnp.std(gradients[0])
    own = Sums(gradient, jnp.sum(gradient**2), peak, clipped, squares, added)
    return own if totals is None else jax.tree.map(jnp.add, totals, own)


def make_table(totals: dict[str, Sums], quantizers: list[Quantizer], num_batches: int) -> str:
    """Rows of tensors, columns of quantizers."""
    names = [f"{each.block_size or 'tensor'}, c = {each.clip_sigmas:g}" for each in quantizers]
    table = [["tensor", "elements", "max / sigma", *(f"{name}: cosine, kept" for name in names)]]
    found = {path: np.array(list(_judge(sums, num_batches))) for path, sums in totals.items()}
    for path, sums in totals.items():
        cells = [f"{cosine:.3f}, {kept:.2f}" for cosine, kept in found[path]]
        table.append([path, f"{sums.gradient.size:,}", f"{sums.peak / num_batches:.0f}", *cells])
    sizes = [sums.gradient.size for sums in totals.values()]
    means = np.average(list(found.values()), axis=0, weights=sizes)
    table.append(["all", f"{sum(sizes):,}", "", *(f"{cosine:.3f}, {kept:.2f}" for cosine, kept in means)])
    return format_table(table)


def _judge(sums: Sums, num_batches: int) -> Iterator[tuple[float, float]]:
    """Cosine and kept of every quantizer."""
    mean = np.asarray(sums.gradient, np.float64) / num_batches
    signal = float(mean @ mean)
    noise = float(sums.squares) / num_batches - signal
    for clipped, squares, added in zip(sums.clipped, sums.clipped_squares, sums.added, strict=True):
        sent = np.asarray(clipped, np.float64) / num_batches
        sent_noise = (float(squares) + float(added)) / num_batches - float(sent @ sent)
        along = float(sent @ mean)
        yield along / np.sqrt(float(sent @ sent * signal)), (along / signal) ** 2 * noise / sent_noise


if __name__ == "__main__":
    main()
