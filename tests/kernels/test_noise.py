"""The stream of noise: what it is made of, and that statistical tests do not tell it from independent fair bits.

Every p-value is two-sided: too even is as suspect as too uneven. About 1,500 are taken here, none may be below FAILURE,
so a perfect generator would fail this file with probability 1.5e-6. The streams are fixed: it fails always or never.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxtern.kernels import derive_key, random_bits
from jaxtern.kernels.noise import philox2x32

pytestmark = pytest.mark.optimized

FAILURE = 1e-9
NUM_WORDS = 2**18
GOLDEN = [  # seed, step, worker, position, bits: the stream may never change, or finished runs cannot be repeated
    (0, 0, 0, 0, 0x49AC),
    (0, 0, 0, 1, 0xF28F),
    (0, 0, 0, 128, 0xB53D),
    (0, 0, 0, 511, 0x61AB),
    (0, 0, 1, 0, 0xC91E),
    (0, 1, 0, 0, 0x536A),
    (1, 0, 0, 0, 0x541F),
    (42, 1000, 7, 123456, 0x2C9F),
    (4294967295, 2147483647, 126, 4294967295, 0xA963),
]


def _values(seed: object, step: object, worker: object, position: object) -> np.ndarray:
    """16 bits for each of the four counters, arrays or scalars."""
    counters = np.broadcast_arrays(*(np.asarray(x, np.uint32) for x in (seed, step, worker, position)))
    draw = jax.vmap(lambda s, t, w, p: random_bits(derive_key(s, t, w), p))
    return np.asarray(jax.jit(draw)(*(jnp.asarray(x.reshape(-1)) for x in counters)))


def _words(*counters: object) -> np.ndarray:
    """Two values to a word of 32 bits."""
    values = _values(*counters)
    return values[::2] | values[1::2] << np.uint32(16)


_COUNT = np.arange(2 * NUM_WORDS)
STREAMS = {
    "position": lambda: _words(0, 0, 0, _COUNT),
    "position, other key": lambda: _words(7, 1000, 3, _COUNT),
    "every 2^12th position": lambda: _words(0, 1, 0, _COUNT * 2**12),
    "one place of every run": lambda: _words(0, 1, 0, _COUNT * 128 + 77),
    "last positions": lambda: _words(1, 0, 0, 2**32 - _COUNT.size + _COUNT),
    "step": lambda: _words(0, _COUNT, 0, 0),
    "worker": lambda: _words(0, 0, _COUNT, 5),
    "seed": lambda: _words(_COUNT, 0, 0, 0),
    "worker within step": lambda: _words(0, _COUNT // 8, _COUNT % 8, 12345),
    "step within position": lambda: _words(0, _COUNT % 64, 0, _COUNT // 64),
}


def _chi2(counts: np.ndarray, probabilities: np.ndarray | float) -> float:
    """p-value of counts under their law."""
    expected = counts.sum() * np.broadcast_to(probabilities, counts.shape)
    return _two_sided(stats.chi2(counts.size - 1), np.sum((counts - expected) ** 2 / expected))


def _two_sided(law: Any, value: float) -> float:
    return float(min(1.0, 2 * min(law.sf(value), law.cdf(value))))


def _balance(words: np.ndarray) -> list[float]:
    """Monobit test of each of the 32 bits (NIST SP 800-22, 2.1)."""
    ones = ((words[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)).sum(axis=0, dtype=np.int64)
    return [_two_sided(stats.norm, z) for z in (2 * ones - words.size) / np.sqrt(words.size)]


def _bytes(words: np.ndarray) -> list[float]:
    return [_chi2(np.bincount((words >> np.uint32(8 * i)) & np.uint32(255), minlength=256), 1 / 256) for i in range(4)]


def _serial(words: np.ndarray) -> list[float]:
    """Neighbours: pairs of their top and of their bottom four bits, and the balance of their exclusive or."""
    pairs = words.reshape(-1, 2)
    return [*_joint(pairs[:, 0], pairs[:, 1]), *_balance(pairs[:, 0] ^ pairs[:, 1])]


def _joint(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Independence of two streams: 16 x 16 cells of their top and of their bottom four bits."""
    top = (a >> np.uint32(28)) * 16 + (b >> np.uint32(28))
    bottom = (a & np.uint32(15)) * 16 + (b & np.uint32(15))
    return [_chi2(np.bincount(cells, minlength=256), 1 / 256) for cells in (top, bottom)]


def _runs(words: np.ndarray) -> list[float]:
    """Changes of the top bit from word to word (NIST SP 800-22, 2.3)."""
    top = (words >> np.uint32(31)).astype(np.int64)
    changes, n = int(np.sum(top[1:] != top[:-1])), words.size - 1
    return [_two_sided(stats.norm, (2 * changes - n) / np.sqrt(n))]


def _collisions(words: np.ndarray) -> list[float]:
    """Birthdays: 2^14 words at a time meet in their top 24 bits as often as a Poisson law says (Knuth 3.3.2 I)."""
    groups = np.sort((words >> np.uint32(8)).reshape(-1, 2**14), axis=1)
    met, mean = int(np.sum(groups[:, 1:] == groups[:, :-1])), groups.shape[0] * 2**28 / 2**25
    return [_two_sided(stats.poisson(mean), met)]


def _ranks(words: np.ndarray) -> list[float]:
    """Ranks over GF(2) of 32 x 32 matrices (Marsaglia; NIST SP 800-22, 2.5): finds what is linear in the bits."""
    rows = words.reshape(-1, 32).copy()
    rank = np.zeros(rows.shape[0], np.int64)
    for bit in range(32):
        has = (rows >> np.uint32(bit)) & np.uint32(1)
        pivot, found = has.argmax(axis=1), has.any(axis=1)
        row = np.where(found, rows[np.arange(rank.size), pivot], 0).astype(np.uint32)
        rows ^= np.where(has == 1, row[:, None], 0).astype(np.uint32)  # the pivot's own row becomes zero
        rank += found
    counts = np.bincount(np.clip(32 - rank, 0, 2), minlength=3)
    return [_chi2(counts, np.array([0.2887880952, 0.5775761902, 0.1336357146]))]


STATISTICS: dict[str, Callable[[np.ndarray], list[float]]] = {
    "balance": _balance,
    "bytes": _bytes,
    "serial": _serial,
    "runs": _runs,
    "collisions": _collisions,
    "ranks": _ranks,
}


@pytest.fixture(scope="module", params=STREAMS)
def stream(request: pytest.FixtureRequest) -> np.ndarray:
    return STREAMS[request.param]()


@pytest.mark.parametrize("statistic", STATISTICS)
def test_random_bits_pass_statistical_tests_along_every_counter(stream: np.ndarray, statistic: str):
    assert FAILURE < min(STATISTICS[statistic](stream))


def _good(key: np.ndarray, position: np.ndarray) -> np.ndarray:
    halves = [np.asarray(random_bits(jnp.asarray(key), jnp.asarray(position + shift))) for shift in (0, 2**31)]
    return halves[0] | halves[1] << np.uint32(16)


def _few_rounds(key: np.ndarray, position: np.ndarray) -> np.ndarray:
    return np.asarray(philox2x32((jnp.asarray(position), jnp.uint32(key[0])), jnp.uint32(key[1]), rounds=2)[0])


def _one_multiplication(key: np.ndarray, position: np.ndarray) -> np.ndarray:
    x = (position ^ key[0]) * np.uint32(0x21F0AAAD)
    return (x ^ (x >> np.uint32(15))) + key[1]


def _one_bit_stuck_together(key: np.ndarray, position: np.ndarray) -> np.ndarray:
    good = _good(key, position)
    return good & ~np.uint32(1) | (good >> np.uint32(1)) & np.uint32(1)


WEAKENED = {
    "counter": lambda key, position: position + key[0],
    "Weyl sequence": lambda key, position: position * np.uint32(0x9E3779B9) + key[0],
    "one multiplication": _one_multiplication,
    "Philox with two rounds": _few_rounds,
    "two bits the same": _one_bit_stuck_together,
    "a bit always set in every 64th word": lambda key, position: (
        _good(key, position) | np.where(position % 64 == 0, np.uint32(2**31), np.uint32(0))
    ),
}


@pytest.mark.parametrize("name", WEAKENED)
def test_statistical_tests_find_a_weakened_generator(name: str):
    words = WEAKENED[name](np.array([123456789, 987654321], np.uint32), np.arange(NUM_WORDS, dtype=np.uint32))
    p_values = [p for statistic in STATISTICS.values() for p in statistic(words)]
    assert min(p_values) < FAILURE


NEIGHBOURS = {  # (seed, step, worker) of two streams
    "steps": ((0, 0, 0), (0, 1, 0)),
    "late steps": ((0, 99_999, 0), (0, 100_000, 0)),
    "workers": ((0, 0, 0), (0, 0, 1)),
    "last of 127 workers": ((0, 17, 125), (0, 17, 126)),
    "seeds": ((0, 0, 0), (1, 0, 0)),
    "seeds 2^31 apart": ((5, 3, 2), (5 + 2**31, 3, 2)),
    "step and worker exchanged": ((0, 1, 2), (0, 2, 1)),
    "seed and step exchanged": ((3, 4, 0), (4, 3, 0)),
}


@pytest.mark.parametrize("pair", NEIGHBOURS)
@pytest.mark.parametrize("shift", [0, 1, 2**10])
def test_streams_of_neighbouring_keys_are_independent(pair: str, shift: int):
    first, second = (_words(*key, _COUNT + place) for key, place in zip(NEIGHBOURS[pair], (0, shift), strict=True))
    assert FAILURE < min(*_joint(first, second), *_balance(first ^ second))


@pytest.mark.parametrize(  # of the authors' library, Random123: rounds, counter, key, bits
    ("rounds", "counter", "key", "bits"),
    [
        (7, (0, 0), 0, (0x257A3673, 0xCD26BE2A)),
        (7, (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0xAB302C4D, 0x3DC9D239)),
        (7, (0x243F6A88, 0x85A308D3), 0x13198A2E, (0xBEDBBE6B, 0xE4C770B3)),
        (10, (0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        (10, (0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        (10, (0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_its_authors_answers(rounds: int, counter: tuple, key: int, bits: tuple):
    halves = philox2x32(tuple(jnp.uint32(half) for half in counter), jnp.uint32(key), rounds)
    assert tuple(int(half) for half in halves) == bits


def _mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x21F0AAAD % 2**32
    x ^= x >> 15
    x = x * 0xD35A2D97 % 2**32
    return x ^ x >> 15


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 - 1])
def test_derive_key_can_be_inverted_so_no_two_workers_or_steps_share_a_key(seed: int):
    edge = [0, 1, 2, 127, 128, 2**16, 2**31, 2**32 - 1]
    steps, workers = (np.array(grid, np.uint32).reshape(-1) for grid in np.meshgrid(edge, edge))
    keys = jax.jit(jax.vmap(lambda t, w: derive_key(seed, t, w)))(steps, workers)
    for step, worker, (left, right) in zip(steps, workers, np.asarray(keys).tolist(), strict=True):
        for i in (4, 3, 2, 1):
            round_key = _mix((seed + i * 0x9E3779B9) % 2**32)
            left, right = right ^ _mix((left + round_key) % 2**32), left
        assert (left, right) == (step, worker)


def test_derive_key_never_repeats_over_steps_workers_and_seeds():
    seeds, steps, workers = (x.reshape(-1).astype(np.uint32) for x in np.meshgrid(range(8), range(256), range(128)))
    keys = np.asarray(jax.jit(jax.vmap(derive_key))(seeds, steps, workers)).astype(np.uint64)
    assert np.unique(keys[:, 0] << np.uint64(32) | keys[:, 1]).size == seeds.size


@pytest.mark.parametrize("seed", [0, 2**31 - 1, 2**31, 2**32 - 1])
def test_derive_key_takes_any_seed_below_2_to_the_32(seed: int):
    np.testing.assert_array_equal(derive_key(seed, 0, 0), derive_key(np.uint32(seed), 0, 0))


@pytest.mark.parametrize(("seed", "step", "worker", "position", "bits"), GOLDEN)
def test_random_bits_never_change(seed: int, step: int, worker: int, position: int, bits: int):
    assert int(_values(seed, step, worker, position)[0]) == bits


def test_random_bits_are_the_same_jitted_vmapped_and_alone(numpy_bits: Callable):
    positions = np.arange(0, 2**32, 2**22 + 1, dtype=np.uint32)
    draw = lambda worker, place: random_bits(derive_key(3, 14, worker), place)  # noqa: E731
    alone = np.stack([draw(worker, jnp.asarray(positions)) for worker in range(4)])
    over_workers = jax.vmap(draw, in_axes=(0, None))(jnp.arange(4), jnp.asarray(positions))
    over_places = jax.jit(jax.vmap(jax.vmap(draw, in_axes=(None, 0)), in_axes=(0, None)))(jnp.arange(4), positions)
    np.testing.assert_array_equal(over_workers, alone)
    np.testing.assert_array_equal(over_places, alone)
    np.testing.assert_array_equal(np.stack([numpy_bits(3, 14, worker, positions) for worker in range(4)]), alone)
