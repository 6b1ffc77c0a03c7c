"""A regression by all devices of all hosts: python docs/examples/many_hosts.py FOLDER STEPS"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec as P

import jaxtern
from jaxtern import cluster
from jaxtern.hosts import messages
from jaxtern.training.saved.checkpoints import Checkpoints

OPTIMIZER = optax.chain(
    jaxtern.compressed_mean("host", fast_axis_name="device", delayed=True),
    optax.adam(0.05),
)
STATE = (jaxtern.state_specs("host"), P())  # P() alone where means are not delayed
BATCH = P(("host", "device"))


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def update(params, state, batch):
    gradients = jax.grad(loss)(params, batch)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def draw_batch(step, sharding):
    """64 examples of this process, the same whenever the step is taken again."""
    rng = np.random.default_rng((step, jax.process_index()))
    x = rng.normal(size=(64, 8)).astype(np.float32)
    own = {"x": x, "y": x @ np.linspace(-1, 1, 8, dtype=np.float32)}
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, leaf), own)


def main(folder, num_steps):
    cluster.join()  # before anything else asks JAX for its devices
    mesh = cluster.create_mesh()
    placed = {"mesh": mesh, "check_vma": False}
    take_step = jax.jit(jax.shard_map(update, in_specs=(P(), STATE, BATCH), out_specs=(P(), STATE), **placed))
    params = messages.to_devices({"w": np.zeros(8, np.float32)}, {"w": NamedSharding(mesh, P())})
    state = jax.jit(jax.shard_map(OPTIMIZER.init, in_specs=P(), out_specs=STATE, **placed))(params)

    # Process 0 alone has the folder, and sends the others what it has restored.
    first, found, checkpoints = messages.to_host((params, state)), None, None
    if jax.process_index() == 0:
        checkpoints = Checkpoints(folder, keep=2)
        found = checkpoints.restore_latest(first)
        cluster.before_leaving(checkpoints.wait)
    start = messages.broadcast_json(found and found.metadata["steps"]) or 0
    whole = messages.broadcast_arrays(found.state if found else first)
    params, state = messages.to_devices(whole, jax.tree.map(lambda leaf: leaf.sharding, (params, state)))

    for step in range(start, num_steps):
        params, state = take_step(params, state, draw_batch(step, NamedSharding(mesh, BATCH)))
        if (step + 1) % 20 == 0 or step + 1 == num_steps:
            whole = messages.to_host((params, state))  # a collective: all processes call it
            if checkpoints is not None:
                checkpoints.save(step + 1, whole, steps=step + 1)
    if checkpoints is not None:
        print("from step", start, "to", messages.to_host(params)["w"])
        checkpoints.close()
    messages.meet()  # nobody leaves while process 0 still writes


if __name__ == "__main__":
    with cluster.leaving_when_failed():
        main(Path(sys.argv[1]), int(sys.argv[2]))
