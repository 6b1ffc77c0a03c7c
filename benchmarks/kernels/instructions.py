"""What the Mosaic kernels become on a Hopper GPU, counted without one.

    python -m benchmarks.kernels.instructions [--elements 2**28] [--step] [--ptxas PATH] [--nvdisasm PATH]

XLA's CUDA plug-in compiles for a described GPU as well as for a real one: install `jax[cuda13]`, or only its plug-in
and PJRT wheels. ptxas is of the CUDA toolkit, which XLA wants, too; nvdisasm of the toolkit, or of the wheel
nvidia-cuda-nvdisasm. Counted is the stretch of machine code, without a branch, of the path that all items but a few
take; for `moments`, of one turn of its loop. It is divided by the elements of a thread (for `shard_sum`, by the sums).
The pipes are those of integer logic, additions and comparisons (ALU), and of products and floating point (FMA).
With `--step`, what a whole update of `compressed_mean` launches is printed instead.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import jaxtern
from benchmarks.commands import create_parser, parse_elements
from jaxtern.kernels import Segments, dispatch
from jaxtern.kernels.rotation import BLOCK
from jaxtern.kernels.tuning import DEFAULTS

H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
  clock_rate_ghz: 1.98 device_memory_size: 151397597184 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability 9.0a" device_address_bits: 64
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
  name: "NVIDIA H200"
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H200"
"""
LAUNCH = r"^\s*(?:ROOT )?%(\S+) = .*?\s(fusion|custom-call|copy|all-gather\S*|all-reduce\S*)\("
FMA = re.compile(r"IMAD|FMUL|FADD|FFMA")
ALU = re.compile(r"P?LOP3|IADD3|VIADD|SHF|LEA|V?[FI]MNMX|[IF]SETP|F?SEL|PRMT|MOV|I2FP|F2FP")
CASES = {  # name: elements of a thread in the counted stretch, and its loads or stores of runs, the more of the two
    "moments": (16, 16),
    "ternary_encode": (20, 20),
    "ternary_decode": (20, 20),
    "shard_sum, 4 workers": (20, 4),
    "rotate": (32, 32),
    "rotate back": (32, 32),
}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--elements", type=parse_elements, default=2**28, help="of the gradient; 2**28 is understood")
    parser.add_argument("--step", action="store_true", help="the launches of an update of five tensors")
    parser.add_argument("--ptxas", default="ptxas")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    arguments = parser.parse_args()
    tools = [shutil.which(tool) for tool in (arguments.ptxas, arguments.nvdisasm)]
    if None in tools:
        sys.exit(f"--ptxas={arguments.ptxas} --nvdisasm={arguments.nvdisasm}: must be programs; one is not found")
    toolkit = Path(str(tools[0])).resolve().parents[1]
    os.environ |= {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1", "XLA_FLAGS": f"--xla_gpu_cuda_data_dir={toolkit}"}
    jax.config.update("jax_enable_compilation_cache", False)
    if arguments.step:
        print(launches_of_step())
        return
    print("| kernel | registers | barriers | instructions | ALU | FMA | loads in flight |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, kernel, operands in create_kernels(arguments.elements):
        with tempfile.TemporaryDirectory() as folder:
            resources, code = compile_kernel(kernel, operands, Path(folder), *map(str, tools))
        print(f"| {name} | {resources} | {count(code, *CASES[name])} |", flush=True)


def launches_of_step() -> str:
    """A line for each launch of an update and of what subtracts it from the weights, in order."""
    mesh = Mesh(np.array([describe_gpu()]), ("data",), axis_types=(AxisType.Auto,))
    mean = jaxtern.compressed_mean("data", jaxtern.ternary(exchange="gather", implementation="mosaic"))
    shapes = {"a": (64,), "b": (3, 3, 64, 64), "c": (1000,), "d": (2048, 1000), "e": (4099, 777)}
    place = partial(jax.ShapeDtypeStruct, sharding=NamedSharding(mesh, PartitionSpec()))
    weights = {name: place(shape, jnp.float32) for name, shape in shapes.items()}
    state = jax.tree.map(lambda x: place(x.shape, x.dtype), jax.eval_shape(mean.init, weights))

    def step(weights: Any, gradients: Any, state: Any) -> Any:
        update, state = mean.update(gradients, state)
        return jax.tree.map(lambda w, u: w - 0.1 * u, weights, update), state

    run = jax.shard_map(step, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
    with mock.patch.object(dispatch, "why_not_mosaic", return_value=""):
        traced = jax.jit(run).trace(weights, weights, state)
    program = traced.lower(lowering_platforms=("cuda",)).compile().as_text() or ""
    entry = program[program.index("ENTRY") :]
    return "\n".join(f"{name}: {kind}" for name, kind in re.findall(LAUNCH, entry, flags=re.MULTILINE))


def describe_gpu() -> Any:
    """The device that programs are compiled for."""
    try:
        return topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=H200).devices[0]
    except Exception as error:  # noqa: BLE001 JAX has no type of its own for a plug-in that is not there
        sys.exit(f"XLA's CUDA plug-in cannot describe a GPU: {error}")


def create_kernels(elements: int) -> Iterator[tuple[str, Callable, list[jax.ShapeDtypeStruct]]]:
    """Name, function and operands of one tensor's kernels, radix 3."""
    from jaxtern.kernels.mosaic.moments import partials_mgpu
    from jaxtern.kernels.mosaic.rotation import rotate_blocks_mgpu
    from jaxtern.kernels.mosaic.shards import shard_sum_mgpu
    from jaxtern.kernels.mosaic.ternary_decode import ternary_decode_mgpu
    from jaxtern.kernels.mosaic.ternary_encode import ternary_encode_mgpu

    segments = Segments((elements,))
    vector, one, key, half_key, words, all_words, blocks, firsts = (
        partial(jax.ShapeDtypeStruct, shape, dtype)
        for shape, dtype in (
            ((elements,), jnp.float32),
            ((1,), jnp.float32),
            ((4,), jnp.uint32),
            ((2,), jnp.uint32),
            ((1, segments.num_words(3)), jnp.uint32),
            ((4, segments.num_words(3)), jnp.uint32),
            ((elements // BLOCK, BLOCK), jnp.float32),
            ((elements // BLOCK,), jnp.uint32),
        )
    )
    names = iter(CASES)
    yield next(names), lambda g: partials_mgpu(g, segments, DEFAULTS["moments"]), [vector()]
    coded = (segments, 3, 1, 0, DEFAULTS["ternary_encode"])
    yield next(names), lambda g, s, k: ternary_encode_mgpu(g, s, k, *coded), [vector(), one(), key()]
    meant = (segments, 1, 3, None, None, DEFAULTS["ternary_decode"])
    yield next(names), lambda w, u: ternary_decode_mgpu(w, u, *meant), [words(), one()]
    yield next(names), lambda w: shard_sum_mgpu(w, elements, 1, 9, DEFAULTS["shard_sum"]), [all_words()]
    for is_inverse in (False, True):
        turned = partial(rotate_blocks_mgpu, is_inverse=is_inverse)
        yield next(names), lambda x, k, f, turn=turned: turn(x, k, f), [blocks(), half_key(), firsts()]


def compile_kernel(
    kernel: Callable, operands: list[jax.ShapeDtypeStruct], folder: Path, ptxas: str, nvdisasm: str
) -> tuple[str, str]:
    """Registers and barriers, as cells of the table, and the machine code."""
    os.environ |= {"MOSAIC_GPU_DUMP_TO": str(folder), "MOSAIC_GPU_DUMP_PTX": "1"}
    gpu = SingleDeviceSharding(describe_gpu())
    placed = [operand.update(sharding=gpu) for operand in operands]
    jax.jit(kernel).trace(*placed).lower(lowering_platforms=("cuda",)).compile()
    (source,) = folder.glob("*.ptx")
    binary = folder / "kernel.cubin"
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    report = run([ptxas, "-arch=sm_90a", "-v", "-o", binary, source]).stderr
    found: Any = re.search(r"Used (\d+) registers, used (\d+) barriers", report)
    spilled = "" if " 0 bytes spill stores" in f" {report}" else ", spilled"
    return f"{found[1]}{spilled} | {found[2]}", run([nvdisasm, "-c", binary]).stdout


def count(code: str, elements: int, accesses: int) -> str:
    """Instructions, those of each pipe, and loads before the first use, as cells; of the shortest stretch that fits."""
    parts = re.split(r"^\.L_\w+:", code, flags=re.MULTILINE)
    stretches = [re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.*?);", part) for part in parts]
    fitting = [lines for lines in stretches if max(map("".join(lines).count, ("LDG", "STG"))) >= accesses]
    lines = min(fitting, key=len)
    opcodes = [line.split()[0] for line in lines if not line.startswith("NOP")]
    of_pipe = [sum(bool(pipe.match(opcode)) for opcode in opcodes) for pipe in (ALU, FMA)]
    figures = " | ".join(f"{n / elements:.1f}" for n in (len(opcodes), *of_pipe))
    return f"{figures} | {most_in_flight(lines)}"


def most_in_flight(lines: list[str]) -> int:
    """The most loads that are under way at once, as far as the order of instructions tells."""
    pending: set[str] = set()
    most = 0
    for line in lines:
        registers = re.findall(r"\bR\d+\b", line)
        if line.startswith("LDG"):
            pending -= set(registers[1:])
            pending.add(registers[0])
            most = max(most, len(pending))
        else:
            pending -= set(registers)
    return most


if __name__ == "__main__":
    main()
