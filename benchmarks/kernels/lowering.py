"""Seconds of the host until the program of a mean could be compiled for a GPU. It needs no GPU.

    python -m benchmarks.kernels.lowering
    python -m benchmarks.kernels.lowering --recipes imagenet_vgg --workers 4
    python -m benchmarks.kernels.lowering --devices 8 --workers 1

Traces and lowers `ternary`'s mean of a recipe's gradients, of virtual workers on each device, with the kernels and in
plain JAX, and counts the kernels that are lowered. Needs JAX 0.11 or newer.
"""

import importlib
import sys
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

from benchmarks.commands import create_parser, format_table
from jaxtern import compressed_mean, ternary
from jaxtern.kernels import dispatch
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.dry_run import prepare_dry_run

RECIPES = "digits", "imagenet_resnet50", "imagenet_alexnet"


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, help="installed recipes")
    parser.add_argument("--workers", type=int, default=8, help="virtual workers of each device")
    parser.add_argument("--devices", type=int, default=1)
    arguments = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", arguments.devices)
    if jax.__version_info__ < dispatch.MIN_JAX:
        sys.exit(f"lowering: JAX is {jax.__version__}, older than {'.'.join(map(str, dispatch.MIN_JAX))}")
    rows = [["recipe", "implementation", "kernels lowered", "s to trace", "s to lower"]]
    for name in arguments.recipes:
        gradients = shapes_of(name)
        for implementation in ("mosaic", "reference"):
            kernels, traced, lowered = lower(gradients, arguments.workers, implementation, arguments.devices)
            rows.append([name, implementation, str(kernels), f"{traced:.1f}", f"{lowered:.1f}"])
    devices = f"{arguments.devices} device(s) of {arguments.workers} virtual worker(s)"
    print(f"JAX {jax.__version__}, {devices}\n\n{format_table(rows)}")


def shapes_of(name: str) -> Any:
    """Shapes of the gradients of an installed recipe, float32."""
    config = importlib.import_module(f"jaxtern.configs.{name}").get_config()
    run = prepare_dry_run(Recipe.from_dict(config.to_dict()).replace(run={"dry_run": True}))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), run.params)


def lower(gradients: Any, num_workers: int, implementation: str, devices: int = 1) -> tuple[int, float, float]:
    """The number of kernels lowered, and seconds to trace and to lower the mean for GPUs."""
    mean = compressed_mean("data", ternary(implementation=implementation), virtual_workers=num_workers)
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    everywhere = PartitionSpec()
    step = jax.jit(jax.shard_map(mean.update, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False))
    as_on_a_gpu = mock.patch.object(dispatch, "why_not_mosaic", return_value="")
    with as_on_a_gpu, mock.patch.object(dispatch, "device", return_value=SimpleNamespace(platform="gpu")):
        start = time.perf_counter()
        traced = step.trace([gradients] * num_workers, mean.init(gradients))
        middle = time.perf_counter()
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
        end = time.perf_counter()
    return program.count("custom_call @mosaic_gpu"), middle - start, end - middle


if __name__ == "__main__":
    main()
