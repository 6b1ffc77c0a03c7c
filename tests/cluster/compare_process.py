"""One process of a cluster, of which process 1 holds another bit than all others. See test_compare.py."""

import jax
import numpy as np

from jaxtern import cluster, cluster_flags, command_line
from jaxtern.models import create_model
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run.divergence import DivergenceGuard
from jaxtern.training.step.mesh import create_mesh
from jaxtern.training.step.state import TrainState, create_run, specs_of_state


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    found = cluster_flags.join()
    recipe = Recipe(run=RunSection(num_workers=found.num_processes, batch_size=found.num_processes))
    mesh = create_mesh(recipe)
    _, state = create_run(recipe, create_model("lenet", (8, 8, 1), 10, 0), 10, mesh)
    guard = DivergenceGuard(100, mesh, specs_of_state(), [f"host-{i}" for i in range(found.num_processes)])
    for each in (state, corrupt(state) if found.process_id == 1 else state):
        print(guard.find_difference(np.asarray(guard.compare(each, 0, 1, saves=True))), flush=True)
    return 0


def corrupt(state: TrainState) -> TrainState:
    """With the lowest bit of a weight changed in this process alone."""
    leaf = state.params["fc1"]["kernel"]
    (shard,) = leaf.addressable_shards
    own = np.array(shard.data)
    own.reshape(-1).view(np.uint32)[777] ^= np.uint32(1)
    copies = [jax.device_put(own, shard.device)]
    changed = jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, copies)
    return state._replace(params=state.params | {"fc1": state.params["fc1"] | {"kernel": changed}})


if __name__ == "__main__":
    with cluster.leaving_when_failed():
        command_line.run(main)
