"""Whatever is wrong: one line that names the argument, its value and the rule."""

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtern
from jaxtern import Network, Reduced, Reducer, State, Traffic, compressed_mean, ternary_mean

ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"fast_axis_name": "data"}, r"fast_axis_name='data': must name other axes than axis_name='data'"),
    ({"fast_axis_name": ()}, r"axis_name=\(\): must be the name of an axis, or a tuple of different names"),
    ({"reducer": "binary"}, r"reducer='binary': must be a jaxtern\.Reducer, or one of float, ternary, terngrad"),
    ({"reducer": None}, r"reducer=None: must be a jaxtern\.Reducer, or one of float, ternary"),
    ({"reducer": 3}, r"reducer=3: must be a jaxtern\.Reducer, or one of float, ternary"),
    ({"reducer": ["sign"]}, r"reducer=\['sign'\]: must be a jaxtern\.Reducer, or one of float, ternary"),
    ({"min_size": 0}, r"min_size=0: must be an integer of 1 or more"),
    ({"min_size": 1.5}, r"min_size=1\.5: must be an integer of 1 or more"),
    ({"min_size": True}, r"min_size=True: must be an integer of 1 or more"),
    ({"exclude": "head"}, r"exclude='head': must be None or a function of a path"),
    ({"seed": -1}, r"seed=-1: must be an integer from 0 to 4294967295"),
    ({"seed": 2**32}, r"seed=4294967296: must be an integer from 0 to 4294967295"),
    ({"seed": 1.0}, r"seed=1\.0: must be an integer"),
    ({"seed": False}, r"seed=False: must be an integer"),
    ({"virtual_workers": 0}, r"virtual_workers=0: must be an integer of 1 or more"),
    ({"virtual_workers": 2.0}, r"virtual_workers=2\.0: must be an integer of 1 or more"),
]
QUANTIZED: list[tuple[dict[str, Any], str]] = [
    ({"clip_sigmas": -1.0}, r"clip_sigmas=-1\.0: must be a finite number of 0 or more"),
    ({"clip_sigmas": np.nan}, r"clip_sigmas=nan: must be a finite number of 0 or more"),
    ({"clip_sigmas": np.inf}, r"clip_sigmas=inf: must be a finite number of 0 or more"),
    ({"clip_sigmas": True}, r"clip_sigmas=True: must be a finite number"),
    ({"clip_sigmas": "2.5"}, r"clip_sigmas='2\.5': must be a finite number of 0 or more"),
    ({"clip_sigmas": 1.2}, r"clip_sigmas=1\.2: must be 0, or 1\.5 or more, with rotation"),
    ({"rounding": "up"}, r"rounding='up': must be one of stochastic, dither, nearest"),
    ({"levels": 0}, r"levels=0: must be an integer from 1 to 32767"),
    ({"levels": 32768}, r"levels=32768: must be an integer from 1 to 32767"),
    ({"levels": 1.0}, r"levels=1\.0: must be an integer"),
    ({"levels": True}, r"levels=True: must be an integer"),
    ({"block_size": 0}, r"block_size=0: must be an integer of 1 or more"),
    ({"block_size": 2.0}, r"block_size=2\.0: must be an integer of 1 or more"),
    ({"exchange": "ring"}, r"exchange='ring': must be one of auto, gather, sum, scatter, two_way$"),
    ({"exchange": None}, r"exchange=None: must be one of"),
    ({"network": "1gbit"}, r"network='1gbit': must be a jaxtern\.Network, or None"),
]


def _broken(function: str) -> Any:
    return jaxtern.float_mean()._replace(**{function: lambda *_: 5})


REDUCERS: list[tuple[Callable, str]] = [
    (lambda: jaxtern.quantized(1, bucket_size=0), r"bucket_size=0: must be an integer of 1 or more"),
    (lambda: jaxtern.quantized(1, bucket_size=1e6), r"bucket_size=1000000\.0: must be an integer of 1 or more"),
    (lambda: jaxtern.ternary(implementation="cuda"), r"implementation='cuda': must be one of auto, reference"),
    (lambda: jaxtern.float_mean("int8"), r"dtype='int8': must be one of float32, bfloat16, float16"),
    (lambda: jaxtern.top_k(0), r"density=0: must be a number above 0 and at most 1"),
    (lambda: jaxtern.top_k(1.5), r"density=1\.5: must be a number above 0 and at most 1"),
    (lambda: jaxtern.top_k("all"), r"density='all': must be a number above 0 and at most 1"),
    (lambda: jaxtern.top_k(True), r"density=True: must be a number above 0 and at most 1"),
    (lambda: jaxtern.dgc(-0.1), r"density=-0\.1: must be a number above 0 and at most 1"),
    (lambda: jaxtern.top_k(0.1, "float16"), r"value_dtype='float16': must be one of float32, bfloat16"),
    (lambda: jaxtern.dgc(momentum=1.0), r"momentum=1\.0: must be a finite number from 0 to below 1"),
    (lambda: jaxtern.dgc(clip_norm=-1.0), r"clip_norm=-1\.0: must be a finite number of 0 or more"),
    (lambda: jaxtern.low_rank(0), r"rank=0: must be an integer of 1 or more"),
    (lambda: jaxtern.low_rank(1.5), r"rank=1\.5: must be an integer of 1 or more"),
    (lambda: jaxtern.low_rank(min_ratio=-1), r"min_ratio=-1: must be a finite number of 0 or more"),
    (lambda: jaxtern.error_feedback("top_k"), r"reducer='top_k': must be a jaxtern\.Reducer, such as"),  # pyright: ignore[reportArgumentType]
    (lambda: jaxtern.delayed(jaxtern.top_k), r"reducer=<function .*: must be a jaxtern\.Reducer"),  # pyright: ignore[reportArgumentType]
    (lambda: jaxtern.partition([(bool, "sign")], jaxtern.top_k(0.1)), r"reducer='sign': must be"),  # pyright: ignore[reportArgumentType]
    (lambda: jaxtern.hierarchical("float", jaxtern.sign(), "x"), r"reducer='float': must be"),  # pyright: ignore[reportArgumentType]
    (lambda: Network(latency=-1.0), r"latency=-1\.0: must be a finite number of 0 or more"),
    (lambda: Network(bandwidth=0), r"bandwidth=0: must be a finite number of 1 or more"),
    (lambda: Network(bandwidth=np.inf), r"bandwidth=inf: must be a finite number of 1 or more"),
    (lambda: Network(latency="1 ms"), r"latency='1 ms': must be a finite number of 0 or more"),
    (lambda: jaxtern.wire_report({}, num_workers=0), r"num_workers=0: must be an integer of 1 or more"),
    (lambda: compressed_mean("data", seed=jax.random.key(0)), r"seed=.*: must be an integer from 0 to 4294967295"),
    (lambda: compressed_mean("data", seed=jax.random.PRNGKey(0)), r"seed=.*: must be an integer from 0 to 4294967295"),
    (lambda: jaxtern.local_steps("data", 0.1, 10), r"inner=0\.1: must be an optax transformation"),  # pyright: ignore[reportArgumentType]
    (
        lambda: compressed_mean("data", _broken("init")).init(TREE),
        r"reducer: its `init` returned int: must be a jaxtern",
    ),
    (lambda: jaxtern.wire_report(TREE, _broken("traffic")), r"reducer: its `traffic` returned int: must be a jaxtern"),
]
TREE = {"params": {"head": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones((2,))}}}
AXES = ["", (), ("data", "data"), None, 3, ("data", 1)]


def _refused(call: Callable, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  pytest's `match` would see the notes that JAX adds, too
        call()
    assert "\n" not in str(caught.value)
    assert re.match(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(("arguments", "message"), ARGUMENTS)
def test_compressed_mean_refuses_an_argument_out_of_its_range(arguments: dict[str, Any], message: str):
    _refused(lambda: compressed_mean("data", **arguments), message)


@pytest.mark.parametrize(("arguments", "message"), QUANTIZED)
@pytest.mark.parametrize("make", [jaxtern.quantized, functools.partial(ternary_mean, "data")])
def test_the_quantizer_refuses_an_argument_out_of_its_range(make: Callable, arguments: dict[str, Any], message: str):
    given = arguments if make is not jaxtern.quantized else {"levels": 1} | arguments
    _refused(lambda: make(**given), message)


@pytest.mark.parametrize(("make", "message"), REDUCERS)
def test_reducers_and_networks_refuse_an_argument_out_of_its_range(make: Callable, message: str):
    _refused(make, message)


@pytest.mark.parametrize("axis_name", AXES)
def test_what_is_no_axis_name_is_refused(axis_name: Any):
    message = r"axis_name=.*: must be the name of an axis, or a tuple of different names"
    _refused(lambda: ternary_mean(axis_name), message)


@pytest.mark.parametrize("min_size", [1, 3])
def test_an_exclude_that_matches_nothing_is_refused_with_the_paths_that_there_are(min_size: int):
    options = {"exclude": lambda path: path.startswith("head/"), "min_size": min_size}
    transformation = compressed_mean("data", **options)
    message = (
        r"exclude: must be true of a tensor, and is of none; their paths are 'params/head/bias', 'params/head/kernel'$"
    )
    _refused(lambda: transformation.init(TREE), message)
    _refused(lambda: _update(transformation, lambda _: transformation.init(None))(TREE), message)
    _refused(lambda: jaxtern.wire_report(TREE, **options), message)


def test_a_rule_of_partition_that_matches_nothing_is_refused_unless_it_may_be_empty():
    rules = [(lambda path, _: path.endswith("bias"), jaxtern.float_mean()), (lambda *_: False, jaxtern.top_k(0.1))]
    reducer = jaxtern.partition(rules, jaxtern.ternary())
    message = (
        r"rules\[1\]: must be true of a tensor, and is of none; their paths are 'params/head/bias', 'params/head/k"
    )
    for refused in (compressed_mean("data", reducer).init, lambda tree: jaxtern.wire_report(tree, reducer)):
        _refused(functools.partial(refused, TREE), message)
    many = {f"layer{number:02}": jnp.ones(2) for number in range(20)}
    _refused(
        lambda: jaxtern.wire_report(many, jaxtern.partition(rules[1:], reducer)), r"rules\[0\]: .* 'layer07', \.\.\.$"
    )
    jaxtern.wire_report(TREE, jaxtern.partition(rules, jaxtern.ternary(), may_be_empty=True))
    jaxtern.wire_report({}, reducer)


@pytest.mark.parametrize(
    "reducer",
    [
        jaxtern.error_feedback(jaxtern.top_k(0.5)),
        jaxtern.momentum_correction(jaxtern.low_rank(1)),
        jaxtern.error_feedback(jaxtern.partition([(lambda *_: True, jaxtern.dgc(0.5))], jaxtern.sign())),
    ],
)
def test_feedback_around_feedback_is_refused_as_it_would_owe_twice(reducer: Reducer):
    message = "error_feedback: of a reducer with feedback of its own; make that with feedback=False$"
    _refused(lambda: _update(compressed_mean("data", reducer))(jnp.ones((2, 3))), message)


@pytest.mark.parametrize("wrap", [jaxtern.delayed, jaxtern.error_feedback, jaxtern.momentum_correction])
def test_what_each_device_would_keep_for_itself_is_refused(workers: Callable, wrap: Callable[[Reducer], Reducer]):
    """Of a worker's devices only one copy is saved."""
    inside = jaxtern.hierarchical(jaxtern.float_mean(), jaxtern.ternary(), "axis1")
    placed = workers("mesh:2 mesh:2")

    def step(gradient: Any, _: Any) -> Any:
        transformation = compressed_mean("axis0", wrap(inside))
        return transformation.update(gradient, transformation.init(gradient))

    message = r"hierarchical: must be around wrappers with state: hierarchical\(fast, delayed\(slow\)\)$"
    _refused(lambda: placed.over(step)(jnp.ones((4, 3)), None), message)


def test_an_axis_that_does_not_exist_is_refused(updates_over: Callable):
    transformation = ternary_mean("rows")
    message = r"axis 'rows': no such axis here; call inside shard_map, pmap or vmap"
    _refused(lambda: transformation.update(jnp.ones(3), transformation.init(None)), message)
    for layout in ("vmap:2", "mesh:2", "pmap:2"):
        update = updates_over(lambda names: ternary_mean((*names, "rows")), layout)
        _refused(functools.partial(update, jnp.ones((2, 3))), message)


@pytest.mark.parametrize("reducer", ["ternary", "float", "low_rank"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "complex64"])
def test_gradients_that_are_not_floating_point_are_refused_by_path(reducer: str, dtype: str):
    gradients = {"conv": [jnp.ones((2, 3)), {"kernel": jnp.ones((2, 3), dtype)}]}
    update = _update(compressed_mean("data", reducer))
    message = rf"gradient 'conv/1/kernel' is {dtype}: only floating-point gradients can be averaged$"
    _refused(lambda: update(gradients), message)


def _update(transformation: optax.GradientTransformation, state: Callable | None = None) -> Callable:
    """One update of two vmapped workers, by the state that `state` makes of the gradients."""

    def step(gradients: Any) -> Any:
        return transformation.update(gradients, (state or transformation.init)(gradients))[0]

    return lambda gradients: jax.eval_shape(jax.vmap(step, axis_name="data"), gradients)


@pytest.mark.parametrize("reducer", ["ternary", "float"])
def test_gradients_that_shard_map_has_summed_already_are_refused(workers: Callable, reducer: str):
    placed = workers("mesh:4")
    transformation = compressed_mean(placed.names, reducer)

    def step(x: jax.Array, params: Any) -> Any:
        gradients = jax.grad(lambda p: jnp.sum((x * p["w"]) ** 2))(params)
        return transformation.update(gradients, transformation.init(params))[0]

    def local_step(x: jax.Array, params: Any) -> Any:
        return step(x, jax.lax.pcast(params, placed.names, to="varying"))

    def trace(step: Callable, check_vma: bool) -> Any:
        return jax.eval_shape(placed.replicated(step, check_vma=check_vma), jnp.ones((4, 3)), {"w": jnp.ones(3)})

    message = r"gradient 'w' is the same on all workers of axis 'axis0': shard_map has summed it already"
    _refused(lambda: trace(step, True), message)
    trace(step, False)
    trace(local_step, True)


def test_a_vmapped_axis_beside_a_checked_one_is_refused(updates_over: Callable):
    update = updates_over(ternary_mean, "mesh:2 vmap:2", check_vma=True)
    _refused(
        lambda: update(jnp.ones((4, 3))), r"axis_name=\('axis0', 'axis1'\): a vmapped axis beside axes of a shard_map"
    )


def test_sums_of_too_many_levels_are_refused_and_auto_gathers_them(updates_over: Callable):
    gradients = jnp.ones((3, 5))
    update = updates_over(functools.partial(ternary_mean, levels=20_000, exchange="sum"), "vmap:3")
    _refused(lambda: update(gradients), r"exchange='sum': the words of 3 workers of .* do not add; take 'gather'")
    mean, _ = updates_over(functools.partial(ternary_mean, levels=20_000), "vmap:3")(gradients)
    np.testing.assert_allclose(mean, gradients, rtol=1e-4)


def test_another_number_of_trees_than_virtual_workers_is_refused():
    update = _update(compressed_mean("data", virtual_workers=3))
    _refused(lambda: update([jnp.ones((2, 3))] * 2), r"updates: a list of 2: must be a list of virtual_workers=3")
    _refused(lambda: update({"a": jnp.ones(2), "b": jnp.ones(2), "c": jnp.ones(2)}), r"updates: a dict of 3: must be a")


@pytest.mark.parametrize("other", [jnp.ones((2, 4)), jnp.ones((2, 3), jnp.bfloat16), [jnp.ones((2, 3))]])
def test_trees_of_virtual_workers_that_are_not_alike_are_refused(other: Any):
    update = _update(compressed_mean("data", virtual_workers=3))
    trees = [jnp.ones((2, 3)), jnp.ones((2, 3)), other]
    _refused(lambda: update(trees), r"updates\[2\]: must have the paths, shapes and dtypes of updates\[0\]")


@pytest.mark.parametrize("reducer", ["low_rank", "sign", "dgc"])
def test_init_of_a_local_state_outside_of_the_workers_is_refused(reducer: str):
    message = r"axis 'data': no such axis here; .*; as each worker has a state of its own, `init` must run inside"
    _refused(lambda: compressed_mean("data", reducer).init(jnp.zeros((7, 9))), message)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (lambda g: compressed_mean("data", "low_rank").init(g), r"float32\[30, 1\] at \.shared\[0\] where nothing"),
        (
            lambda g: compressed_mean("data", jaxtern.dgc(0.1)).init(g),
            r"float32\[1, 40, 30\] at \.local\[1\]\[0\]\[0\] where nothing",
        ),
        (
            lambda g: ternary_mean("data").init(g),
            r"nothing at \.local\[0\]\[0\] where float32\[1, 40, 30\] is expected",
        ),
        (
            lambda g: compressed_mean("data", "sign").init(g[:3]),
            r"float32\[1, 3, 30\] at \.local\[0\]\[0\] where float32\[1, 40",
        ),
        (
            lambda g: compressed_mean("data", "sign", virtual_workers=2).init(g),
            r"float32\[2, 40, 30\] at \.local\[0\]\[0\]",
        ),
    ],
)
def test_the_state_of_another_reducer_tree_or_number_of_workers_is_refused(state: Callable, found: str):
    update = _update(compressed_mean("data", "sign"), state)
    _refused(lambda: update(jnp.ones((2, 40, 30))), rf"state: holds .*{found}.*; it is not of this reducer")


def _own(reduce: Callable, local: Any = ()) -> Reducer:
    """A user's reducer whose `reduce` is (tensors of the only worker here) -> Reduced."""
    return Reducer(lambda *_: State(local=local), lambda workers, *_: reduce(workers[0]), lambda *_: Traffic())


def _stateful(shared: Any, *local: Any) -> Reducer:
    """Starts with () and three zeros, and returns this."""
    return _own(lambda tensors: Reduced(tensors, State(shared, list(local))), [jnp.zeros(3)])


@pytest.mark.parametrize(
    ("reducer", "message"),
    [
        (_own(lambda own: (own, State())), r"its `reduce` returned tuple: must be a jaxtern\.Reduced"),
        (_own(lambda own: Reduced([own[0][:1]], State())), r"its mean is float32\[1\]: must be floats of \[\[3\]\]"),
        (_own(lambda own: Reduced(own[1:], State())), r"its mean is nothing: must be floats of \[\[3\]\]"),
        (_own(lambda own: Reduced([own[0] > 0], State())), r"its mean is bool\[3\]: must be floats"),
        (_own(lambda own: Reduced(own, ())), r"its new state is tuple: must be a jaxtern\.State"),  # pyright: ignore[reportArgumentType]
        (_stateful(()), r"its state\.local has 0 entries: must be a list of 1"),
        (_stateful((), []), r"its new state holds nothing at \.local\[0\] where float32\[1, 3\] is expected"),
        (_stateful((), [jnp.zeros(4)]), r"its new state holds float32\[1, 4\] at \.local\[0\] where"),
        (_stateful((), [jnp.zeros(3, jnp.int32)]), r"its new state holds int32\[1, 3\] at \.local\[0\] where"),
        (_stateful(jnp.zeros(2), [jnp.zeros(3)]), r"its new state holds float32\[2\] at \.shared where nothing is"),
    ],
)
def test_a_reducer_that_breaks_the_protocol_is_refused(reducer: Reducer, message: str):
    _refused(lambda: _update(compressed_mean("data", reducer))(jnp.ones((2, 3))), f"reducer: {message}")


@pytest.mark.parametrize(
    ("reducer", "rule"),
    [
        (
            jaxtern.delayed(jaxtern.sign(feedback=False)),
            r"the reducer does not tell what was sent \(Reduced\.sent\), as a delayed",
        ),
        (
            _own(lambda own: Reduced(own, State(local=[()]), [[own[0][:2]]])),
            r"Reduced\.sent has shapes \[\[\[2\]\]\]: must be 1 times \[\[3\]\]$",
        ),
        (_own(lambda own: Reduced(own, State(local=[()]), [])), r"Reduced\.sent has shapes \[\]: must be 1 times \[\["),
    ],
)
def test_who_asks_what_was_sent_must_be_told(reducer: Reducer, rule: str):
    rules = [(lambda path, _: path == "none", jaxtern.sign())]  # true of none, so all goes to the other
    askers = {
        "statistics=True": compressed_mean("data", reducer, statistics=True),
        "error_feedback": compressed_mean("data", jaxtern.error_feedback(reducer)),
        "partition": compressed_mean("data", jaxtern.error_feedback(jaxtern.partition(rules, reducer, True))),
    }
    for asker, transformation in askers.items():
        _refused(lambda t=transformation: _update(t)(jnp.ones((2, 3))), f"{asker}: {rule}")


@pytest.mark.parametrize(
    ("reducer", "shape", "message"),
    [
        (
            jaxtern.top_k(0.001),
            (2**16, 2**15),
            r"gradient '' has 2147483648 elements: more than the int32 places of this",
        ),
        (
            jaxtern.top_k(1.0),
            (2**30,),
            r"gradient '' has 1073741824 elements: more than the int32 places of this method",
        ),
        (jaxtern.sign(), (2**31,), r"gradient '' has 2147483648 elements: more than the int32 places of this method"),
        (jaxtern.sign(two_way=True), (2**31,), r"gradient '' has 2147483648 elements: more than the int32 places of"),
        (jaxtern.ternary(implementation="reference"), (2**31,), r"moments: 2147483648 elements: must be below 2\^31"),
        (jaxtern.ternary(), (2**32 + 1,), r"gradients: 4294967297 elements: must be fewer than 2\^32"),
    ],
)
def test_tensors_too_large_to_count_are_refused(reducer: Reducer, shape: tuple[int, ...], message: str):
    update = _update(compressed_mean("data", reducer))
    _refused(lambda: update(jax.ShapeDtypeStruct((2, *shape), jnp.float32)), message)


@pytest.mark.parametrize("reducer", [jaxtern.top_k(0.001), jaxtern.sign(two_way=True), jaxtern.low_rank(2)])
def test_tensors_of_nearly_2_to_the_31_elements_are_taken(reducer: Reducer):
    _update(compressed_mean("data", reducer))(jax.ShapeDtypeStruct((2, 2**10, 2**21 - 2**12), jnp.float32))


@pytest.mark.parametrize("transform", [jax.grad, lambda f: lambda x: jax.jvp(f, (x,), (x,))])
def test_the_mean_has_no_derivative(transform: Callable):
    transformation = ternary_mean("data")

    def total(gradients: jax.Array) -> jax.Array:
        return transformation.update(gradients, transformation.init(gradients))[0].sum()

    message = r"compressed_mean: has no derivative; differentiate the loss of each worker, then average$"
    _refused(lambda: jax.vmap(transform(total), axis_name="data")(jnp.ones((2, 3))), message)


@pytest.mark.parametrize("state", [None, (), {"count": 0}])
def test_state_that_init_did_not_make_is_named(state: Any):
    mean = ternary_mean("data")
    with pytest.raises(ValueError, match=f"state: is {type(state).__name__}: must be the CompressedMeanState"):
        jax.vmap(lambda g: mean.update(g, state)[0], axis_name="data")(jnp.ones((2, 8)))
