"""Devices whose copies of the state differ: no bit goes unseen, the run stops before it saves, and names them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from jaxtern.models import create_model
from jaxtern.training.run import loop
from jaxtern.training.run.calls import Call
from jaxtern.training.run.divergence import DivergenceError, create_gather, digest, find_difference
from jaxtern.training.run.metrics import read_metrics
from jaxtern.training.run.run import Run
from jaxtern.training.saved import trees
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import TrainState, create_run, specs_of_state

FOUR = {
    "data": "synthetic", "synthetic_shape": (4, 4, 1), "synthetic_examples": 32,
    "synthetic_classes": 3, "num_workers": 4, "num_devices": 4, "batch_size": 8, "exchange": "gather", "num_steps": 8,
    "compare_every": 1,
}  # fmt: skip
TYPES = ("float32", "int32", "uint32", "float16", "bfloat16", "int16", "int8", "uint8", "float8_e4m3fn", "bool")
RANDOM = np.random.default_rng(3)
TREE = {name: RANDOM.integers(0, 2, (3, 5)).astype(jnp.dtype(name)) for name in TYPES}
TREE |= {"scalar": np.int32(7), "large": RANDOM.normal(size=(300, 301)).astype(np.float32)}
TREE = {name: np.asarray(leaf) for name, leaf in TREE.items()}
DIGEST = jax.jit(digest)


def flip(leaf: np.ndarray, element: int, bit: int) -> np.ndarray:
    """A copy with one bit of one element changed."""
    flipped = leaf.copy()
    octets = flipped.reshape(-1).view(np.uint8)
    octets[element * leaf.itemsize + bit // 8] ^= np.uint8(1 << bit % 8)
    return flipped


def numpy_digest(tree: Any) -> list[int]:
    """The digest written a second time."""
    leaves = jax.tree.leaves(tree)
    ordered = sorted(leaves, key=lambda leaf: leaf.size >= 2**16)  # the small ones come first
    octets = [leaf.tobytes() + b"\0" * (-leaf.nbytes % 4) for leaf in ordered]
    words = np.frombuffer(b"".join(octets), np.uint32)
    lanes = []
    for step in (0x9E3779B9, 0x85EBCA6B):
        x = words + np.arange(1, words.size + 1, dtype=np.uint32) * np.uint32(step)
        for shift, multiplier in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
            x = (x ^ (x >> np.uint32(shift))) * np.uint32(multiplier)
        lanes.append(int(np.sum(x ^ (x >> np.uint32(15)), dtype=np.uint32)))
    return lanes


def test_digest_is_the_sum_of_mixed_words():
    assert DIGEST(TREE).tolist() == numpy_digest(TREE)
    assert DIGEST({}).tolist() == [0, 0]


@given(data=st.data())
def test_digest_sees_every_bit(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(TREE)))
    leaf = TREE[name]
    bits = 1 if leaf.dtype == bool else 8 * leaf.itemsize
    element, bit = data.draw(st.integers(0, leaf.size - 1)), data.draw(st.integers(0, bits - 1))
    changed = DIGEST(TREE | {name: flip(leaf, element, bit)})
    assert np.all(np.asarray(changed) != np.asarray(DIGEST(TREE)))  # in both lanes


@given(places=st.lists(st.integers(0, 300 * 301 - 1), min_size=2, max_size=2, unique=True))
@example(places=[0, 1])
@example(places=[0, 301])
def test_digest_sees_the_order_of_elements(places: list[int]):
    swapped = TREE["large"].copy()
    swapped.reshape(-1)[places] = swapped.reshape(-1)[places[::-1]]
    assert DIGEST(TREE | {"large": swapped}).tolist() != DIGEST(TREE).tolist()


def test_digest_sees_the_order_of_tensors():
    small, large = (np.stack([RANDOM.normal(size=n), RANDOM.normal(size=n)]).astype(np.float32) for n in (9, 2**16))
    for pair in (small, large):
        assert DIGEST(list(pair)).tolist() != DIGEST(list(pair[::-1])).tolist()


def test_digest_is_of_bits_not_of_numbers():
    zeros = [np.float32([value, 1.0]) for value in (0.0, -0.0)]
    payloads = [np.uint32([0x7FC00000 + i]).view(np.float32) for i in range(3)]
    signalling = [np.uint32([0x7F800001 + i]).view(np.float32) for i in range(3)]
    halves = [np.uint16([0x7E00 + i]).view(np.float16) for i in range(3)]
    subnormal = [np.uint32([i]).view(np.float32) for i in range(3)]
    for values in (zeros, payloads, signalling, halves, subnormal):
        assert len({tuple(DIGEST(value).tolist()) for value in values}) == len(values)


def corrupt(state: Any, field: str, device: int, bit: int = 0) -> Any:
    """The state with one bit of the copy on one device changed, in the middle of a field's largest tensor."""
    leaves, treedef = jax.tree.flatten(getattr(state, field))
    which = max(range(len(leaves)), key=lambda i: leaves[i].size)
    copies = []
    for shard in leaves[which].addressable_shards:
        own = np.array(shard.data)
        own = flip(own, own.size // 2, bit) if shard.device.id == device else own
        copies.append(jax.device_put(own, shard.device))
    leaf = leaves[which]
    leaves[which] = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, copies)
    return state._replace(**{field: treedef.unflatten(leaves)})


def corrupt_in(run: Run, step: int, field: str, device: int) -> None:
    """Changes a bit of one device's copy after so many steps."""
    train_step, calls = run.train_step, []

    def changed(*arguments: Any) -> Any:
        calls.append(None)
        state, metrics = train_step(*arguments)
        return (corrupt(state, field, device) if len(calls) == step else state), metrics

    run.train_step = changed


def stop(run: Run) -> str:
    with pytest.raises(DivergenceError) as caught:
        loop.train(run)
    run.close()
    assert "\n" not in str(caught.value)
    return str(caught.value)


FIELDS = {
    "step": "count of steps", "params": "weights", "frozen": "frozen weights", "moments": "moments of batch norm",
    "optimizer": "optimiser", "averages": "averages", "compressor": "compressor",
}  # fmt: skip


@pytest.mark.slow
def test_gather_names_what_differs_and_where(small_recipe: Callable, wire: Callable):
    recipe = small_recipe(**FOUR | {"model": "tiny_norm", "average_decay": 0.9, "freeze": ("fc1/kernel",)})
    mesh = create_mesh(recipe)
    model = create_model(recipe.model.name, (4, 4, 1), 3, 0)
    _, state = create_run(recipe, model, 32, mesh)
    gather = create_gather(mesh, specs_of_state())
    (sent,) = wire(gather, state)
    assert (sent.name, sent.dtype, sent.size) == ("all-gather", "u32", 4 * 8 * 2)
    devices = jax.devices()[:4]
    assert find_difference(np.asarray(gather(state)), devices) is None
    for device, (field, name) in enumerate(FIELDS.items()):
        found = find_difference(np.asarray(gather(corrupt(state, field, device % 4))), devices)
        assert found == f"device {device % 4} differs from the other 3 devices in {name}"


def test_gather_sees_what_workers_share_of_a_method_and_not_what_each_has_of_its_own(small_recipe: Callable):
    recipe = small_recipe(**FOUR | {"method": "low_rank", "min_ratio": 1.0})
    mesh = create_mesh(recipe)
    _, state = create_run(recipe, create_model(recipe.model.name, (4, 4, 1), 3, 0), 32, mesh)
    gather, devices = create_gather(mesh, specs_of_state()), jax.devices()[:4]
    for part, said in (("shared", "device 2 differs from the other 3 devices in compressor"), ("local", None)):
        changed = state._replace(compressor=corrupt(state.compressor, part, 2))
        assert find_difference(np.asarray(gather(changed)), devices) == said


def test_run_stops_at_a_difference_before_it_saves(prepare: Callable, tmp_path: Path):
    run = prepare(**FOUR, checkpoint_every=5)
    corrupt_in(run, 5, "optimizer", 2)
    assert stop(run) == (
        "step 5: device 2 differs from the other 3 devices in optimiser; the last good checkpoint is at step 0"
    )
    assert prepare(**FOUR, checkpoint_every=5).checkpoints.steps() == [0]
    assert [record["step"] for record in read_metrics(tmp_path / "run")] == [1, 2, 3, 4]


def test_run_never_saves_device_0s_state_where_the_others_hold_another(prepare: Callable):
    """It is that which is saved; a comparison is due then, though it is in no other step."""
    fields = FOUR | {"compare_every": 100, "checkpoint_every": 3}
    run = prepare(**fields)
    corrupt_in(run, 5, "params", 0)
    assert stop(run) == (
        "step 6: device 0 differs from the other 3 devices in weights; the last good checkpoint is at step 3"
    )
    assert prepare(**fields).checkpoints.steps() == [0, 3]


def test_run_compares_in_the_first_step_for_a_host_that_computes_otherwise(prepare: Callable):
    run = prepare(**FOUR | {"compare_every": 100})
    corrupt_in(run, 1, "params", 3)
    assert stop(run).startswith("step 1: device 3 differs from the other 3 devices in weights;")


def test_run_is_compared_every_so_many_steps_at_the_ends_of_calls(prepare: Callable):
    run = prepare(**FOUR | {"compare_every": 3, "steps_per_call": 2, "num_steps": 14, "log_every": 100})
    compare, due = run.guard.compare, []

    def noting(state: TrainState, before: int, after: int, saves: bool) -> Any:
        digests = compare(state, before, after, saves)
        due.extend([after] * (digests is not None))
        return digests

    run.guard.compare = noting
    loop.train(run)
    assert due == [2, 4, 6, 10, 12, 14]


@pytest.mark.few("fields0")
@pytest.mark.parametrize(
    "fields",
    [
        {"compare_every": 0},
        {"num_devices": 1},
    ],
)
def test_run_without_comparison_goes_on(prepare: Callable, fields: dict[str, Any]):
    run = prepare(**FOUR | fields)
    corrupt_in(run, 2, "params", 2)
    loop.train(run)
    assert run.guard.compare(run.state, 0, 1000, True) is None


@pytest.mark.few("optimizer*")
@pytest.mark.parametrize(
    "extra",
    [
        {"optimizer": "adam", "exchange": "two_way", "statistics": True},
        {"method": "float"},
        {"delayed": True},
        {"model": "tiny_norm", "batch_norm": "sync", "average_decay": 0.9},
        {"model": "tiny_norm", "batch_norm": "first", "precision": "float16", "loss_scale": 2.0**13},
        {"model": "tiny_norm", "num_workers": 2, "devices_per_worker": 2, "average_decay": 0.9},
        {"num_workers": 2, "devices_per_worker": 2, "delayed": True},
    ],
    ids="-".join,
)
def test_run_undisturbed_holds_one_state(prepare: Callable, extra: dict[str, Any]):
    """All that is compared is the same after every step, and has changed."""
    run = prepare(**FOUR | extra)
    batches, seen, call = run.feed.batches(0, iter([1] * 5)), set(), Call(1, int(run.recipe.mean.method != "float"))
    for step in range(5):
        run.state, _ = run.train_step(run.state, run.feed.examples, next(batches), call)
        digests = run.guard.compare(run.state, step, step + 1, False)
        assert digests.shape == (4, 8, 2)
        assert run.guard.find_difference(np.asarray(digests)) is None
        seen.add(tuple(np.asarray(digests)[0, 1]))
    assert len(seen) > 2
    batches.close()


def test_run_that_is_compared_leaves_the_bits_of_one_that_is_not(prepare: Callable, tmp_path: Path):
    seen = set()
    for every in (1, 0):
        run = prepare(tmp_path / str(every), **FOUR | {"compare_every": every})
        loop.train(run)
        seen.add(trees.digest(jax.device_get(run.state)))
    assert len(seen) == 1


def devices(*processes: int) -> list[Any]:
    return [SimpleNamespace(process_index=process, id=2048 * process + i) for i, process in enumerate(processes)]


@pytest.mark.parametrize(
    ("processes", "held", "words"),
    [
        ([0, 1, 2], "aab", "device 0 of process 2 (host z) differs from the other 2 devices in weights"),
        ([0, 0, 1, 1, 2, 2], "aabbaa", "devices 0, 1 of process 1 (host y) differ from the other 4 devices in weights"),
        (
            [0, 0, 1, 1],
            "abac",
            "device 1 of process 0 (host x), device 1 of process 1 (host y) differ from the other 2 devices in weights",
        ),
        (
            [0, 1],
            "ba",
            "device 0 of process 0 (host x) and device 0 of process 1 (host y) differ in weights, and no",
        ),
        (
            [0, 0, 1, 1],
            "bbaa",
            "devices 0, 1 of process 0 (host x) and devices 0, 1 of process 1 (host y) differ in weights, and no",
        ),
        ([0, 0], "ab", "device 0 and device 1 differ in weights, and no"),
    ],
)
def test_difference_is_that_from_most(processes: list[int], held: str, words: str):
    digests = np.zeros((len(held), 8, 2), np.uint32)
    digests[:, 1, 1] = [ord(letter) for letter in held]
    tail = " majority tells which is right" * words.endswith("and no")
    assert find_difference(digests, devices(*processes), "xyz") == words + tail
    assert find_difference(np.zeros_like(digests), devices(*processes), "xyz") is None


def test_difference_without_names_of_hosts_is_told_by_process():
    digests = np.zeros((3, 8, 2), np.uint32)
    digests[1, 1:3] = 5
    words = "device 0 of process 1 differs from the other 2 devices in weights, frozen weights"
    assert find_difference(digests, devices(0, 1, 2)) == words
