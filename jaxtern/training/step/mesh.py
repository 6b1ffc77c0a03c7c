"""The mesh of a run: which devices its workers use."""

import jax
from jax.sharding import Mesh

from jaxtern.cluster import devices_by_process
from jaxtern.training.recipe.recipe import Recipe

DEVICE_AXIS = "data"  # over the devices of different workers
FAST_AXIS = "fast"  # over the devices of one worker
VIRTUAL_AXIS = "virtual"  # over the workers of one device, where they are vmapped


def lay_out(recipe: Recipe) -> Recipe:
    """Sets `devices_per_worker` if the recipe leaves it open: the devices of a process are shared among its workers.

    It is 1 in a single process, or if a process's devices are fewer than its workers or do not divide among them.
    """
    if recipe.mean.devices_per_worker is not None:
        return recipe
    of_process, workers = jax.local_device_count(), recipe.run.num_workers // jax.process_count()
    fast = of_process // workers if jax.process_count() > 1 and workers and of_process % workers == 0 else 1
    return recipe.replace(mean={"devices_per_worker": max(1, fast)})


def create_mesh(recipe: Recipe) -> Mesh:
    """A mesh over the recipe's number of devices: workers by devices of a worker, as many in each process.

    Raises ValueError if there are fewer devices, or if workers do not divide among devices and processes.
    """
    devices, fast, workers = devices_by_process(), recipe.mean.worker_devices, recipe.run.num_workers
    processes, of_process = devices.shape
    if processes > 1:
        _require_processes(recipe, processes, of_process)
    least = fast * processes  # a worker's devices are of one process
    fitting = (size for size in range(least, devices.size + 1, least) if workers % (size // fast) == 0)
    size = recipe.run.num_devices or max(fitting, default=least)
    if size > of_process * processes:
        name = "run.num_devices" if recipe.run.num_devices else "mean.devices_per_worker"
        raise ValueError(f"{name}={size}: there are {of_process * processes}")
    if size // processes % fast:
        each = ", in each process" * (processes > 1)
        raise ValueError(f"run.num_devices={size}: must be a multiple of mean.devices_per_worker={fast}{each}")
    if workers % (size // fast):
        groups = f"the {size // fast} groups of " if fast > 1 else ""
        raise ValueError(f"run.num_workers={workers}: must be a multiple of {groups}run.num_devices={size}")
    if recipe.model.batch_norm == "sync" and recipe.run.virtual_workers == "unrolled" and workers > size // fast:
        need = "with several workers on a device, run.virtual_workers='unrolled' must be 'vmapped'"
        raise ValueError(f"model.batch_norm='sync': {need}")
    return Mesh(devices[:, : size // processes].reshape(-1, fast), (DEVICE_AXIS, FAST_AXIS))


def _require_processes(recipe: Recipe, processes: int, of_process: int) -> None:
    """Raises ValueError if workers or devices do not divide among the processes."""
    if recipe.run.num_workers % processes:
        raise ValueError(f"run.num_workers={recipe.run.num_workers}: must be a multiple of the {processes} processes")
    if of_process % recipe.mean.worker_devices:
        need = f"must divide the {of_process} that each process has"
        raise ValueError(f"mean.devices_per_worker={recipe.mean.worker_devices}: {need}")
    if recipe.run.num_devices is not None and recipe.run.num_devices % processes:
        raise ValueError(f"run.num_devices={recipe.run.num_devices}: must be a multiple of the {processes} processes")
