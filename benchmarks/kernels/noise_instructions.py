"""What 16 bits of noise cost with the generators that were considered: instructions on a GPU, and time on this machine.

    python -m benchmarks.kernels.noise_instructions [--architecture sm_90] [--nvdisasm PATH] [--elements 16777216]

The instructions are counted, not run, so no GPU is needed: nvcc compiles one kernel for each generator, in which a
thread makes the words for 40 elements and stores them, and nvdisasm (of the CUDA toolkit, or the wheel
nvidia-cuda-nvdisasm) shows the machine code, which has no loop. Loads, stores and control flow are left out, and so is
what a kernel without a generator has besides them. To take 16 bits out of a word costs the same with all generators,
and is left out, too. The time is that of a compiled program that makes and stores the words, and no more.
"""

import re
import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.commands import create_parser
from benchmarks.kernels.noise import (
    Words,
    hash_each,
    hash_two_keys,
    philox2x32_of_kernel,
    philox4x32,
    squares32,
    threefry2x32,
)
from benchmarks.timing import Program, call_seconds, machine
from jaxtern.kernels import derive_key

ELEMENTS_OF_THREAD = 40  # two words of 20 ternary digits, and whole calls of every generator

# name: CUDA function, values of a call, the same in JAX; the first is the one that the others are compared with
GENERATORS: dict[str, tuple[str, int, Callable[..., Words]]] = {
    "Philox 2x32-7 (ours)": ("philox2x32<7>", 4, philox2x32_of_kernel),
    "Philox 2x32-10": ("philox2x32<10>", 4, partial(philox2x32_of_kernel, rounds=10)),
    "Philox 4x32-7": ("philox4x32<7>", 8, philox4x32),
    "Philox 4x32-10": ("philox4x32<10>", 8, partial(philox4x32, rounds=10)),
    "Threefry 2x32-13": ("threefry2x32<13>", 4, threefry2x32),
    "Threefry 2x32-20": ("threefry2x32<20>", 4, partial(threefry2x32, rounds=20)),
    "Squares32": ("squares32", 2, squares32),
    "hash with two keys, of two elements": ("hash_two_keys", 2, hash_two_keys),
    "hash with two keys, of each element": ("hash_two_keys", 1, hash_each),
}

SOURCE = """
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ void none(u32 counter, u32 key0, u32 key1, u32 *words) { words[0] = key0 ^ key1; }

template <int ROUNDS>
__device__ __forceinline__ void philox2x32(u32 counter, u32 key0, u32 key1, u32 *words) {
  u32 left = counter, right = key0;
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    u64 product = (u64)left * 0xD256D193u;
    left = (u32)(product >> 32) ^ key1 ^ right;
    right = (u32)product;
    key1 += 0x9E3779B9u;
  }
  words[0] = left;
  words[1] = right;
}

template <int ROUNDS>
__device__ __forceinline__ void philox4x32(u32 counter, u32 key0, u32 key1, u32 *words) {
  u32 a = counter, b = 0, c = 0, d = 0;
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    u64 product0 = (u64)a * 0xD2511F53u, product1 = (u64)c * 0xCD9E8D57u;
    a = (u32)(product1 >> 32) ^ b ^ key0;
    b = (u32)product1;
    c = (u32)(product0 >> 32) ^ d ^ key1;
    d = (u32)product0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = a;
  words[1] = b;
  words[2] = c;
  words[3] = d;
}

template <int ROUNDS>
__device__ __forceinline__ void threefry2x32(u32 counter, u32 key0, u32 key1, u32 *words) {
  const u32 keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
  const int distances[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  u32 left = counter + keys[0], right = keys[1];
#pragma unroll
  for (int i = 0; i < ROUNDS; i++) {
    left += right;
    right = (right << distances[i % 8] | right >> (32 - distances[i % 8])) ^ left;
    if (i % 4 == 3) {
      left += keys[(i / 4 + 1) % 3];
      right += keys[(i / 4 + 2) % 3] + (u32)(i / 4 + 1);
    }
  }
  words[0] = left;
  words[1] = right;
}

__device__ __forceinline__ void squares32(u32 counter, u32 key0, u32 key1, u32 *words) {
  const u64 key = (u64)key0 << 32 | key1 | 1, y = counter * key, z = y + key;
  u64 x = y;
  x = x * x + y;
  x = x >> 32 | x << 32;
  x = x * x + z;
  x = x >> 32 | x << 32;
  x = x * x + y;
  x = x >> 32 | x << 32;
  words[0] = (u32)((x * x + z) >> 32);
}

__device__ __forceinline__ u32 mix(u32 x) {
  x = (x ^ x >> 16) * 0x21F0AAADu;
  x = (x ^ x >> 15) * 0xD35A2D97u;
  return x ^ x >> 15;
}

__device__ __forceinline__ void hash_two_keys(u32 counter, u32 key0, u32 key1, u32 *words) {
  words[0] = mix(mix(counter ^ key0) + key1);
}

#define KERNEL(NAME, CALLS, WORDS, ...)                                                      \\
  extern "C" __global__ void NAME(const u32 *__restrict__ key, u32 *__restrict__ out) {      \\
    u32 thread = threadIdx.x, key0 = key[0], key1 = key[1];                                  \\
    _Pragma("unroll") for (u32 call = 0; call < CALLS; call++) {                             \\
      u32 words[4];                                                                          \\
      __VA_ARGS__(thread + call * 128, key0, key1, words);                                   \\
      for (u32 i = 0; i < WORDS; i++) out[thread * 64 + call * WORDS + i] = words[i];        \\
    }                                                                                        \\
  }
"""

LEFT_OUT = re.compile(r"LD|ST|ULDC|S2|CS2R|EXIT|BRA|NOP|R2UR")  # how the opcodes begin
WIDE_MULTIPLY = re.compile(r"IMAD\.(WIDE|HI)")
NO_MULTIPLY = re.compile(r"IMAD\.(MOV|SHL|IADD|X|U32)")  # moves, shifts and adds in the multiplier's pipe
CLASSES = ("64-bit product", "32-bit product", "logic, shift, add, move")


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--architecture", default="sm_90", help="sm_90 is Hopper")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--elements", type=int, default=2**24, help="of the timed programs; 0: time none")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    missing = [tool for tool in (arguments.nvcc, arguments.nvdisasm) if shutil.which(tool) is None]
    if missing:
        print(f"No instructions counted: {' and '.join(missing)} not found.")
    else:
        rows = count_instructions(arguments.nvcc, arguments.nvdisasm, arguments.architecture)
        print(f"Instructions for 16 bits, {arguments.architecture}, {version(arguments.nvcc)}\n\n{as_table(rows)}")
    if arguments.elements:
        ratios = time_generators(arguments.elements, arguments.repeats)
        print(f"\nTime of {arguments.elements:,} elements, {machine()}\n\n{as_time_table(ratios)}")


def count_instructions(nvcc: str, nvdisasm: str, architecture: str) -> dict[str, Counter]:
    """Instructions for one element by generator and class, less those of a kernel without a generator."""
    kernels = [("kernel_none", "none", 2)]
    kernels += [(f"kernel_{index}", name, values) for index, (name, values, _) in enumerate(GENERATORS.values())]
    lines = [
        f"KERNEL({kernel}, {ELEMENTS_OF_THREAD // values}, {max(values // 2, 1)}, {function})"
        for kernel, function, values in kernels
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "noise.cu"), Path(folder, "noise.cubin")
        source.write_text(SOURCE + "\n".join(lines) + "\n")
        subprocess.run([nvcc, f"-arch={architecture}", "-cubin", "-o", binary, source], check=True)
        listing = subprocess.run([nvdisasm, "-c", binary], check=True, capture_output=True, text=True).stdout
    counts = {kernel: count_classes(code) for kernel, code in split_kernels(listing).items()}
    frame = counts["kernel_none"]
    return {
        name: Counter({key: (counts[f"kernel_{index}"][key] - frame[key]) / ELEMENTS_OF_THREAD for key in CLASSES})
        for index, name in enumerate(GENERATORS)
    }


def split_kernels(listing: str) -> dict[str, str]:
    """Code by the name of the kernel."""
    parts = re.split(r"^\.text\.(\w+):$", listing, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def count_classes(code: str) -> Counter:
    """Instructions by class."""
    opcodes = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", code)
    return Counter(classify(opcode) for opcode in opcodes if not LEFT_OUT.match(opcode))


def classify(opcode: str) -> str:
    if WIDE_MULTIPLY.match(opcode):
        return CLASSES[0]
    return CLASSES[1] if opcode.startswith("IM") and not NO_MULTIPLY.match(opcode) else CLASSES[2]


def version(nvcc: str) -> str:
    listing = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"release [\d.]+, V[\d.]+", listing)
    return f"nvcc {match.group() if match else 'of unknown release'}"


def as_table(rows: dict[str, Counter]) -> str:
    lines = [f"| generator | all | {' | '.join(CLASSES)} |", "| --- |" + " ---: |" * (1 + len(CLASSES))]
    for name, row in rows.items():
        figures = [sum(row.values()), *(row[key] for key in CLASSES)]
        lines.append(f"| {name} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    return "\n".join(lines)


def time_generators(elements: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Median seconds, and median of the ratios to the first generator, which runs before each of the others."""
    key = derive_key(0, 0, 0)
    programs = {
        name: Program(jax.jit(partial(make_words, function, elements)), [(key,)], 0)
        for name, (_, _, function) in GENERATORS.items()
    }
    first = next(iter(programs.values()))
    medians = {}
    for name, program in programs.items():
        call_seconds(first)
        call_seconds(program)
        pairs = [(call_seconds(first), call_seconds(program)) for _ in range(repeats)]
        medians[name] = (
            statistics.median(seconds for _, seconds in pairs),
            statistics.median(seconds / reference for reference, seconds in pairs),
        )
    return medians


def make_words(generator: Callable[..., Words], elements: int, key: jax.Array) -> Words:
    """Of all groups of the elements."""
    values = 2 * len(jax.eval_shape(generator, key, jnp.uint32(0)))
    return generator(key, jnp.arange(elements // values, dtype=jnp.uint32))


def as_time_table(medians: dict[str, tuple[float, float]]) -> str:
    lines = ["| generator | ms | time / ours |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {1e3 * seconds:.1f} | {ratio:.2f} |" for name, (seconds, ratio) in medians.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
