"""Local steps: what they compute, that workers agree to the bit, and that nothing of a worker is lost."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec as P

import jaxtern
from jaxtern.local.local_steps import LocalState, LocalSteps

pytestmark = pytest.mark.optimized

SGD = optax.sgd(1.0)
ADAM = optax.inject_hyperparams(optax.adam)(learning_rate=optax.constant_schedule(0.1), b2=0.9)


class Training:
    """Workers that train on `gradient(worker's number, its weights, step)`, on N / V devices of V workers each."""

    def __init__(
        self,
        gradient: Callable,
        num_workers: int,
        virtual_workers: int | None = None,
        check_vma: bool = False,
        **options: Any,
    ):
        own = virtual_workers or 1
        self.local: LocalSteps = jaxtern.local_steps("data", virtual_workers=virtual_workers, **options)
        mesh, specs = Mesh(jax.devices()[: num_workers // own], "data"), self.local.specs

        def step(state: LocalState) -> LocalState:
            first, workers = jax.lax.axis_index("data") * own, self.local.workers(state)
            workers = [workers] if virtual_workers is None else workers
            gradients = [gradient(first + w, worker.params, state.count) for w, worker in enumerate(workers)]
            return self.local.update(gradients[0] if virtual_workers is None else gradients, state)

        wrap = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)
        self.init = jax.jit(wrap(self.local.init, in_specs=P(), out_specs=specs))
        self.step = jax.jit(wrap(step, in_specs=(specs,), out_specs=specs))

    def run(self, params: Any, num_steps: int) -> list[LocalState]:
        """The states before the first step and after each."""
        states = [self.init(params)]
        for _ in range(num_steps):
            states.append(self.step(states[-1]))
        return jax.device_get(states)


def _twos(worker: Any, params: Any, step: Any) -> Any:
    del worker, step
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, 2), params)


# Two layers of one weight each, 1 at first, gradients of 2, inner rate 1, outer rate 2, H = 6: what torchft records of
# its streaming DiLoCo (test_fixtures/, diloco_regression_test.py, test_diloco_mocked_updates), by delay and mixing.
UNMOVED = [1, -1, -3, -5, -7, -9, -11, -13, -15, -17, -19, -21, -23, -25, -27, -29]
RECORDED = {
    (0, 0.0): [
        [1, -1, -3, -11, -13, -15, -17, -19, -21, -35, -37, -39, -41, -43, -45, -59],
        [1, -1, -3, -5, -7, -9, -23, -25, -27, -29, -31, -33, -47, -49, -51, -53],
    ],
    (0, 0.5): [
        [1, -1, -3, -8, -10, -12, -14, -16, -18, -24.5, -26.5, -28.5, -30.5, -32.5, -34.5, -40.25],
        [1, -1, -3, -5, -7, -9, -17, -19, -21, -23, -25, -27, -32, -34, -36, -38],
    ],
    (0, 1.0): [UNMOVED, UNMOVED],
    (1, 0.0): [
        [1, -1, -3, -7, -9, -11, -13, -15, -17, -27, -29, -31, -33, -35, -37, -47],
        [1, -1, -3, -5, -7, -9, -19, -21, -23, -25, -27, -29, -39, -41, -43, -45],
    ],
    (1, 0.5): [
        [1, -1, -3, -6, -8, -10, -12, -14, -16, -21.5, -23.5, -25.5, -27.5, -29.5, -31.5, -35.75],
        [1, -1, -3, -5, -7, -9, -15, -17, -19, -21, -23, -25, -29, -31, -33, -35],
    ],
    (1, 1.0): [UNMOVED, UNMOVED],
}
SHARED = {  # the shared weights after steps 0, 3, 6, 9, 12, likewise
    (0, 0.0): [[1, -11, -11, -35, -35], [1, 1, -23, -23, -47]],
    (0, 0.5): [[1, -11, -11, -29, -29], [1, 1, -23, -23, -35]],
    (0, 1.0): [[1, -11, -11, -23, -23], [1, 1, -23, -23, -23]],
    (1, 0.0): [[1, -7, -7, -27, -27], [1, 1, -19, -19, -39]],
    (1, 0.5): [[1, -7, -7, -25, -25], [1, 1, -19, -19, -31]],
    (1, 1.0): [[1, -7, -7, -23, -23], [1, 1, -19, -19, -23]],
}


@pytest.mark.parametrize(("delay", "mixing"), RECORDED)
def test_histories_are_those_that_torchft_records(delay: int, mixing: float):
    options = {"inner": SGD, "outer": optax.sgd(2.0), "steps": 6, "fragments": 2, "reducer": "float"}
    training = Training(_twos, 2, delay=delay, mixing=mixing, **options)
    states = training.run({"layers": [jnp.ones((1, 1)), jnp.ones((1, 1))]}, 15)
    for layer in range(2):
        own = [state.local.params["layers"][layer].reshape(2).tolist() for state in states]
        assert own == [[value] * 2 for value in RECORDED[delay, mixing][layer]]
        shared = [float(state.params["layers"][layer][0, 0]) for state in states[:13:3]]
        assert shared == SHARED[delay, mixing][layer]


def test_history_is_that_of_torchft_where_a_worker_is_lost_and_another_comes():
    """Its test_diloco_mocked_failure_recovery: one is lost after step 6; the next joins at step 9, with all weights."""
    options = {"inner": SGD, "outer": optax.sgd(2.0), "steps": 6, "fragments": 2, "reducer": "float"}
    of = {num_workers: Training(_twos, num_workers, **options) for num_workers in (1, 2)}
    states = of[2].run({"layers": [jnp.ones((1, 1)), jnp.ones((1, 1))]}, 6)
    for num_workers, num_steps in ((1, 3), (2, 12)):
        state = states[-1]
        state = state._replace(local=of[2].local.resize(state.local, state.params, num_workers))
        for _ in range(num_steps):
            state = jax.device_get(of[num_workers].step(state))
            states.append(state)
    recorded = [
        RECORDED[0, 0.0][0] + [-61, -63, -65, -67, -69, -83],
        RECORDED[0, 0.0][1] + [-55, -57, -71, -73, -75, -77],
    ]
    for layer in range(2):
        own = [state.local.params["layers"][layer].reshape(-1).tolist() for state in states]
        assert [len(each) for each in own] == [2] * 7 + [1] * 3 + [2] * 12
        assert own == [[value] * len(each) for value, each in zip(recorded[layer], own, strict=True)]


def test_losses_are_those_of_maxtexts_diloco():
    """A linear model, two workers, synchronised after three steps: diloco_test.py, test_simple_model_2replicas."""
    inputs = jnp.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    labels = jnp.array([[1.0, 2.0], [2.0, 3.0]])

    def loss(params: Any, worker: Any) -> jax.Array:
        kernel, bias = params
        return jnp.mean((inputs[worker] @ kernel + bias[0] - labels[worker]) ** 2)

    outer = optax.sgd(1.0, momentum=0.9, nesterov=True)
    training = Training(
        lambda worker, params, _: jax.grad(loss)(params, worker), 2, inner=optax.sgd(0.1), outer=outer, steps=3,
        reducer="float",
    )  # fmt: skip
    states = training.run((jnp.array([2.0, 1.0]), jnp.array([1.0])), 4)
    losses = [
        [float(loss(jax.tree.map(lambda leaf, w=w: leaf[w], state.local.params), w)) for w in range(2)]
        for state in states[:4]
    ]
    np.testing.assert_allclose([row[0] for row in losses], [1, 0.49, 0.2401, 0.207545], rtol=1e-5)
    np.testing.assert_allclose(np.mean(losses, axis=1), [1, 0.65, 0.4481, 0.574244], rtol=1e-5)


def _shapes() -> Any:
    random = np.random.default_rng(0)
    return {
        f"block{number}": {"kernel": jnp.asarray(random.standard_normal(shape), jnp.float32), "bias": jnp.zeros(5)}
        for number, shape in enumerate([(40, 5), (700,), (3, 3, 2, 5)])
    }


NOISE = np.random.default_rng(7).standard_normal((8, 16, 1024)).astype(np.float32)  # of workers, steps, elements


def _noisy(worker: Any, params: Any, step: Any) -> Any:
    """Gradients of |w - target|^2 / 2 at targets of each worker, with noise, from a table as that compiles fast."""
    leaves, treedef = jax.tree.flatten(params)
    ends = np.cumsum([leaf.size for leaf in leaves])
    noise = jnp.split(jnp.asarray(NOISE)[worker, step % 16, : ends[-1]], ends[:-1])
    targets = 1 + 0.1 * jnp.float32(worker)
    return treedef.unflatten(
        [leaf - targets + 0.3 * own.reshape(leaf.shape) for leaf, own in zip(leaves, noise, strict=True)]
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "every step": {"steps": 1},
    "sign": {"steps": 4, "reducer": "sign"},
    "low rank in two": {"steps": 4, "reducer": "low_rank", "fragments": 2},
    "mixed in three": {"steps": 6, "fragments": 3, "delay": 1, "mixing": 0.5},
    "late in two": {
        "steps": 6,
        "fragments": 2,
        "delay": 2,
        "min_size": 10,
        "exclude": lambda path: path.endswith("bias"),
    },
}


@pytest.mark.few("every step")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_virtual_workers_are_real_ones_to_the_bit(options: dict[str, Any]):
    real, virtual = (
        Training(_noisy, 4, virtual, inner=optax.adam(0.01), **options).run(_shapes(), 9)[-1] for virtual in (None, 4)
    )
    jax.tree.map(np.testing.assert_array_equal, real, virtual)


@pytest.mark.few("low rank in two")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_all_devices_hold_the_same_shared_weights_and_workers_merge(options: dict[str, Any]):
    training = Training(_noisy, 4, inner=optax.sgd(0.1, momentum=0.9), **options)
    state = training.init(_shapes())
    for _ in range(2 * options["steps"]):
        state = training.step(state)
    for leaf in jax.tree.leaves(state._replace(local=())):
        first, *others = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        for other in others:
            np.testing.assert_array_equal(other, first)
    if not options.get("fragments"):  # all have just begun anew from the same weights
        merged = jax.tree.map(lambda shared, own: np.broadcast_to(shared, own.shape), state.params, state.local.params)
        jax.tree.map(np.testing.assert_array_equal, state.local.params, merged)


def test_of_every_step_and_an_outer_rate_of_one_it_is_data_parallel_sgd():
    """To rounding; bit for bit where the numbers are dyadic, so that weights less changes are exact."""

    def dyadic(worker: Any, params: Any, step: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.25) * (worker - step % 3), params)

    for gradient, tolerance in ((dyadic, 0.0), (_noisy, 1e-6)):
        options = {"inner": optax.sgd(0.5), "outer": SGD, "steps": 1, "reducer": "float"}
        state = Training(gradient, 4, **options).run(_shapes() if tolerance else {"w": jnp.ones(8)}, 6)[-1]
        params = _shapes() if tolerance else {"w": jnp.ones(8)}
        for step in range(6):
            each = [gradient(jnp.int32(worker), params, jnp.int32(step)) for worker in range(4)]
            params = jax.tree.map(lambda w, *g: w - 0.5 * (g[0] + g[1] + g[2] + g[3]) / 4, params, *each)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=tolerance), state.params, params)


def test_what_rounding_leaves_out_of_an_exchange_may_join_the_next():
    """The shared weights and what is owed have moved by all changes; without feedback, errors add up like draws."""

    def gradient(worker: Any, params: Any, step: Any) -> Any:
        del step
        return jax.tree.map(lambda leaf: jnp.sin(jnp.arange(leaf.size) + worker).reshape(leaf.shape), params)

    first, options, steps = {"w": jnp.zeros(5000)}, {"inner": optax.sgd(0.01), "outer": SGD, "steps": 2}, 80
    state = Training(gradient, 4, reducer=jaxtern.error_feedback(jaxtern.ternary()), **options).run(first, steps)[-1]
    ((owed, _),) = state.local.reducers
    expected = -0.01 * steps * np.mean([gradient(w, first, 0)["w"] for w in range(4)], axis=0)
    moved = np.asarray(state.params["w"])
    np.testing.assert_allclose(moved - np.mean(owed[0], axis=0), expected, rtol=0, atol=1e-5)
    without = Training(gradient, 4, **options).run(first, steps)[-1]
    assert without.local.reducers == [()]
    assert np.std(moved - expected) < 0.5 * np.std(without.params["w"] - expected)


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits_between_exchanges():
    training = Training(_noisy, 4, 2, inner=optax.adam(0.01), steps=6, fragments=2, delay=1, reducer="sign")
    whole = training.run(_shapes(), 13)
    for stopped in (4, 5, 6):
        state = jax.device_put(whole[stopped])
        for _ in range(13 - stopped):
            state = training.step(state)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), whole[-1])


@pytest.mark.parametrize("num_workers", [1, 2, 3, 6, 8])
def test_another_number_of_workers_keeps_the_mean_of_weights_and_of_what_is_owed(num_workers: int):
    training = Training(_noisy, 4, inner=optax.adam(0.01), steps=8, reducer="sign", fragments=2)
    before = training.run(_shapes(), 7)[-1]
    after = training.local.resize(before.local, before.params, num_workers)
    assert jax.tree.structure(after) == jax.tree.structure(before.local)
    for old, new in zip(jax.tree.leaves(before.local), jax.tree.leaves(after), strict=True):
        assert (new.shape, new.dtype) == ((num_workers, *old.shape[1:]), old.dtype)
        if new.dtype == np.int32:
            np.testing.assert_array_equal(new, 7)  # Adam's steps
        else:
            np.testing.assert_allclose(new.mean(axis=0), old.mean(axis=0), atol=1e-6)


def test_moments_are_each_workers_own_and_averaged_at_a_merging():
    local = jaxtern.local_steps("data", optax.sgd(0.1), steps=2, virtual_workers=3)

    def run(params: jax.Array) -> list[LocalState]:
        states = [local.init({"w": params}, {"mean": jnp.zeros(2)})]
        for step in range(2):
            moments = [{"mean": jnp.full(2, float(step + worker))} for worker in range(3)]
            states.append(local.update([{"w": jnp.ones(4)}] * 3, states[-1], moments))
        return states

    mesh, specs = Mesh(jax.devices()[:1], "data"), [local.specs] * 3
    _, one, two = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=P(), out_specs=specs, check_vma=False))(jnp.zeros(4))
    np.testing.assert_array_equal(one.local.moments["mean"][:, 0], [0, 1, 2])
    np.testing.assert_array_equal(one.moments["mean"], 0)
    np.testing.assert_array_equal(two.local.moments["mean"], 2)
    np.testing.assert_array_equal(two.moments["mean"], 2)


def test_trees_of_another_number_of_workers_are_refused():
    local = jaxtern.local_steps("data", SGD, 2, virtual_workers=2)
    tree, moments = {"a": jnp.ones(4), "b": jnp.ones(2)}, {"mean": jnp.zeros(2)}

    def run(gradients: Any, own: Any) -> Any:
        step = jax.vmap(lambda _: local.update(gradients, local.init(tree, moments), own), axis_name="data")
        return step(jnp.ones(1))

    jax.eval_shape(lambda: run([tree] * 2, [moments] * 2))
    for gradients in (tree, [tree] * 3):
        with pytest.raises(ValueError, match=r"^gradients: a (dict of 2|list of 3): must be a list of"):
            jax.eval_shape(lambda g=gradients: run(g, [moments] * 2))
    for own in ([], [moments], [moments] * 3, [moments, ()]):
        with pytest.raises(ValueError, match=r"^moments: must be as `init` was given them, those of each worker"):
            jax.eval_shape(lambda m=own: run([tree] * 2, m))


@pytest.mark.parametrize(
    ("check_vma", "reducer"),
    [(False, "ternary"), (True, "ternary"), pytest.param(True, "float", marks=pytest.mark.slow)],
)
def test_devices_of_a_worker_share_its_weights(check_vma: bool, reducer: str):
    """Gradients are averaged inside a worker in every step; workers of two devices are those of one."""
    options: dict[str, Any] = {"inner": optax.sgd(0.1), "steps": 3, "seed": 5, "reducer": reducer}
    whole = Training(_noisy, 2, **options).run(_shapes(), 7)[-1]
    local = jaxtern.local_steps("data", fast_axis_name="fast", **options)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "fast"))

    def step(state: LocalState) -> LocalState:
        gradients = _noisy(jax.lax.axis_index("data"), local.workers(state).params, state.count)
        sign = 1 - 2.0 * jax.lax.axis_index("fast")  # whose mean is 0
        return local.update(jax.tree.map(lambda leaf: leaf + sign, gradients), state)

    wrap = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma, out_specs=local.specs)
    state = jax.jit(wrap(local.init, in_specs=P()))(_shapes())
    step = jax.jit(wrap(step, in_specs=(local.specs,)))
    for _ in range(7):
        state = step(state)
    for leaf, expected in zip(jax.tree.leaves(state), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=0.02)
    for leaf in jax.tree.leaves(state.local):
        shards = {}
        for shard in leaf.addressable_shards:
            np.testing.assert_array_equal(shard.data, shards.setdefault(str(shard.index), np.asarray(shard.data)))


@pytest.mark.parametrize("check_vma", [False, True])
def test_moments_are_averaged_over_the_devices_of_a_worker_too(check_vma: bool):
    local = jaxtern.local_steps("data", SGD, steps=2, fast_axis_name="fast")
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "fast"))

    def run(own: jax.Array) -> LocalState:
        state = local.init({"w": jnp.zeros(4)}, {"mean": jnp.zeros(1)})
        for _ in range(2):
            gradients = jax.tree.map(lambda leaf: leaf + own, local.workers(state).params)
            state = local.update(gradients, state, {"mean": own})
        return state

    mapped = jax.shard_map(run, mesh=mesh, in_specs=P(("data", "fast")), out_specs=local.specs, check_vma=check_vma)
    state = jax.jit(mapped)(jnp.array([1.0, 2.0, 3.0, 10.0]))
    assert float(state.moments["mean"][0]) == 4
    np.testing.assert_array_equal(state.local.moments["mean"], 4)


def test_pmap_and_scan_train_as_shard_map_does():
    expected = Training(_noisy, 4, inner=optax.adam(0.01), steps=2).run(_shapes(), 4)[-1]
    local = jaxtern.local_steps("data", optax.adam(0.01), steps=2)

    def steps(params: Any) -> LocalState:
        def step(state: LocalState, _: None) -> tuple[LocalState, None]:
            worker = jax.lax.axis_index("data")
            return local.update(_noisy(worker, local.workers(state).params, state.count), state), None

        return jax.lax.scan(step, local.init(params), length=4)[0]

    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), _shapes())
    found = jax.device_get(jax.pmap(steps, axis_name="data", devices=jax.devices()[:4])(stacked))
    for worker in range(4):
        own = jax.tree.map(lambda leaf, w=worker: leaf[w], found.params)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), own, expected.params)


def test_a_state_of_another_number_of_workers_is_refused():
    """Else some of the workers would be left out."""
    four = jax.device_get(Training(_noisy, 4, inner=SGD, steps=3).init(_shapes()))
    with pytest.raises(ValueError, match=r"^state: of 2 workers on a device: must be of 1, see `resize`\n"):
        Training(_noisy, 2, inner=SGD, steps=3).step(four)
    with pytest.raises(ValueError, match=r"^state: of 1 workers on a device: must be of 2, see `resize`\n"):
        Training(_noisy, 8, 2, inner=SGD, steps=3).step(four)


def test_steps_are_counted_on_from_0_after_2_to_the_31():
    training = Training(_noisy, 2, inner=optax.sgd(0.1), steps=2)
    state = training.init(_shapes())
    state = training.step(state._replace(count=state.count + (2**31 - 1)))
    assert int(state.count) == 0
    before = np.asarray(state.local.params["block0"]["kernel"])
    assert (np.asarray(training.step(state).local.params["block0"]["kernel"]) != before).mean() > 0.9


def test_gradients_are_cast_to_the_dtypes_of_the_weights():
    """Loss scaling makes float32 gradients of bfloat16 weights."""
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), _shapes())

    def gradient(worker: Any, params: Any, _: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) - worker, params)

    state = Training(gradient, 2, inner=optax.adam(0.1), steps=2).run(weights, 4)[-1]
    assert {leaf.dtype for leaf in jax.tree.leaves((state.params, state.local.params))} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("inner", [optax.adafactor(0.01), ADAM], ids=["adafactor", "adam"])
def test_optimizers_may_give_a_state_of_another_dtype_or_that_does_not_vary(inner: optax.GradientTransformation):
    """As the parts of adafactor that are not factored, and adam's moments of bfloat16 weights under a schedule."""
    weights = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), _shapes())
    state = Training(_noisy, 2, check_vma=True, inner=inner, outer=ADAM, steps=2).run(weights, 2)[-1]
    before, after = (np.asarray(tree["block0"]["kernel"], np.float32) for tree in (weights, state.params))
    assert np.all(np.isfinite(after))
    assert np.mean(after != before) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"fragments": 2, "delay": 1, "mixing": 0.5}], ids=["whole", "streaming"])
def test_shard_map_may_check_what_varies(options: dict[str, Any]):
    runs = [
        Training(_noisy, 4, check_vma=check_vma, inner=optax.adam(0.01), steps=4, **options).run(_shapes(), 5)[-1]
        for check_vma in (False, True)
    ]
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), *runs)


def test_nothing_is_sent_between_exchanges(collectives: Callable):
    """All collectives stand in branches of conditionals, none of which is taken in most steps."""
    training = Training(_noisy, 4, inner=optax.adam(0.01), steps=6, fragments=2, delay=1)
    program = training.step.lower(training.init(_shapes())).compile().as_text()
    entry = program[program.index("\nENTRY ") :]
    assert collectives(program)
    assert not collectives(entry)
    assert "conditional(" in entry


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0: must be an integer of 1 or more"),
        ({"steps": 2.5}, "steps=2.5: must be an integer of 1 or more"),
        ({"steps": 30, "fragments": 4}, "fragments=4: must divide steps=30"),
        ({"steps": 30, "fragments": 0}, "fragments=0: must be an integer of 1 or more"),
        ({"steps": 30, "delay": -1}, "delay=-1: must be an integer of 0 or more"),
        ({"steps": 30, "fragments": 3, "delay": 10}, "delay=10: must be below steps / fragments = 10"),
        ({"steps": 3, "mixing": 1.5}, "mixing=1.5: must be from 0 to 1"),
        ({"steps": 3, "mixing": float("nan")}, "mixing=nan: must be from 0 to 1"),
        ({"steps": 3, "reducer": "ternery"}, "ternery"),
        ({"steps": 3, "axis_name": ()}, "axis_name=()"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        jaxtern.local_steps(**{"axis_name": "data", "inner": SGD} | options)
    assert "\n" not in str(error.value)


def test_what_does_not_fit_the_tree_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"fragments=7: must be at most the number of tensors, 6"):
        Training(_noisy, 2, inner=SGD, steps=7, fragments=7).init(_shapes())
    with pytest.raises(ValueError, match="exclude: must be true of a tensor"):
        Training(_noisy, 2, inner=SGD, steps=7, exclude=lambda _: False).init(_shapes())
    with pytest.raises(ValueError, match="params: two tensors have the path 'a/b': each must have one of its own"):
        Training(_noisy, 2, inner=SGD, steps=7).init({"a": {"b": jnp.ones(3)}, "a/b": jnp.ones(3)})
    with pytest.raises(ValueError, match=r"axis 'data': no such axis .* must run inside shard_map or pmap, too"):
        jaxtern.local_steps("data", SGD, steps=2).init(_shapes())
    local = jaxtern.local_steps("data", SGD, steps=2, virtual_workers=2)
    with pytest.raises(ValueError, match="gradients: a list of 1: must be a list of virtual_workers=2 trees"):
        local.update([_shapes()], None)  # pyright: ignore[reportArgumentType]
