"""What is promised of the wire: tensor by tensor, in all, and by a measurement of the links."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from jaxtern import Network, Ternary, calibrate, wire_report
from jaxtern.compression import cost

TREE = {
    "conv": {"kernel": jnp.zeros((5, 5, 64, 64)), "bias": jnp.zeros(64)},
    "fc": jax.ShapeDtypeStruct((2048, 1000), jnp.float32),
}


@pytest.mark.parametrize("exchange", [*cost.EXCHANGES, "auto"])
@pytest.mark.parametrize("options", [{}, {"bucket_size": 10**5}, {"min_size": 100}, {"exclude": lambda p: p == "fc"}])
def test_the_tensors_add_up_to_the_traffic(exchange: str, options: dict[str, Any]):
    report = wire_report(TREE, Ternary(block_size=1000), exchange, 4, **options)
    assert sum(tensor.bytes for tensor in report.tensors) == pytest.approx(report.bytes)
    assert report.elements == 5 * 5 * 64 * 64 + 64 + 2048 * 1000
    assert [tensor.path for tensor in report.tensors] == ["conv/bias", "conv/kernel", "fc"]
    assert report.float_bits_per_element == pytest.approx(48)
    assert report.ratio == pytest.approx(report.float_bits_per_element / report.bits_per_element)
    assert all(tensor.compressed == (exchange != "float") for tensor in report.tensors) or options


def test_one_bucket_is_what_step_traffic_says():
    report = wire_report(TREE, "ternary", "scatter", 8, min_size=100, bucket_size=None)
    traffic = cost.step_traffic(Ternary(), "scatter", (5 * 5 * 64 * 64, 2048 * 1000), (64,), 8)
    assert report.traffic == traffic
    assert report.exchanges == ("scatter",)


def test_more_devices_of_a_worker_send_no_more_than_one_but_for_scales_and_padding():
    alone, shared = (wire_report(TREE, exchange="gather", num_workers=4, devices_per_worker=d) for d in (1, 8))
    assert alone.bytes <= shared.bytes <= alone.bytes * 1.001


def test_the_table_names_every_tensor_and_fits_a_small_terminal():
    lines = str(wire_report(TREE, min_size=100, num_workers=4)).splitlines()
    assert [line.split()[0] for line in lines] == ["tensor", "conv/bias", "conv/kernel", "fc", "total", "float32", "4"]
    assert "float" in lines[1]
    assert all(len(line) <= 80 for line in lines)


def test_one_worker_sends_nothing_and_an_empty_tree_has_a_report():
    assert wire_report(TREE, num_workers=1).bytes == 0
    assert wire_report({}, num_workers=4).bits_per_element == 0
    with pytest.raises(ValueError, match=r"^num_workers=0: must be an integer of 1 or more$"):
        wire_report(TREE, num_workers=0)


def test_seconds_are_messages_times_latency_and_bytes_over_bandwidth():
    network = Network(latency=1e-3, bandwidth=1e6)
    assert network.seconds(cost.all_gather(1000, 5)) == pytest.approx(4 * 1e-3 + 4 * 4000 / 1e6)
    assert network.seconds(cost.all_reduce(1000, 5)) == pytest.approx(8 * 1e-3 + 8 / 5 * 4000 / 1e6)
    assert network.seconds(cost.all_to_all(1000, 5)) == pytest.approx(4 * 1e-3 + 4 / 5 * 4000 / 1e6)


def _mesh(*shape: int) -> Mesh:
    names = ("host", "device")[: len(shape)]
    devices = np.array(jax.devices("cpu")[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def test_calibration_measures_links_and_takes_what_it_is_given():
    measured = calibrate(_mesh(4, 2), "host")
    assert 0 < measured.latency < 1
    assert 1e5 < measured.bandwidth < 1e13
    given = calibrate(_mesh(4), "host", latency=0.5, bandwidth=2.0**20)
    assert given == Network(0.5, 2.0**20)
    assert calibrate(_mesh(1), "host") == Network()


def test_calibration_refuses_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match=r"^axis_name='data': the mesh has host, device$"):
        calibrate(_mesh(2, 2), "data")
    with pytest.raises(ValueError, match=r"^bandwidth=0: must be a finite number of 1 or more$"):
        calibrate(_mesh(2), "host", bandwidth=0)
