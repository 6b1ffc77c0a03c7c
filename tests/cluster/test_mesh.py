"""The mesh of a run or a cluster: workers by the devices that average as floats."""

import dataclasses
import itertools

import jax
import pytest

from jaxtern import cluster
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.step.mesh import create_mesh, lay_out


@dataclasses.dataclass(frozen=True)
class Device:
    """What a mesh looks at."""

    id: int
    process_index: int
    device_kind: str = "pretended"
    platform: str = "cpu"


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch):
    """Has JAX tell of processes with so many devices each."""

    def tell(*counts: int) -> None:
        places = [process for process, count in enumerate(counts) for _ in range(count)]
        devices = [Device(number, place) for number, place in enumerate(places)]
        monkeypatch.setattr(jax, "devices", lambda: devices)
        monkeypatch.setattr(jax, "process_count", lambda: len(counts))
        monkeypatch.setattr(jax, "local_device_count", lambda: counts[0])

    return tell


def ids(recipe: Recipe) -> list[list[int]]:
    return [[device.id for device in row] for row in create_mesh(lay_out(recipe)).devices]


def test_cluster_mesh_has_hosts_by_devices(pretend):
    pretend(2, 2, 2)
    mesh = cluster.create_mesh()
    assert dict(mesh.shape) == {"host": 3, "device": 2}
    assert [device.process_index for device in mesh.devices[1]] == [1, 1]


def test_cluster_mesh_of_unequal_hosts_is_refused(pretend):
    pretend(2, 2, 1)
    with pytest.raises(ValueError, match=r"^devices: process 2 has 1, process 0 2; each must have as many$"):
        cluster.create_mesh()


@pytest.mark.parametrize(
    ("counts", "fields", "expected"),
    [
        ((4, 4), {"num_workers": 2}, [[0, 1, 2, 3], [4, 5, 6, 7]]),  # a worker a host
        ((4, 4), {"num_workers": 4}, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ((4, 4), {"num_workers": 8}, [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ((4, 4), {"num_workers": 16}, [[0], [1], [2], [3], [4], [5], [6], [7]]),
        ((4, 4), {"num_workers": 6}, [[0], [1], [2], [4], [5], [6]]),  # three workers a host: one device each
        ((4, 4), {"num_workers": 2, "devices_per_worker": 1}, [[0], [4]]),
        ((4, 4), {"num_workers": 4, "num_devices": 4, "devices_per_worker": 2}, [[0, 1], [4, 5]]),
        ((4, 4), {"num_workers": 6, "devices_per_worker": 2}, [[0, 1], [4, 5]]),  # no worker of two hosts
        ((1, 1, 1), {"num_workers": 6}, [[0], [1], [2]]),
        ((8,), {"num_workers": 4}, [[0], [1], [2], [3]]),  # one process leaves them one each
    ],
)
def test_every_process_has_as_many_devices_of_the_mesh(pretend, recipe_of, counts: tuple, fields: dict, expected: list):
    pretend(*counts)
    assert ids(recipe_of(batch_size=96, **fields)) == expected


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("devices", [1, 2, 4, 6])
def test_each_process_has_its_own_equal_run_of_workers(pretend, recipe_of, processes: int, devices: int):
    """So process i of P feeds the i-th of P equal parts of a batch."""
    pretend(*[devices] * processes)
    for workers, fast in itertools.product(range(processes, 13, processes), range(1, devices + 1)):
        if devices % fast == 0:
            mesh = create_mesh(recipe_of(batch_size=workers * fast, num_workers=workers, devices_per_worker=fast))
            owners = [[device.process_index for device in row] for row in mesh.devices]
            assert owners == [[p] * fast for p in range(processes) for _ in range(len(owners) // processes)]
            assert workers % len(owners) == 0


@pytest.mark.parametrize(
    ("counts", "fields", "message"),
    [
        ((2, 2), {"num_workers": 3}, r"^run.num_workers=3: must be a multiple of the 2 processes$"),
        (
            (2, 2),
            {"num_workers": 2, "devices_per_worker": 4},
            r"^mean.devices_per_worker=4: must divide the 2 that",
        ),
        ((2, 2), {"num_workers": 4, "num_devices": 3}, r"^run.num_devices=3: must be a multiple of the 2 processes$"),
        (
            (4, 4),
            {"num_workers": 6, "num_devices": 6, "devices_per_worker": 2},
            r"^run.num_devices=6: must be a multiple of mean.devices_per_worker=2, in each process$",
        ),
        ((1, 2), {"num_workers": 2}, r"^devices: process 1 has 2, process 0 1; each must have as many$"),
    ],
)
def test_mesh_that_processes_cannot_share_is_refused(pretend, recipe_of, counts: tuple, fields: dict, message: str):
    pretend(*counts)
    with pytest.raises(ValueError, match=message):
        ids(recipe_of(batch_size=96, **fields))
