"""When the collectives of a training step begin, read off the program that XLA schedules for GPUs. It needs none.

    python -m benchmarks.kernels.overlap [--hosts 1] [--gpus 8] [--method ternary] [--ptxas PATH]

Compiles a step of six dense layers for described H200s: gradients, their mean, new weights. On one host every GPU is a
worker; of several hosts each is one, whose GPUs average their gradients as floats first. XLA's CUDA plug-in is needed,
`jax[cuda13]` or only its wheels, and ptxas of the toolkit or of the wheel nvidia-cuda-nvcc.

A line a collective, in the order of the program: over which axis of the mesh it goes; whether other work may run beside
it; how many of the step's matrix products it waits for; and how many begin after it. The forward pass has 6 products,
the backward pass 11.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.commands import at_least, create_parser, format_table
from benchmarks.kernels.instructions import H200
from jaxtern import compressed_mean, float_mean, ternary
from jaxtern.kernels import dispatch

LAYERS, WIDTH, BATCH = 6, 2048, 512  # the weights of a layer are a bucket
METHODS = {"ternary": ternary, "float": float_mean}
COLLECTIVE = r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(-start)?\("
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%(?P<name>\S+) = (?P<body>.*)$", re.MULTILINE)


class Collective(NamedTuple):
    """One collective of the program."""

    kind: str
    axes: str  # of the mesh, over which it goes
    is_async: bool  # whether other work may run beside it
    waits_for: int  # matrix products
    followed_by: int  # matrix products that begin after it


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--hosts", type=at_least(1), default=1)
    parser.add_argument("--gpus", type=at_least(1), default=8, help="of a host")
    parser.add_argument("--method", choices=METHODS, default="ternary")
    parser.add_argument("--ptxas", default="ptxas")
    parser.add_argument("--json", action="store_true", help="print a list in place of a table")
    arguments = parser.parse_args()
    ptxas = shutil.which(arguments.ptxas)
    if ptxas is None:
        sys.exit(f"--ptxas={arguments.ptxas}: must be a program; it is not found")
    toolkit = Path(ptxas).resolve().parents[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={toolkit}"
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "XLA_FLAGS": flags}
    jax.config.update("jax_enable_compilation_cache", False)
    found = read(compile_step(arguments.hosts, arguments.gpus, arguments.method))
    if arguments.json:
        print(json.dumps([each._asdict() for each in found]))
        return
    heading = ["collective", "over", "beside other work", "waits for products", "products after"]
    rows = [[each.kind, each.axes, "yes" if each.is_async else "no", *map(str, each[3:])] for each in found]
    print(format_table([heading, *rows]))


def compile_step(hosts: int, gpus: int, method: str) -> str:
    """The scheduled program."""
    described: Any = topologies.get_topology_desc(platform="cuda", topology=f"1x{hosts}x{gpus}", target_config=H200)
    names = ("host", "gpu") if hosts > 1 else ("gpu",)
    places = np.array(described.devices).reshape(-1, gpus) if hosts > 1 else np.array(described.devices)
    mesh = Mesh(places, names, axis_types=(AxisType.Auto,) * len(names))
    mean = compressed_mean(names[0], METHODS[method](), fast_axis_name="gpu" if hosts > 1 else None)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for each in weights:
            x = jnp.tanh(x @ each)
        return jnp.sum(x * x)

    def step(weights: list[jax.Array], state: Any, x: jax.Array) -> Any:
        updates: Any
        updates, state = mean.update(jax.grad(loss)(weights, x), state)
        return [w - 0.1 * u for w, u in zip(weights, updates, strict=True)], state

    def place(shape: tuple[int, ...], dtype: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    everywhere, shared = PartitionSpec(), PartitionSpec(names)
    weights = [place((WIDTH, WIDTH), jnp.float32, everywhere)] * LAYERS
    state = jax.tree.map(lambda leaf: place(leaf.shape, leaf.dtype, everywhere), jax.eval_shape(mean.init, weights))
    batch = place((BATCH * mesh.size, WIDTH), jnp.float32, shared)
    specs = (everywhere, everywhere, shared)
    run = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False)
    with mock.patch.object(dispatch, "why_not_mosaic", return_value=""):
        traced = jax.jit(run).trace(weights, state, batch)
    return traced.lower(lowering_platforms=("cuda",)).compile().as_text() or ""


def read(program: str) -> list[Collective]:
    """The collectives of a scheduled program, in its order; of loops, which this step has not, none."""
    bodies = {found["name"]: found["body"] for found in INSTRUCTION.finditer(program[program.index("\nENTRY") :])}
    order = {name: number for number, name in enumerate(bodies)}
    products = {name for name, body in bodies.items() if name.startswith("gemm_fusion") or "__cublas$gemm" in body}
    needs: dict[str, set[str]] = {}  # the products that an instruction waits for
    found = []
    for name, body in bodies.items():  # operands come before what uses them
        operands = [own for own in re.findall(r"%([\w.-]+)", body.partition(", metadata=")[0]) if own in needs]
        needs[name] = set().union(*(needs[own] for own in operands)) | ({name} & products)
        kind = re.search(COLLECTIVE, body)
        if kind:
            over = re.search(r"replica_groups=mesh\S+ {([^}]*)}", body)
            after = sum(order[product] > order[name] for product in products)
            axes = over[1].replace("'", "") if over else "?"
            found.append(Collective(kind[1], axes, kind[2] is not None, len(needs[name]), after))
    return found


if __name__ == "__main__":
    main()
