"""What is promised of the wire: tensor by tensor, in all, and by a measurement of the links."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

import jaxtern
from jaxtern import Network, calibrate, wire_report
from jaxtern.compression.network import calibration
from jaxtern.compression.network.links import all_gather, all_reduce, all_to_all
from jaxtern.compression.transform import layout_of

TREE = {
    "conv": {"kernel": jnp.zeros((5, 5, 64, 64)), "bias": jnp.zeros(64)},
    "fc": jax.ShapeDtypeStruct((2048, 1000), jnp.float32),
}
EXCHANGES = ("gather", "sum", "scatter", "two_way")
METHODS = ["float", "ternary", jaxtern.quantized(7), jaxtern.top_k(0.01), "dgc", "low_rank", "sign"]


@pytest.mark.parametrize("options", [{}, {"min_size": 100}, {"exclude": lambda path: path == "fc"}])
@pytest.mark.parametrize(
    "reducer", [*(jaxtern.ternary(block_size=1000, exchange=each) for each in EXCHANGES), *METHODS]
)
def test_the_tensors_add_up_to_the_traffic(reducer: Any, options: dict[str, Any]):
    report = wire_report(TREE, reducer, 4, **options)
    assert sum(tensor.bytes for tensor in report.tensors) == pytest.approx(report.bytes)
    assert report.elements == 5 * 5 * 64 * 64 + 64 + 2048 * 1000
    assert [tensor.path for tensor in report.tensors] == ["conv/bias", "conv/kernel", "fc"]
    assert report.float_bits_per_element == pytest.approx(48)
    assert report.ratio == pytest.approx(report.float_bits_per_element / report.bits_per_element)


def test_traffic_and_ways_are_the_reducers_own():
    reducer = jaxtern.ternary(exchange="scatter")
    assert wire_report(TREE, reducer, 8).traffic == reducer.traffic(layout_of(TREE), 8)
    assert wire_report(TREE, reducer, 8).traffic.ways == ("scatter",)
    assert wire_report(TREE, "ternary", 8, min_size=100).traffic.ways == ("float", "scatter")


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8, 42, 127])
def test_large_tensors_cost_the_bits_an_element_that_the_formats_promise(num_workers: int):
    large, digits = 2**24, {1: 20, 2: 13, 3: 11, 4: 10, 8: 7, 42: 4, 127: 4}[num_workers]
    tree, share = jax.ShapeDtypeStruct((large,), jnp.float32), (num_workers - 1) / num_workers

    def bits(reducer: Any) -> float:
        return wire_report(tree, reducer, num_workers).bits_per_element

    gather, added, scatter, two_way = (bits(jaxtern.terngrad(exchange=each)) for each in EXCHANGES)
    assert gather == pytest.approx(1.6 * (num_workers - 1), rel=2e-4)
    assert added == pytest.approx(2 * share * 32 / digits, rel=2e-4)
    assert scatter == pytest.approx(share * (1.6 + 32 / digits), rel=2e-2)  # shards are filled up
    rotated = bits(jaxtern.ternary(exchange="gather"))
    assert rotated == pytest.approx(gather + 2 * share * 32 / 4096, rel=2e-4)  # a scale for each block
    assert two_way == pytest.approx(share * 3.2, rel=2e-2)
    assert bits(jaxtern.sign(two_way=True)) == pytest.approx(share + share, rel=1e-3)
    assert bits(jaxtern.sign()) == pytest.approx(num_workers - 1, rel=1e-3)
    assert bits(jaxtern.top_k(0.001)) == pytest.approx(0.001 * (32 + 12) * (num_workers - 1), rel=1e-2)
    assert bits(jaxtern.float_mean("bfloat16")) == pytest.approx(2 * share * 16, rel=1e-4)
    assert bits("float") == pytest.approx(2 * share * 32)


def test_the_table_names_every_tensor_and_fits_a_small_terminal():
    lines = str(wire_report(TREE, min_size=100, num_workers=4)).splitlines()
    assert [line.split()[0] for line in lines] == ["tensor", "conv/bias", "conv/kernel", "fc", "total", "float32", "4"]
    assert "float" in lines[1]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("num_workers", [2, 4])
def test_floats_cost_what_a_ring_costs(num_workers: int):
    for size in (2**15, 1000):
        tree = {"w": jnp.zeros(2**22), "kept": jnp.zeros(size)}
        report = wire_report(tree, "ternary", num_workers, exclude=lambda path: path == "kept")
        assert report.tensors[0].bytes == all_reduce(size, num_workers).bytes
        assert str(report).splitlines()[1].endswith("  float")


def test_a_tree_too_small_to_gain_is_told_so():
    for reducer in ("ternary", jaxtern.ternary(exchange="scatter")):
        assert "MORE bytes than float32: too small a tree for this; take float" in str(
            wire_report({"w": jnp.zeros(8)}, reducer, 4)
        )
    small, large = (wire_report({"w": jnp.zeros(size)}, "ternary", 4) for size in (2**11, 2**18))
    assert small.ratio > 3
    assert small.summary().endswith("times fewer bytes, but no less time at 1 Gbit/s: too small a tree to gain by it")
    assert large.summary().endswith("times fewer bytes")
    assert wire_report({"w": jnp.zeros(8)}, "float", 4).comparison == "1.0 times fewer bytes"


def test_one_worker_sends_nothing_and_an_empty_tree_has_a_report():
    for method in METHODS:
        assert wire_report(TREE, method, num_workers=1).bytes == 0
        assert wire_report({}, method, num_workers=4).bits_per_element == 0


def test_seconds_are_messages_times_latency_and_bytes_over_bandwidth():
    network = Network(latency=1e-3, bandwidth=1e6)
    assert network.seconds(all_gather(1000, 5)) == pytest.approx(4 * 1e-3 + 4 * 4000 / 1e6)
    assert network.seconds(all_reduce(1000, 5)) == pytest.approx(8 * 1e-3 + 8 / 5 * 4000 / 1e6)
    assert network.seconds(all_to_all(1000, 5)) == pytest.approx(4 * 1e-3 + 4 / 5 * 4000 / 1e6)


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


@pytest.mark.parametrize("num_workers", [2, 4])
def test_calibration_finds_latency_and_bandwidth_of_links_that_have_both(
    monkeypatch: pytest.MonkeyPatch, num_workers: int
):
    links = Network(latency=0.04, bandwidth=12.5e6)
    monkeypatch.setattr(
        calibration, "_median_seconds", lambda _, rows: links.seconds(all_gather(rows.shape[1], num_workers))
    )
    found = calibrate(_mesh(num_workers), "host")
    assert found.latency == pytest.approx(links.latency, rel=1e-4)
    assert found.bandwidth == pytest.approx(links.bandwidth, rel=0.01)


def test_calibration_refuses_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match=r"^axis_name='data': the mesh has host, device$"):
        calibrate(_mesh(2, 2), "data")
    with pytest.raises(ValueError, match=r"^bandwidth=0: must be a finite number of 1 or more$"):
        calibrate(_mesh(2), "host", bandwidth=0)


def test_rows_of_low_rank_and_top_k_are_what_each_tensor_sends():
    shapes = {"bias": jax.ShapeDtypeStruct((128,), "float32"), "kernel": jax.ShapeDtypeStruct((64, 128), "float32")}
    bias, kernel = jaxtern.wire_report(shapes, jaxtern.low_rank(4), num_workers=4).tensors
    # A ring sends 1.5 times what each worker has: 128 floats, and P and Q of rank 4.
    assert (bias.bytes, kernel.bytes) == (768, 1.5 * 4 * 4 * (64 + 128))
    report = jaxtern.wire_report(shapes, jaxtern.top_k(0.01), num_workers=4)
    assert sum(row.bytes for row in report.tensors) == pytest.approx(report.bytes)
    assert report.tensors[0].bits_per_element > report.tensors[1].bits_per_element  # a whole word for two places


def test_one_worker_sends_nothing():
    report = jaxtern.wire_report({"a": jax.ShapeDtypeStruct((64, 64), "float32")}, num_workers=1)
    assert (report.bytes, report.comparison) == (0, "one worker sends nothing")
