"""Networks, data and the step of benchmarks.training: the package's mean in an optax chain, over all hosts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.netlab.mesh import AXIS, over, place
from jaxtern import Network, Reducer, compressed_mean, float_mean, local_steps, state_specs, ternary, wire_report
from jaxtern.compression.report import WireReport
from jaxtern.data.preprocessing.families import get_preprocessing
from jaxtern.local.local_steps import LocalSteps
from jaxtern.models import create_model

LOCAL_STEPS = {"local_10": 10, "local_30": 30}  # from one exchange to the next
VARIANTS = ("none", "float", "ternary", "two_way", "delayed", *LOCAL_STEPS)
SHAPES = {"lenet": (28, 28, 1), "cifarnet": (24, 24, 3), "alexnet": (224, 224, 3)}
CLASSES = {"lenet": 10, "cifarnet": 10, "alexnet": 1000}
RATE, MOMENTUM = 0.01, 0.9


class State(NamedTuple):
    """Of a run: `moments` are each host's own batch norm's; what else a host has of its own is in `optimizer`."""

    step: jax.Array
    params: Any
    moments: Any
    optimizer: optax.OptState


def create_network(name: str, seed: int) -> tuple[Any, dict, dict]:
    """Graph, fresh weights, and moments of batch norm, in memory of this host."""
    model = create_model(name, SHAPES[name], CLASSES[name], seed)
    graph, params, moments = nnx.split(model, nnx.Param, nnx.BatchStat)
    return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(moments)


def report(variant: str, params: Any, hosts: int, network: Network) -> WireReport:
    """What a variant sends, and by which exchange."""
    exchange = "two_way" if variant == "two_way" else "auto"
    reducer, workers = create_reducer(variant, exchange, network), 1 if variant == "none" else hosts
    return wire_report(params, reducer, workers, local_steps=LOCAL_STEPS.get(variant, 1))


def create_reducer(variant: str, exchange: str, network: Network | None = None) -> Reducer:
    return float_mean() if variant == "float" else ternary(exchange=exchange, network=network)


def create_optimizer(
    variant: str, exchange: str, network: Network | None = None
) -> tuple[optax.GradientTransformation | LocalSteps, Any]:
    """Momentum after a variant's mean, after none at all, or in local steps; and where the state lies on the mesh."""
    rule, everywhere = optax.sgd(RATE, momentum=MOMENTUM), PartitionSpec()
    if variant in LOCAL_STEPS:
        local = local_steps(AXIS, rule, LOCAL_STEPS[variant], reducer=create_reducer(variant, exchange, network))
        return local, local.specs
    if variant == "none":
        return rule, everywhere
    is_delayed = variant == "delayed"
    mean = compressed_mean(AXIS, create_reducer(variant, exchange, network), delayed=is_delayed)
    return optax.chain(mean, rule), (state_specs(AXIS), everywhere) if is_delayed else everywhere


def create_state(
    params: Any, moments: Any, optimizer: optax.GradientTransformation | LocalSteps, specs: Any, mesh: Mesh
) -> tuple[State, State]:
    """The first state on all hosts, and how it lies there.

    Moments differ from host to host and are declared to be replicated all the same, which `shard_map` with
    check_vma=False takes at its word: nothing here reads those of another host.
    """
    everywhere: Any = PartitionSpec()
    state_spec = State(everywhere, everywhere, everywhere, specs)

    def first(params: Any, moments: Any) -> State:
        own: Any = optimizer.init(params)
        own = own._replace(params=()) if isinstance(optimizer, LocalSteps) else own  # they are the state's
        return State(jnp.zeros((), jnp.int32), params, moments, own)

    create = over(mesh, first, (everywhere, everywhere), state_spec, donate_argnums=(0, 1))
    return create(*(jax.tree.map(lambda leaf: place(mesh, leaf), tree) for tree in (params, moments))), state_spec


def create_step(graph: Any, optimizer: optax.GradientTransformation | LocalSteps, specs: State, mesh: Mesh) -> Any:
    """The compiled step (state, images, labels) -> (state, float32[hosts] losses); the state is donated."""

    def step(state: State, images: jax.Array, labels: jax.Array) -> tuple[State, jax.Array]:
        standardize = get_preprocessing("mnist").standardize

        def loss(params: Any) -> tuple[jax.Array, Any]:
            network = nnx.merge(graph, params, state.moments)
            logits = network(standardize(images, None), _dropout_key(state.step))
            value = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
            return value, nnx.to_pure_dict(nnx.state(network, nnx.BatchStat))

        if isinstance(optimizer, LocalSteps):
            carried: Any = state.optimizer
            own = optimizer.workers(carried).params
            (value, moments), gradients = jax.value_and_grad(loss, has_aux=True)(own)
            after = optimizer.update(gradients, carried._replace(params=state.params))
            return State(state.step + 1, after.params, moments, after._replace(params=())), value[None]
        (value, moments), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        updates, changed = optimizer.update(gradients, state.optimizer, state.params)
        return State(state.step + 1, optax.apply_updates(state.params, updates), moments, changed), value[None]

    own = PartitionSpec(AXIS)
    return over(mesh, step, (specs, own, own), (specs, own), donate_argnums=0)


def _dropout_key(step: jax.Array) -> jax.Array:
    """Another one on every host, in every step."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), step), jax.lax.axis_index(AXIS))


def distribute(mesh: Mesh, own: np.ndarray) -> jax.Array:
    """All hosts' parts of a batch, of which this is ours."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec(AXIS)), own)


def draw_batch(name: str, size: int, host: int) -> tuple[np.ndarray, np.ndarray]:
    """Random uint8 images and labels, others on every host."""
    random = np.random.default_rng(host)
    images = random.integers(0, 256, (size, *SHAPES[name]), np.uint8)
    return images, random.integers(0, CLASSES[name], size, np.int32)
