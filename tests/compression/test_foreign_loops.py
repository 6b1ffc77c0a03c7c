"""Layouts of workers and libraries in docs/own_loop.md: each line of its tables is run as it stands there."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx, serialization
from flax.training.train_state import TrainState
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import jaxtern

PAGE = (Path(__file__).parents[2] / "docs/own_loop.md").read_text()
SECTIONS = PAGE.partition("## Layouts of workers")[2].partition("\n## State and checkpoints")[0]
ROWS = {cells[0]: re.findall(r"`([^`]+)`", cells[1]) for cells in
        (re.split(r" \| ", line.strip("| ")) for line in SECTIONS.splitlines() if line.startswith("| "))
        if cells[0] not in ("layout", "with", "---")}  # fmt: skip
OPTAX = ("MultiSteps", "masked", "multi_transform", "inject_hyperparams", "apply_if_finite", "flatten")
STEPS = 30
MEAN = jaxtern.ternary_mean("data")
SGD = optax.sgd(0.1)
TX = optax.chain(MEAN, SGD)
SPECS = {"head": {"bias": P(), "kernel": P(None, "model")}}
X = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
BATCH = {"x": X, "y": X @ np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4) + 0.5}
APART = {name: leaf.reshape(4, 16, -1) for name, leaf in BATCH.items()}


@pytest.fixture(autouse=True, scope="module")
def _strict() -> Iterator[None]:
    """In place of this folder's strict dtypes and ranks: these libraries do not keep to them."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def mesh(**axes: int) -> Mesh:
    devices = np.array(jax.devices("cpu")[:4]).reshape(*axes.values())
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


MESH = mesh(data=4)


def first_params() -> Any:
    return {"head": {"bias": jnp.zeros(4), "kernel": jnp.zeros((8, 4))}}


def loss(params: Any, batch: Any) -> jax.Array:
    return jnp.mean((batch["x"] @ params["head"]["kernel"] + params["head"]["bias"] - batch["y"]) ** 2)


def step_of(optimizer: Any, loss: Callable = loss, varying: bool = False) -> Callable:
    def step(params: Any, state: Any, batch: Any) -> Any:
        own = jax.lax.pcast(params, "data", to="varying") if varying else params
        updates, state = optimizer.update(jax.grad(loss)(own, batch), state, params)
        return optax.apply_updates(params, updates), state

    return step


def over(step: Callable) -> Callable:
    return jax.jit(jax.shard_map(step, mesh=MESH, in_specs=(P(), P(), P("data")), out_specs=P(), check_vma=False))


def train(step: Callable, params: Any, state: Any, batch: Any = BATCH) -> Any:
    for _ in range(STEPS):
        params, state = jax.block_until_ready(step(params, state, batch))
    for leaf in jax.tree.leaves((params, state)):
        shards: dict[str, set[bytes]] = {}
        for shard in leaf.addressable_shards:
            shards.setdefault(str(shard.index), set()).add(np.asarray(shard.data).tobytes())
        assert all(len(bits) == 1 for bits in shards.values())
    return params, state


def assert_learnt(params: Any, loss: Callable = loss) -> None:
    assert float(loss(params, BATCH)) < 0.4 * float(loss(jax.tree.map(jnp.zeros_like, params), BATCH))


def names(**own: Any) -> dict[str, Any]:
    return {"jax": jax, "optax": optax, "jaxtern": jaxtern, "P": P, "MEAN": MEAN, "SGD": SGD, "TX": TX, **own}


def test_every_line_of_the_tables_is_run_here():
    source = Path(__file__).read_text()
    assert len(ROWS) == 14
    assert [row for row in ROWS if f'"{row}"' not in source] == []


@pytest.mark.few("shard_map, check_vma=True", "pmap")
@pytest.mark.parametrize("row", ["shard_map", "shard_map, check_vma=True", "pmap", "vmap"])
def test_layouts(row: str):
    (code,) = ROWS[row]
    steps = {"step": step_of(TX), "varying_step": step_of(TX, varying=True)}
    step = eval(code, names(MESH=MESH, **steps))
    batch = APART if row in ("pmap", "vmap") else BATCH
    params, _ = train(step if row == "pmap" else jax.jit(step), first_params(), TX.init(first_params()), batch)
    assert_learnt(params)


def test_a_large_tree_is_vmapped_as_it_is_sharded():
    """Of 2^16 elements, from which on a CPU decodes into the gradients, which a vmap maps; the mean it does not."""
    width = 2**13
    params = {"head": {"bias": jnp.zeros(width), "kernel": jnp.zeros((8, width))}}

    def wide_loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((batch["x"] @ params["head"]["kernel"] + params["head"]["bias"] - 1) ** 2)

    step = step_of(optax.chain(MEAN, SGD), wide_loss)
    (code,) = ROWS["vmap"]
    vmapped, _ = train(jax.jit(eval(code, names(step=step))), params, TX.init(params), APART)
    sharded, _ = train(over(step), params, TX.init(params))
    jax.tree.map(np.testing.assert_array_equal, vmapped, sharded)


@pytest.mark.parametrize("optimizer", [optax.rmsprop(0.05), optax.sgd(0.05, 0.9, nesterov=True)], ids=["rms", "sgd"])
@pytest.mark.parametrize("method", [jaxtern.float_mean("bfloat16"), jaxtern.low_rank(1)], ids=["bfloat16", "low_rank"])
def test_two_devices_agree_however_xla_fuses_the_mean_with_what_uses_it(method: Any, optimizer: Any):
    """XLA optimises here as for a user. State is each device's own."""
    mask = np.arange(64)[:, None] >= 3
    masked = optax.stateless(lambda updates, _: jax.tree.map(lambda u: jnp.where(mask, u, -0.0), updates))
    tx = optax.chain(jaxtern.compressed_mean("data", method), optimizer, masked)
    random = np.random.default_rng(0)
    batch = {name: random.standard_normal((64, size), np.float32) for name, size in (("x", 64), ("y", 32))}
    params = {"w": jnp.zeros((64, 32))}
    step = step_of(tx, lambda params, batch: jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2))
    given = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        shard = {"mesh": Mesh(jax.devices()[:2], "data"), "out_specs": P(), "check_vma": False}
        state = jax.jit(jax.shard_map(tx.init, in_specs=P(), **shard))(params)
        step = jax.jit(jax.shard_map(step, in_specs=(P(), P(), P("data")), **shard))
        for _ in range(3):
            params, state = step(params, state, batch)
        np.testing.assert_array_equal(*(np.asarray(each.data) for each in params["w"].addressable_shards))
    finally:
        jax.config.update("jax_disable_most_optimizations", given)


def sharded_loss(params: Any, batch: Any) -> jax.Array:
    return jax.lax.psum(loss(params, batch), "model")


def test_two_axes_both_manual():
    """Each leaf keeps its own axes: the bias, which `model` shares, comes out as shared."""
    (code,) = ROWS["two axes, both manual"]
    params = {"head": {"bias": jnp.zeros(()), "kernel": jnp.zeros((8, 4))}}
    own = {"varying_step": step_of(TX, sharded_loss, varying=True), "SPECS": SPECS}
    batch = {"x": P("data"), "y": P("data", "model")}
    step = jax.jit(eval(code, names(MESH=mesh(data=2, model=2), BATCH=batch, **own)))
    params, _ = train(step, params, TX.init(params))
    assert_learnt(params)
    assert params["head"]["kernel"].sharding.spec == P(None, "model")


def test_two_axes_model_automatic():
    """What is sharded over `model` stays so: gathered without the second `shard_map`."""
    (code, *_), square = ROWS["two axes, model automatic"], mesh(data=2, model=2)
    nested = eval(code, names(SPECS=SPECS))
    wrapped = optax.GradientTransformation(MEAN.init, lambda g, s, _: nested(g, s))
    place = {"head": {"bias": NamedSharding(square, P()), "kernel": NamedSharding(square, P(None, "model"))}}
    specs = {"in_specs": (P(), P(), P("data")), "out_specs": P(), "axis_names": {"data"}}
    params, gathered = jax.device_put(first_params(), place), []
    for mean in (wrapped, MEAN):
        optimizer = optax.chain(mean, SGD)
        step = jax.jit(jax.shard_map(step_of(optimizer, varying=True), mesh=square, **specs))
        program = step.lower(params, optimizer.init(params), BATCH).compile().as_text()
        gathered.append(bool(re.search(r"= f32\[8,4\]\S* all-gather", program)))
        if mean is wrapped:
            learnt, _ = train(step, params, optimizer.init(params))
            assert_learnt(learnt)
            assert learnt["head"]["kernel"].sharding.spec == P(None, "model")
    assert gathered == [False, True]


def test_linens_train_state():
    model = linen.Dense(4)
    first = TrainState.create(apply_fn=model.apply, params=model.init(jax.random.key(0), X), tx=TX)

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((model.apply(params, batch["x"]) - batch["y"]) ** 2)

    def step(state: TrainState, _: Any, batch: Any) -> Any:
        return state.apply_gradients(grads=jax.grad(loss)(state.params, batch)), ()

    state, _ = train(over(step), first, ())
    assert int(state.step) == STEPS
    assert_learnt(state.params, loss)


def test_nnx():
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    graph, first = nnx.split((model, nnx.Optimizer(model, TX, wrt=nnx.Param)))

    def loss(model: Any, batch: Any) -> jax.Array:
        return jnp.mean((model(batch["x"]) - batch["y"]) ** 2)

    def step(state: Any, _: Any, batch: Any) -> Any:
        model, optimizer = nnx.merge(graph, state)
        optimizer.update(model, nnx.grad(loss)(model, batch))
        return nnx.state((model, optimizer)), ()

    before = float(loss(nnx.merge(graph, first)[0], BATCH))
    state, _ = train(over(step), first, ())
    assert float(loss(nnx.merge(graph, state)[0], BATCH)) < 0.2 * before


def test_equinox():
    eqx = pytest.importorskip("equinox")
    first, static = eqx.partition(eqx.nn.MLP(8, 4, 16, 1, key=jax.random.key(0)), eqx.is_inexact_array)

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((jax.vmap(eqx.combine(params, static))(batch["x"]) - batch["y"]) ** 2)

    params, _ = train(over(step_of(TX, loss)), first, TX.init(first))
    assert_learnt(params, loss)


def test_haiku():
    hk, (init, transform) = pytest.importorskip("haiku"), ROWS["haiku"]
    own: dict[str, Any] = {"hk": hk, "key": jax.random.key(0), "x": X}
    own["forward"] = lambda x: hk.Linear(4)(x)  # noqa: PLW0108  a module is made inside of `transform`
    exec(transform, {}, own)
    exec(init, {}, own)

    def loss(params: Any, batch: Any) -> jax.Array:
        return jnp.mean((own["network"].apply(params, batch["x"]) - batch["y"]) ** 2)

    params, _ = train(over(step_of(TX, loss)), own["params"], TX.init(own["params"]))
    assert_learnt(params, loss)


@pytest.mark.few("MultiSteps", "apply_if_finite")
@pytest.mark.parametrize("row", OPTAX)
def test_optax(row: str):
    (code,) = ROWS[row]
    trained = {"head": {"bias": row != "masked", "kernel": True}}
    own = {
        "trained": trained,
        "frozen": jax.tree.map(lambda x: not x, trained),
        "labels": {"head": {"bias": "fine", "kernel": "coarse"}},
        "schedule": optax.linear_schedule(2.0, 3.0, 10),
    }
    optimizer = eval(code, names(**own))
    params, _ = train(over(step_of(optimizer)), first_params(), optimizer.init(first_params()))
    assert_learnt(params)
    assert bool(jnp.any(params["head"]["bias"] != 0)) == (row != "masked")


@pytest.mark.parametrize("library", ["orbax", "flax.serialization"])
def test_what_was_saved_goes_on_to_the_same_bits(tmp_path: Path, library: str):
    import orbax.checkpoint as ocp

    optimizer = optax.chain(jaxtern.compressed_mean("data", jaxtern.low_rank(1)), SGD)
    specs = (P(), (jaxtern.state_specs("data"), P()))
    start = jax.shard_map(optimizer.init, mesh=MESH, in_specs=P(), out_specs=specs[1], check_vma=False)
    update = jax.shard_map(
        step_of(optimizer), mesh=MESH, in_specs=(*specs, P("data")), out_specs=specs, check_vma=False
    )
    step, params = jax.jit(update), first_params()
    before = step(params, jax.jit(start)(params), BATCH)
    if library == "orbax":  # as in the page's block
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(tmp_path / "saved", before)
            checkpointer.wait_until_finished()
            like = jax.device_put(first_params(), NamedSharding(MESH, P())), jax.jit(start)(first_params())
            found = checkpointer.restore(tmp_path / "saved", like)
    else:
        (code,) = ROWS[library]
        found = eval(code, {"serialization": serialization, "params": before[0], "state": before[1]})
    jax.tree.map(np.testing.assert_array_equal, step(*found, BATCH), step(*before, BATCH))


def test_around_the_mean_multi_steps_is_refused_by_name_where_shard_map_checks():
    optimizer = optax.MultiSteps(TX, 2).gradient_transformation()
    (code,) = ROWS["shard_map, check_vma=True"]
    step = eval(code, names(MESH=MESH, varying_step=step_of(optimizer, varying=True)))
    with pytest.raises(ValueError, match=r"optax\.MultiSteps must come after the mean, not around it\."):
        jax.eval_shape(step, first_params(), optimizer.init(first_params()), BATCH)


def test_around_the_mean_apply_if_finite_is_refused_in_the_words_of_the_page():
    optimizer, message = optax.apply_if_finite(TX, 5), "cond branches must have equal output types"
    (code,) = ROWS["shard_map, check_vma=True"]
    assert message in " ".join(PAGE.split())
    step = eval(code, names(MESH=MESH, varying_step=step_of(optimizer, varying=True)))
    with pytest.raises(TypeError, match=message):
        jax.eval_shape(step, first_params(), optimizer.init(first_params()), BATCH)
