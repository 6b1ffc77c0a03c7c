"""What holds for every reducer: one table, one list of claims. A new method is one row.

All claims of a row share its compiled programs, one for each layout of the workers.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import pytest
import scipy.stats
from jax.sharding import AxisType, Mesh, PartitionSpec

import jaxtern
from jaxtern import CompressedMeanState, Reducer, compressed_mean
from jaxtern.compression.radix.buckets import BUCKET_SIZE, plan_buckets
from jaxtern.compression.radix.gaussian import best_code
from jaxtern.compression.reducer import SHARED
from jaxtern.compression.transform import layout_of
from jaxtern.kernels import derive_key, rotate
from jaxtern.kernels.segments import split

pytestmark = pytest.mark.optimized

FAILURE = 1e-9  # probability with which a claim about a row's noise fails though it holds
SHAPES = {"bias": (33,), "conv": (3, 2, 5), "empty": (0, 4), "half": (130,), "kernel": (24, 17), "scalar": ()}
LARGE = SHAPES | {"kernel": (150, 117)}  # above 2^14 elements
NUM_WORKERS, NUM_STEPS = 4, 64  # gradients differ from step to step until CONSTANT
CONSTANT = 3
ROUNDED_AGAIN = {"terngrad two-way", "ternary two-way", "ternary two-way, feedback"}  # small tensors together
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # compiled, not run


class Row(NamedTuple):
    """One reducer and what it claims of its means.

    Attributes:
      make: the reducer.
      claim: checks a `Run` of NUM_STEPS steps.
      draws: whether it draws noise.
      tells: whether it tells what was sent.
      mixes: whether a tensor's mean depends on other tensors.
      served: the last part of its local state, if that is cut into shards, one a worker, to tensors.
      shapes: of the tensors.
    """

    make: Callable[[], Reducer]
    claim: Callable[["Run"], None]
    draws: bool = False
    tells: bool = True
    mixes: bool = False
    served: Callable | None = None
    shapes: dict[str, tuple[int, ...]] = SHAPES


class Run(NamedTuple):
    """All steps of a row in one program, of vmapped workers.

    Attributes:
      gradients: leaves [NUM_STEPS, N, ...].
      means: leaves [NUM_STEPS, ...].
      states: leaves [NUM_STEPS, ...], with a further axis of the workers in `local`.
      layout: of the tensors.
    """

    gradients: Any
    means: Any
    states: CompressedMeanState
    layout: jaxtern.Layout


def exact(dtype: str = "float32") -> Callable[[Run], None]:
    """The mean of the tensors rounded to a dtype, added in the order of the workers, to the bit."""

    def check(run: Run) -> None:
        for gradients, means in zip(leaves(run.gradients), leaves(run.means), strict=True):
            rounded = gradients.astype(dtype).astype(np.float32)
            expected = functools.reduce(np.add, np.moveaxis(rounded, 1, 0)) / np.float32(NUM_WORKERS)
            assert_bits(means, expected.astype(dtype).astype(means.dtype))

    return check


def unbiased(levels: int, *, block_size: int | None = None, rounds: int = 1) -> Callable:
    """E[mean] is the mean of the clipped gradients: of each element, and of all along their signs.

    By Hoeffding's inequality: every draw of a worker, and of the second round, lies in an interval of one level.
    """

    def check(run: Run) -> None:
        for gradients, means in zip(leaves(run.gradients), leaves(run.means), strict=True):
            constant = gradients[-1].reshape(NUM_WORKERS, -1).astype(np.float64)
            draws = means[CONSTANT:].reshape(NUM_STEPS - CONSTANT, -1).astype(np.float64)
            scales = clipping_scales(constant, block_size)
            expected = np.clip(constant, -scales, scales).mean(axis=0)
            error, level = draws.mean(axis=0) - expected, scales / levels
            terms = [len(draws) * NUM_WORKERS, len(draws)][:rounds]
            bound = sum(math.sqrt(math.log(4 * max(error.size, 1) / FAILURE) / (2 * count)) for count in terms)
            assert (np.abs(error) <= level * (bound + 0.01)).all()
            bias = np.sum(error * np.sign(expected) / level) / math.sqrt(max(error.size, 1))
            assert abs(bias) <= bound + 0.01 * math.sqrt(error.size)
            assert error.size < 100 or len(np.unique(draws[:, 1])) > 1  # drawn anew in each step

    return check


def rotated(levels: int, rounding: str = "dither", rounds: int = 1) -> Callable:
    """E[mean] is the mean of the gradients, but for one fiftieth; its noise is that of a normal variable.

    By Student's t of as many draws, rotations being drawn anew in each step. Smaller tensors are not clipped, and their
    noise is as large as their largest element makes it.
    """
    code = best_code(levels, rounding)

    def check(run: Run) -> None:
        for gradients, means in zip(leaves(run.gradients), leaves(run.means), strict=True):
            constant = gradients[-1].reshape(NUM_WORKERS, -1).astype(np.float64)
            is_small = constant.shape[1] < 256
            if not constant.size or (is_small and rounding == "nearest"):  # too small to be spread, so biased
                continue
            errors = means[CONSTANT:].reshape(NUM_STEPS - CONSTANT, -1) - constant.mean(axis=0)
            limit = scipy.stats.t.isf(FAILURE / (2 * errors.shape[1]), len(errors) - 1) / math.sqrt(len(errors))
            spread = np.sqrt(np.mean(constant**2))
            assert (np.abs(errors.mean(axis=0)) <= limit * errors.std(axis=0, ddof=1) + 0.02 * spread).all()
            expected = constant.mean(axis=0)
            along = errors @ expected / (expected @ expected)
            assert abs(along.mean()) <= limit * along.std(ddof=1) + 0.02
            noise = np.mean(np.sum(errors**2, axis=1)) / (np.sum(constant**2) / NUM_WORKERS**2)
            assert is_small or rounds > 1 or noise <= 1.1 * code.noise

    return check


def clipping_scales(rows: np.ndarray, block_size: int | None) -> np.ndarray:
    """float64[n], the scale of every element of [N, n]: the largest of the workers' min(2.5 sigma, max|g|)."""
    size, found = block_size or max(rows.shape[1], 1), np.empty(rows.shape[1])
    for start in range(0, rows.shape[1], size):
        block = rows[:, start : start + size]
        own, clipped = np.abs(block).max(axis=1), 2.5 * block.std(axis=1)
        found[start : start + size] = np.where(clipped > 0, np.minimum(clipped, own), own).max()
    return found


def contractive(delta: float, owed: Callable | None = None, momentum: float = 0.0) -> Callable[[Run], None]:
    """||p - sent||^2 <= (1 - delta) ||p||^2, and what was not sent so far is owed, no more of it than that allows.

    Step 0 has the same gradients on all workers, nothing is owed before it, and so p = g there.

    Args:
      delta: of these gradients.
      owed: `State.local` and the layout to what the workers still owe, tensors [...] of their mean. The sum of all
        means and of it is that of all velocities u = momentum u + g; None: nothing is kept.
      momentum: 0: velocities are gradients.
    """

    def check(run: Run) -> None:
        assert run.states.statistics.error[0] <= 1 - delta
        if owed is None:
            return
        last = jax.tree.map(lambda x: x[-1], run.states.local)
        squares = [0.0, 0.0]
        columns = zip(leaves(run.gradients), leaves(run.means), owed(last, run.layout), strict=True)
        for gradients, means, rest in columns:
            velocity = total = np.zeros(means.shape[1:])
            for gradient in gradients.astype(np.float64).mean(axis=1):
                velocity = momentum * velocity + gradient
                total = total + velocity
            eps = float(ml_dtypes.finfo(means.dtype).eps)
            found = means.sum(axis=0, dtype=np.float64) + rest
            np.testing.assert_allclose(found, total, rtol=0, atol=NUM_STEPS * eps * np.abs(total).max(initial=1))
            squares = [squares[0] + np.sum(rest**2), squares[1] + np.sum(velocity**2)]
        # Karimireddy et al., lemma 3, of the largest gradients.
        assert math.sqrt(squares[0]) <= 2 * math.sqrt(1 - delta) / delta * 3 * math.sqrt(squares[1])

    return check


def errors(local: Any, layout: jaxtern.Layout) -> list[np.ndarray]:
    """What `error_feedback` keeps, mean over workers."""
    del layout
    return [error.mean(axis=0, dtype=np.float64) for error in local[0]]


def both_errors(served: Callable) -> Callable:
    """The workers' and the server's."""

    def add(local: Any, layout: jaxtern.Layout) -> list[np.ndarray]:
        return [mine + theirs for mine, theirs in zip(errors(local, layout), served(local[-1], layout), strict=True)]

    return add


def unrotated(shards: list[np.ndarray], layout: jaxtern.Layout) -> list[np.ndarray]:
    """The server's errors of a bucket, dealt out to the workers, in the shapes of the layout."""
    (bucket,) = plan_buckets(layout, BUCKET_SIZE)
    parts = split(shards[0].reshape(-1)[: bucket.size], bucket.sizes)
    key = derive_key(3, 0, 2**32 - 1 - SHARED.index("rotation"))
    found = dict(zip(bucket.places, rotate(parts, key, is_inverse=True), strict=True))
    return [np.asarray(found[place]).reshape(shape) for place, shape in enumerate(layout.shapes)]


def joined(shards: list[np.ndarray], layout: jaxtern.Layout) -> list[np.ndarray]:
    """The server's errors: element 32 words apart, words dealt out to the workers, in the shapes of the layout."""
    found = []
    for leaf, shape, size in zip(shards, layout.shapes, layout.sizes, strict=True):
        planes = np.concatenate(list(leaf), axis=1)[:, : -(-size // 32)]
        found.append(planes.reshape(-1)[:size].reshape(shape))
    return found


def after(name: str) -> Callable[[Run], None]:
    """Zero, then the means of another row, a step late."""

    def check(run: Run) -> None:
        for late, mean in zip(leaves(run.means), leaves(run_of(name).means), strict=True):
            assert not late[0].any()
            assert_bits(late[1:], mean[:-1])

    return check


ROWS = {
    "float": Row(lambda: jaxtern.float_mean(in_order=True), exact()),
    "float16": Row(lambda: jaxtern.float_mean("float16"), exact("float16")),
    "bfloat16": Row(lambda: jaxtern.float_mean("bfloat16"), exact("bfloat16")),
    "terngrad": Row(lambda: jaxtern.terngrad(exchange="gather"), unbiased(1), draws=True),
    "terngrad two-way": Row(lambda: jaxtern.terngrad(exchange="two_way"), unbiased(1, rounds=2), draws=True),
    "ternary by gather": Row(lambda: jaxtern.ternary(exchange="gather"), rotated(1), draws=True),
    "ternary by sum": Row(lambda: jaxtern.ternary(exchange="sum"), rotated(1), draws=True, shapes=LARGE),
    "ternary by scatter": Row(lambda: jaxtern.ternary(exchange="scatter"), rotated(1), draws=True),
    "ternary two-way": Row(lambda: jaxtern.ternary(exchange="two_way"), rotated(1, rounds=2), draws=True),
    "ternary two-way, feedback": Row(
        lambda: jaxtern.ternary(exchange="two_way", error_feedback=True),
        contractive(0.5, both_errors(unrotated)),
        draws=True,
        served=unrotated,
        shapes=LARGE,
    ),
    "ternary, own noise": Row(lambda: jaxtern.ternary(rounding="stochastic"), rotated(1, "stochastic"), draws=True),
    "7 levels, nearest": Row(lambda: jaxtern.quantized(3, rounding="nearest"), rotated(3, "nearest"), draws=True),
    "quantized": Row(
        lambda: jaxtern.quantized(7, block_size=50, bucket_size=200, rotation=False, rounding="stochastic"),
        unbiased(7, block_size=50),
        draws=True,
    ),
    "top_k": Row(lambda: jaxtern.top_k(0.1), contractive(0.1, errors)),
    "top_k by samples": Row(lambda: jaxtern.top_k(0.01, sampled=True), contractive(0.01, errors), shapes=LARGE),
    "top_k in bfloat16": Row(lambda: jaxtern.top_k(0.1, "bfloat16"), contractive(0.1, errors)),
    "top_k without feedback": Row(lambda: jaxtern.top_k(0.1, feedback=False), contractive(0.1)),
    "dgc": Row(lambda: jaxtern.dgc(0.1), contractive(0.1)),
    "dgc clipped": Row(lambda: jaxtern.dgc(0.1, clip_norm=3.0, nesterov=True), contractive(0.0), mixes=True),
    "low_rank 1": Row(lambda: jaxtern.low_rank(1), contractive(0.1, errors)),
    "low_rank 3": Row(lambda: jaxtern.low_rank(3), contractive(0.2, errors)),
    "sign": Row(jaxtern.sign, contractive(0.5, errors)),
    "sign two-way": Row(lambda: jaxtern.sign(two_way=True), contractive(0.5, both_errors(joined)), served=joined),
    "error_feedback": Row(
        lambda: jaxtern.error_feedback(jaxtern.quantized(7, clip_sigmas=0.0)), contractive(0.9, errors), draws=True
    ),
    "momentum_correction": Row(
        lambda: jaxtern.momentum_correction(jaxtern.top_k(0.1, feedback=False), 0.5, masked=False),
        contractive(0.1, lambda local, layout: errors(local[1], layout), momentum=0.5),
    ),
    "delayed ternary": Row(
        lambda: jaxtern.delayed(jaxtern.ternary(exchange="gather")), after("ternary by gather"), True, False
    ),
    "delayed low_rank": Row(lambda: jaxtern.delayed(jaxtern.low_rank(1)), after("low_rank 1"), tells=False),
    "partition": Row(
        lambda: jaxtern.partition(
            [(lambda path, _: path == "bias", jaxtern.sign()), (lambda path, _: path == "half", jaxtern.ternary())],
            jaxtern.top_k(0.1),
        ),
        contractive(0.0),
        draws=True,
    ),
}
LAYOUTS = ["mesh:2 unrolled:2", "vmap:4", "pmap:4", "mesh:4 fast:2"]
FAST = ["float16", "terngrad", "ternary by scatter", "quantized", "top_k", "low_rank 1", "sign two-way"]  # in any run
FEW = ["ternary by scatter"]  # on all layouts in any run


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_bits(found: Any, expected: Any) -> None:
    """Equal shapes, dtypes and bits, leaf by leaf."""
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if a.tobytes() != b.tobytes():
            np.testing.assert_array_equal(a, b)
            raise AssertionError("zeros of different signs")


@functools.cache
def pairs(name: str) -> Any:
    """Gradients of 8 workers of two devices: leaves [NUM_STEPS, 8, 2, ...]; in step 0 the workers' are all the same."""
    tree: dict[str, Any] = {"absent": None}
    for number, (key, shape) in enumerate(ROWS[name].shapes.items()):
        drawn = np.random.default_rng(number).standard_normal((CONSTANT + 1, 8, 2, *shape), np.float32)
        drawn[0] = drawn[0, :1]
        whole = np.concatenate([drawn[:-1], np.broadcast_to(drawn[-1], (NUM_STEPS - CONSTANT, *drawn.shape[1:]))])
        tree[key] = whole.astype(ml_dtypes.bfloat16) if key == "half" else whole
    return tree


@functools.cache
def gradients_of(name: str) -> Any:
    """Of 8 workers, the means over their devices: leaves [NUM_STEPS, 8, ...]."""
    return jax.tree.map(lambda x: (x[:, :, 0] + x[:, :, 1]) / x.dtype.type(2), pairs(name))


def step_of(name: str, step: int, num_workers: int = NUM_WORKERS) -> Any:
    return jax.tree.map(lambda x: x[step, :num_workers], gradients_of(name))


def layout_of_row(name: str) -> jaxtern.Layout:
    return layout_of(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[3:], x.dtype), pairs(name)))


@functools.cache
def start(name: str, num_workers: int = NUM_WORKERS) -> CompressedMeanState:
    """The state before the first update, of all workers: leaves of `local` are [N, ...]."""
    init = jax.jit(ROWS[name].make().init, static_argnums=(0, 1))
    state = jax.device_get(init(layout_of_row(name), num_workers))
    local = jax.tree.map(lambda x: np.stack([x] * num_workers), state.local)
    return CompressedMeanState(np.int32(0), state.shared, local, None)


class Program:
    """One update of a row on a layout such as "mesh:2 unrolled:2"; states are those of all workers, as `start` has it.

    Attributes:
      size: N.
      text: the compiled program, of a mesh.
    """

    def __init__(self, name: str, layout: str):
        sizes = {kind: int(size) for kind, size in (part.split(":") for part in layout.split())}
        kind, self._unrolled, self._fast = next(iter(sizes)), sizes.get("unrolled"), sizes.get("fast")
        self._name, self._devices, self.text = name, sizes[kind], ""
        self.size = self._devices * (self._unrolled or 1)
        self._transformation = compressed_mean(
            "data",
            ROWS[name].make(),
            seed=3,
            virtual_workers=self._unrolled,
            fast_axis_name="fast" if self._fast else None,
        )
        if kind == "mesh":
            state = start(name, self.size)
            quickly = QUICKLY if layout == "mesh:2" else None
            jitted = jax.jit(self._over_mesh(), donate_argnums=2, compiler_options=quickly)
            self._run = jitted.lower(self.gradients(0), state[:2], state.local).compile()
            self.text = self._run.as_text()
        elif kind == "vmap":
            self._run = self._split(jax.jit(jax.vmap(self._on_device, in_axes=(0, None, 0), axis_name="data")))
        else:
            devices = jax.devices("cpu")[: self._devices]
            self._run = self._split(jax.pmap(self._on_device, "data", in_axes=(0, None, 0), devices=devices))

    def gradients(self, step: int) -> Any:
        """Of a step, as this layout takes them."""
        tree = pairs(self._name) if self._fast else gradients_of(self._name)
        return jax.tree.map(lambda x: x[step, : self.size], tree)

    def trace(self, state: CompressedMeanState) -> tuple[Any, Any]:
        """Shapes and dtypes of what is the same everywhere, and of the local state, after an update."""
        return jax.eval_shape(self._run, self.gradients(0), state[:2], state.local)

    def __call__(self, gradients: Any, state: CompressedMeanState) -> tuple[Any, CompressedMeanState]:
        """The mean and the state, after seeing that every device has the same bits of both."""
        everywhere, local = self._run(gradients, state[:2], state.local)
        for leaf in leaves(everywhere):
            assert_bits(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        mean, count, shared = jax.tree.map(lambda x: np.asarray(x[0]), everywhere)
        return mean, CompressedMeanState(count, shared, local, None)

    def _on_device(self, gradients: Any, everywhere: Any, local: Any) -> Any:
        """Leaves [V, ...] of gradients and local state."""
        workers = [jax.tree.map(lambda x, v=v: x[v], gradients) for v in range(self._unrolled or 1)]
        state = CompressedMeanState(*everywhere, local, None)
        mean, state = self._transformation.update(workers if self._unrolled else workers[0], state)
        return (mean, state.count, state.shared), state.local

    def _over_mesh(self) -> Callable:
        mesh, own = mesh_of(data=self._devices, **({"fast": self._fast} if self._fast else {})), PartitionSpec("data")

        def on_device(gradients: Any, everywhere: Any, local: Any) -> Any:
            gradients = jax.tree.map(lambda x: x[:, 0], gradients) if self._fast else gradients
            everywhere, local = self._on_device(gradients, everywhere, local)
            return jax.tree.map(lambda x: x[None], everywhere), local

        in_specs = PartitionSpec(*mesh.axis_names), PartitionSpec(), own
        out_specs = PartitionSpec(mesh.axis_names), own
        return jax.shard_map(on_device, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    def _split(self, mapped: Callable) -> Callable:
        """Takes and gives leaves [N, ...] where `mapped` has [D, V, ...]."""

        def run(gradients: Any, everywhere: Any, local: Any) -> Any:
            split = jax.tree.map(
                lambda x: x.reshape(self._devices, -1 if x.size else 1, *x.shape[1:]), (gradients, local)
            )
            everywhere, local = mapped(split[0], everywhere, split[1])
            return everywhere, jax.tree.map(lambda x: x.reshape(self.size, *x.shape[2:]), local)

        return run


def mesh_of(**sizes: int) -> Mesh:
    devices = np.array(jax.devices("cpu")[: math.prod(sizes.values())]).reshape(*sizes.values())
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


program = functools.cache(Program)


@functools.cache
def run_of(name: str) -> Run:
    """All steps by `lax.scan`, of a `vmap`, with statistics where the row tells what it sent."""
    transformation = compressed_mean("data", ROWS[name].make(), seed=3, statistics=ROWS[name].tells)
    gradients = jax.tree.map(lambda x: x[:, :NUM_WORKERS], gradients_of(name))

    def step(state: Any, own: Any) -> Any:
        mean, state = transformation.update(own, state)
        return state, (mean, state)

    def on_worker(own: Any) -> Any:
        return jax.lax.scan(step, transformation.init(jax.tree.map(lambda x: x[0], own)), own)[1]

    mapped = jax.vmap(on_worker, in_axes=1, out_axes=1, axis_name="data")
    options = None if "low_rank" in name else QUICKLY  # by which products of matrices are added in another order
    means, states = jax.device_get(jax.jit(mapped, compiler_options=options)(gradients))
    means, everywhere = jax.tree.map(lambda x: x[:, 0], (means, states._replace(local=None)))
    local = jax.tree.map(lambda x: x[:, :, 0], states.local)
    return Run(gradients, means, everywhere._replace(local=local), layout_of_row(name))


@functools.cache
def reference(name: str) -> list[tuple[Any, CompressedMeanState]]:
    """Means and states of steps on four devices, the state staying there; NumPy arrays."""
    placed, state, found = program(name, "mesh:4"), start(name), []
    for step in range(CONSTANT):
        mean, state = placed(placed.gradients(step), state)
        found.append((mean, jax.device_get(state)))
    return found


def resized(name: str, num_workers: int) -> Any:
    """The last local state of four workers for so many."""
    return ROWS[name].make().resize(reference(name)[-1][1].local, layout_of_row(name), num_workers)


slow = [pytest.mark.slow]
every_row = pytest.mark.parametrize("name", [pytest.param(name, marks=slow * (name not in FAST)) for name in ROWS])


@every_row
def test_the_claim_of_the_row(name: str):
    ROWS[name].claim(run_of(name))


@every_row
def test_a_scan_of_vmapped_workers_is_the_same_bits(name: str):
    run = run_of(name)
    for step, (mean, state) in enumerate(reference(name)):
        assert_bits(jax.tree.map(lambda x, s=step: x[s], run.means), mean)
        found = jax.tree.map(lambda x, s=step: x[s], run.states)
        assert_bits((found.count, found.shared, found.local), (state.count, state.shared, state.local))


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=slow * (name not in (FEW if layout != LAYOUTS[0] else FAST)))
        for name in ROWS
        for layout in LAYOUTS
        if layout != "pmap:4" or name in FAST  # which is shard_map inside JAX
    ],
)
def test_means_and_states_are_the_same_bits_on_every_layout(name: str, layout: str):
    """From states saved as NumPy arrays, which other layouts go on from."""
    placed, state = program(name, layout), start(name)
    for step, (mean, after_step) in enumerate(reference(name)):
        found, found_state = placed(placed.gradients(step), state)
        assert_bits(found, mean)
        assert_bits(found_state, after_step)
        state = after_step


@every_row
def test_donated_states_are_used_up_and_saved_ones_continue_to_the_bit(name: str):
    placed = program(name, "mesh:4")
    mean, state = placed(placed.gradients(0), start(name))
    before = jax.tree.leaves(state.local)
    mean, state = placed(placed.gradients(1), state)
    assert all(leaf.is_deleted() for leaf in before if leaf.size)
    assert_bits((mean, state), reference(name)[1])
    assert_bits(placed(placed.gradients(2), jax.tree.map(np.array, reference(name)[1][1])), reference(name)[2])


@every_row
@pytest.mark.parametrize("num_workers", [2, 4])
def test_traffic_is_the_bytes_of_the_compiled_collectives(collectives: Callable, name: str, num_workers: int):
    promised = ROWS[name].make().traffic(layout_of_row(name), num_workers)
    sent = 0.0
    for collective in collectives(program(name, f"mesh:{num_workers}").text):
        assert collective.dtype in ("u32", "f32")
        share = 4 * collective.size * (num_workers - 1) / num_workers
        sent += 2 * share if collective.name.startswith("all-reduce") else share
    assert sent == pytest.approx(promised.bytes)


@every_row
@pytest.mark.parametrize("num_workers", [2, 3, 8])
def test_states_for_another_number_of_workers_keep_their_means(name: str, num_workers: int):
    row, state = ROWS[name], reference(name)[-1][1]
    local = resized(name, num_workers)
    before, found = (row.served(tree[-1], layout_of_row(name)) if row.served else [] for tree in (state.local, local))
    assert_bits(found, before)
    averaged = [tree[:-1] if row.served else tree for tree in (state.local, local)]
    for a, b in zip(*map(leaves, averaged), strict=True):
        assert (len(b), b.shape[1:], b.dtype) == (num_workers, a.shape[1:], a.dtype)
        rounding = 2 * float(ml_dtypes.finfo(a.dtype).eps) * np.abs(a.astype(np.float64)).max(initial=0)
        means = [x.astype(np.float64).mean(axis=0) for x in (a, b)]
        np.testing.assert_allclose(means[1], means[0], rtol=0, atol=rounding)


@every_row
def test_another_number_of_workers_goes_on_from_the_state(name: str):
    placed = program(name, "mesh:2")
    state = reference(name)[-1][1]._replace(local=resized(name, placed.size))
    mean, state = placed(placed.gradients(CONSTANT), state)
    assert state.count == CONSTANT + 1
    assert all(np.isfinite(leaf.astype(np.float32)).all() for leaf in leaves(mean))


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("num_workers", [3, 8])
def test_more_workers_take_and_return_states_of_their_own_shapes(name: str, num_workers: int):
    placed, local = Program(name, f"vmap:{num_workers}"), resized(name, num_workers)
    _, after = placed.trace(reference(name)[-1][1]._replace(local=local))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), local)


@pytest.mark.few("top_k", "low_rank 1")
@every_row
def test_tensors_that_vary_over_another_checked_axis_leave_the_others_replicated(name: str):
    """Two updates of two workers, whose bias and kernel are cut over two devices each."""
    row, cut = ROWS[name], ("bias", "kernel")
    transformation = compressed_mean("data", row.make(), seed=3)
    steps = [
        {key: x if x is None else x[step, :2] if key in cut else x[step, :2, 0] for key, x in pairs(name).items()}
        for step in (1, 2)
    ]

    def on_device(steps: Any, count: jax.Array) -> Any:
        trees = [{k: x if x is None else x[0, 0] if k in cut else x[0] for k, x in tree.items()} for tree in steps]
        _, state = transformation.update(trees[0], transformation.init(trees[0])._replace(count=count))
        mean, _ = transformation.update(trees[1], state)
        return mean | {key: mean[key][None] for key in cut}

    mesh = mesh_of(data=2, other=2)
    in_specs = {key: PartitionSpec("data", "other") if key in cut else PartitionSpec("data") for key in steps[0]}
    taken = [in_specs] * 2, PartitionSpec()
    out_specs = {key: PartitionSpec("other") if key in cut else PartitionSpec() for key in steps[0]}
    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=taken, out_specs=out_specs, check_vma=True)
    if row.mixes:
        with pytest.raises(ValueError, match="out_specs which require replication"):
            jax.eval_shape(mapped, steps, np.int32(0))
        return
    shapes = jax.eval_shape(mapped, steps, np.int32(0))
    assert {key: x.shape[key in cut :] for key, x in shapes.items() if x is not None} == row.shapes
    if row.draws:  # which noise depends on which tensors travel together
        return
    found = jax.device_get(jax.jit(mapped, compiler_options=QUICKLY)(steps, np.int32(0)))
    for other in (0, 1):
        state, placed, mean = start(name, 2), program(name, "mesh:2"), None
        for tree in steps:
            mean, state = placed(tree | {key: tree[key][:, other] for key in cut}, state)
        assert_bits(found | {key: found[key][other] for key in cut}, mean)


@every_row
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_on_one_worker_reaches_all(name: str, bad: float):
    placed, (clean, _) = program(name, "mesh:4"), reference(name)[1]
    gradients = jax.tree.map(np.array, placed.gradients(1))
    gradients["kernel"][2, 20, 3] = bad
    late = name.startswith("delayed")
    mean, state = placed(gradients, reference(name)[0][1])
    if late:
        mean, _ = placed(placed.gradients(2), state)
        clean, _ = reference(name)[2]
    assert not np.isfinite(mean.pop("kernel")).all()
    if name in ROUNDED_AGAIN:
        assert all(np.isfinite(leaf).all() for leaf in leaves(mean))
    elif not ROWS[name].mixes:
        assert_bits(mean, {key: leaf for key, leaf in clean.items() if key != "kernel"})
