"""The stream of 16-bit noise that the encode kernel consumes, for the tests of randomness, which read standard input.

    python -m benchmarks.kernels.noise --order=positions | RNG_test stdin16 -tlmin 1GB -tlmax 16GB
    python -m benchmarks.kernels.noise --order=steps | dieharder -g 200 -a
    python -m benchmarks.kernels.noise --order=workers --bytes 8589934592 --moments

RNG_test is PractRand's; dieharder reads two values as one of 32 bits. The values are little-endian, two bytes each. The
order is that of the positions under one key, or the same position of many steps or workers side by side. Other
generators are for comparison; one with `--rounds` well below its own is weak, and shows what the tests find. With
`--moments` the mean of the values and a chi-square test of them are printed instead.
"""

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.commands import create_parser
from jaxtern.kernels import derive_key
from jaxtern.kernels.noise import BITS, RUN, draw, philox2x32, take

BATCH = 2**21  # values of one call
KEYS = {"positions": 1, "steps": 8192, "workers": 8192}  # side by side
POSITIONS_OF_ONE_KEY = 2**26  # before the next step's, where no keys are side by side

Words = tuple[jax.Array, ...]
Generator = Callable[[jax.Array, jax.Array], Words]  # of a key, uint32[2], and the numbers of the groups, uint32


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--order", choices=KEYS, default="positions")
    parser.add_argument("--generator", choices=GENERATORS, default="philox2x32", help="the default is the kernel's")
    parser.add_argument("--rounds", type=int, help="default: the generator's own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", type=int, help="side by side, a power of two; default: 8192 steps or workers")
    parser.add_argument("--bytes", type=int, default=2**60, help="default: until the reader has enough")
    parser.add_argument("--moments", action="store_true", help="print what the values are like instead of them")
    arguments = parser.parse_args()
    generator = GENERATORS[arguments.generator]
    if arguments.rounds is not None:
        generator = partial(generator, rounds=arguments.rounds)
    batches = stream(generator, arguments.order, arguments.seed, arguments.keys or KEYS[arguments.order])
    if arguments.moments:
        print(describe(count_values(first_values(batches, arguments.bytes // 2))))
    else:
        write(first_values(batches, arguments.bytes // 2))


def stream(generator: Generator, order: str, seed: int, keys: int) -> Iterator[np.ndarray]:
    """Batches of uint16: some positions of the first keys, position after position, then those of the next keys."""
    positions = max(BATCH // keys, 8 * RUN)
    per_key = max(POSITIONS_OF_ONE_KEY, positions) if keys == 1 else positions

    @jax.jit
    def batch(first_key: jax.Array, first_position: jax.Array) -> jax.Array:
        index = first_key + jnp.arange(keys, dtype=jnp.uint32)
        step, worker = (0 * index, index) if order == "workers" else (index, 0 * index)
        key = jax.vmap(partial(derive_key, seed))(step, worker)
        return jax.vmap(partial(take_all, generator, first_position, positions), out_axes=1)(key)

    for first_key in range(0, 2**32, keys):
        for first_position in range(0, per_key, positions):
            yield np.asarray(batch(np.uint32(first_key), np.uint32(first_position))).reshape(-1)


def take_all(generator: Generator, first_position: jax.Array, positions: int, key: jax.Array) -> jax.Array:
    """uint16[positions], from one call for all the elements that share it, as in the kernel."""
    lanes = 2 * len(jax.eval_shape(generator, key, first_position))
    groups = first_position // lanes + jnp.arange(positions // lanes, dtype=jnp.uint32)
    words = generator(key, groups.reshape(-1, RUN))
    runs = [take((words[lane // 2], words[lane // 2]), lane % 2) for lane in range(lanes)]
    return jnp.stack([run.astype(jnp.uint16) for run in runs], axis=1).reshape(-1)


def first_values(batches: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
    for batch in batches:
        yield batch[:count]
        count -= batch.size
        if count <= 0:
            return


def write(batches: Iterator[np.ndarray]) -> None:
    """To standard output, until its reader closes it."""
    try:
        for batch in batches:
            sys.stdout.buffer.write(batch.astype("<u2", copy=False).data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains as it flushes at exit


def count_values(batches: Iterator[np.ndarray]) -> np.ndarray:
    """How often each of the 2^16 values came."""
    return sum((np.bincount(batch, minlength=2**BITS) for batch in batches), np.zeros(2**BITS, np.int64))


def describe(counts: np.ndarray) -> str:
    """Mean and chi-square of the values beside what uniform ones have, in standard errors."""
    total, values = int(counts.sum()), np.arange(counts.size)
    expected, deviation = (counts.size - 1) / 2, ((counts.size**2 - 1) / 12) ** 0.5
    mean = float((counts * (values - expected)).sum() / total)
    chi_square = float(((counts - total / counts.size) ** 2).sum() * counts.size / total)
    freedom = counts.size - 1
    return (
        f"{total} values; mean - {expected} = {mean:+.5f}, {mean * total**0.5 / deviation:+.2f} standard errors;"
        f" chi-square {chi_square:.0f} of {freedom} degrees of freedom,"
        f" {(chi_square - freedom) / (2 * freedom) ** 0.5:+.2f} standard errors"
    )


def philox2x32_of_kernel(key: jax.Array, group: jax.Array, rounds: int | None = None) -> Words:
    if rounds is None:
        return draw(key, group)
    return philox2x32((group, jnp.full_like(group, 0) + key[0]), key[1], rounds)


def philox4x32(key: jax.Array, group: jax.Array, rounds: int = 7) -> Words:
    """Salmon et al., SC 2011."""
    words, left_key, right_key = (group, *3 * [jnp.zeros_like(group)]), key[0], key[1]
    for _ in range(rounds):
        high0, low0 = multiply(words[0], 0xD2511F53)
        high1, low1 = multiply(words[2], 0xCD9E8D57)
        words = (high1 ^ words[1] ^ left_key, low1, high0 ^ words[3] ^ right_key, low0)
        left_key, right_key = left_key + jnp.uint32(0x9E3779B9), right_key + jnp.uint32(0xBB67AE85)
    return words


def threefry2x32(key: jax.Array, group: jax.Array, rounds: int = 13) -> Words:
    """Salmon et al., SC 2011; JAX's own random numbers are those of 20 rounds."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(0x1BD11BDA))
    left, right = group + keys[0], jnp.zeros_like(group) + keys[1]
    for index in range(rounds):
        left = left + right
        right = rotate(right, (13, 15, 26, 6, 17, 29, 16, 24)[index % 8]) ^ left
        if index % 4 == 3:
            injection = index // 4 + 1
            left = left + keys[injection % 3]
            right = right + keys[(injection + 1) % 3] + jnp.uint32(injection)
    return left, right


def squares32(key: jax.Array, group: jax.Array, rounds: int = 4) -> Words:
    """B. Widynski, "Squares: a fast counter-based RNG", 2020; the key is made odd, as it has to be."""
    with jax.enable_x64(True):
        wide_key = key[0].astype(jnp.uint64) << jnp.uint64(32) | key[1].astype(jnp.uint64) | jnp.uint64(1)
        product = group.astype(jnp.uint64) * wide_key
        x, addends = product, (product, product + wide_key)
        for index in range(rounds):
            x = x * x + addends[index % 2]
            x = x >> jnp.uint64(32) | x << jnp.uint64(32)
        return (x.astype(jnp.uint32),)  # the high half, before the last rotation


def hash_two_keys(key: jax.Array, group: jax.Array, rounds: int = 2) -> Words:
    """A bijective hash of 32 bits for each round, with a word of the key before each."""
    x = group
    for index in range(rounds):
        x = mix(x + key[index % 2] if index else x ^ key[0])
    return (x,)


def hash_each(key: jax.Array, group: jax.Array, rounds: int = 2) -> Words:
    """The upper 16 bits of a hash of its own for either element."""
    low, high = (hash_two_keys(key, 2 * group + jnp.uint32(element), rounds)[0] for element in range(2))
    return (low >> 16 | high & jnp.uint32(0xFFFF0000),)


def mix(x: jax.Array) -> jax.Array:
    """As in `derive_key`."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
    x = (x ^ (x >> 15)) * jnp.uint32(0xD35A2D97)
    return x ^ (x >> 15)


def multiply(x: jax.Array, multiplier: int) -> tuple[jax.Array, jax.Array]:
    """High and low half of the product."""
    with jax.enable_x64(True):
        product = x.astype(jnp.uint64) * jnp.uint64(multiplier)
        return (product >> jnp.uint64(32)).astype(jnp.uint32), product.astype(jnp.uint32)


def rotate(x: jax.Array, distance: int) -> jax.Array:
    return x << distance | x >> (32 - distance)


GENERATORS: dict[str, Callable[..., Words]] = {
    "philox2x32": philox2x32_of_kernel,
    "philox4x32": philox4x32,
    "threefry2x32": threefry2x32,
    "squares32": squares32,
    "hash": hash_two_keys,
    "hash_each": hash_each,
}

if __name__ == "__main__":
    main()
