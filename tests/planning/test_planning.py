"""The planning model in its limits, against numbers worked out by hand, and what it recommends."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxtern import Network, Reduced, Reducer, Traffic, low_rank, quantized, sign, top_k
from jaxtern.compression.fragments import Timing
from jaxtern.compression.network.links import all_to_all
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.compression.reducer import Layout, stateless
from jaxtern.compression.transform import layout_of
from jaxtern.planning.forecast import Forecast, Scenario, Way, seconds
from jaxtern.planning.model import Placement, QuantizerSpeed, StepTime, measured_method, predict_step, usual_methods
from jaxtern.planning.speed import measure_quantizer_speed, measure_reduce_seconds

SPEED = QuantizerSpeed(3e-10, 1e-10, 2e-10, 4e-11, 3e-11, 2e-11, 4e-10, 1e-10)
ELEMENTS = 10**7
NO_WIRE = Network(latency=0.0, bandwidth=1e300)
SLOW = Network(latency=1e-4, bandwidth=125e6)
EXACT = ("gather", "sum", "scatter")
METHODS = ("float", *EXACT, "two_way")


def layout_of_vectors(*sizes: int) -> Layout:
    return layout_of([jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes])


def predict(
    name: str,
    where: int | Placement = 4,
    network: Network = SLOW,
    speed: QuantizerSpeed = SPEED,
    sizes: tuple[int, ...] = (ELEMENTS,),
    num_floats: int = 0,
    bucket_size: int | None = None,
    **options: Any,
) -> StepTime:
    methods = usual_methods(Quantizer(), layout_of_vectors(*sizes), num_floats, speed, bucket_size)
    placement = Placement(where) if isinstance(where, int) else where
    return predict_step(methods[name], placement, network, options.pop("compute", 0.1), **options)


def traffic_of(name: str, num_workers: int) -> Traffic:
    """What the reducer itself says of all elements in one bucket."""
    return quantized(1, exchange=name, bucket_size=None).traffic(layout_of_vectors(ELEMENTS), num_workers)


def forecast(network: Network = SLOW, hosts: int = 8, devices: int = 1) -> Forecast:
    scenario = Scenario(hosts, devices, network, Network(1e-5, 10e9), 0.1)
    return Forecast(usual_methods(Quantizer(), layout_of_vectors(ELEMENTS), 0, SPEED), scenario)


@pytest.mark.parametrize("exchange", METHODS)
def test_links_without_cost_leave_the_codec(exchange: str):
    time = predict(exchange, network=NO_WIRE)
    assert (time.compute, time.wire) == (0.1, pytest.approx(0, abs=1e-200))
    by_hand = {
        "float": 1e-10 * 3 / 4,
        "gather": 1e-10 + 2e-10 + 4e-11 + 4 * 3e-11,
        "sum": 1e-10 + 2e-10 + 4e-11 + 3e-11 + 1e-10 * 3 / 4 / 10,  # ten digits a word
        "scatter": 1e-10 + 2e-10 + 4e-11 + 3e-11 + 2e-11,
        "two_way": 1e-10 + 2e-10 + 4e-11 + 3e-11 + 4e-10,
    }
    assert time.codec == pytest.approx(by_hand[exchange] * ELEMENTS, rel=1e-4)


@pytest.mark.parametrize("exchange", [*EXACT, "two_way"])
def test_a_codec_without_cost_leaves_the_wire(exchange: str):
    time = predict(exchange, speed=QuantizerSpeed())
    assert time.codec == 0
    assert time.wire == SLOW.seconds(traffic_of(exchange, 4))


def test_a_known_step_on_two_hosts_of_one_gigabit():
    time = predict("gather", 2, Network(1e-3, 125e6), QuantizerSpeed())
    words = math.ceil(ELEMENTS / 20 / 128) * 128  # in whole runs of lanes
    assert time.wire == pytest.approx(1e-3 + 4 * words / 125e6 + 1e-3 + 4 * math.ceil(ELEMENTS / 4096) / 125e6)
    assert predict("float", 2, Network(1e-3, 125e6)).wire == pytest.approx(2e-3 + 4 * ELEMENTS / 125e6)


@pytest.mark.parametrize("exchange", METHODS)
@pytest.mark.parametrize(
    "placement", [Placement(1), Placement(8), Placement(4, 4), Placement(4, 4, True), Placement(1, 4, True)]
)
def test_a_faster_link_never_takes_longer(exchange: str, placement: Placement):
    times = [predict(exchange, placement, Network(1e-4, rate)).total for rate in (1e6, 1e7, 1e8, 1e9)]
    assert times == sorted(times, reverse=True)
    assert (times[0] > times[-1]) == (placement.hosts > 1)


@pytest.mark.parametrize("exchange", METHODS)
def test_one_worker_has_no_wire(exchange: str):
    assert predict(exchange, 1).wire == 0
    assert predict(exchange, Placement(1, 1, True)).wire == 0


def test_wire_beside_the_computation_costs_what_it_takes_longer():
    alone = predict("float")
    assert predict("float", overlap=True).wire == pytest.approx(alone.wire - alone.compute)
    assert predict("gather", network=Network(0.0, 1e12), overlap=True).wire == 0


def test_buckets_hide_the_shorter_of_codec_and_wire_but_for_the_largest():
    sizes, network, speed = (163_840, 40_960, 204_800), Network(0.0, 1e8), QuantizerSpeed(encode=1e-8, scales=1e-8)

    def step(network: Network, bucket_size: int | None, hidden: float = 1.0) -> StepTime:
        options = {"bucket_size": bucket_size, "hidden": hidden, "compute": 0.0}
        return predict("gather", 2, network, speed, sizes, **options)

    encode = speed.encode * sum(sizes)
    alone, beside = step(network, None), step(network, 204_800)
    assert alone.wire < encode
    assert beside.codec == alone.codec == pytest.approx(2 * encode)
    assert beside.wire == pytest.approx(alone.wire / 2)  # two buckets alike
    assert step(network, 204_800, 0.5).wire == pytest.approx(alone.wire * 3 / 4)
    assert step(network, 204_800, 0.0).wire == alone.wire
    slow = Network(1e-3, 1e6)
    assert step(slow, 204_800).wire == pytest.approx(step(slow, None).wire + 1e-3 - encode / 2)
    assert step(slow, 10**8) == step(slow, None)


def test_a_host_with_one_device_is_the_same_hierarchical_or_not():
    for exchange in METHODS:
        assert predict(exchange, Placement(4, 1, True)) == predict(exchange, Placement(4)) == predict(exchange, 4)


def test_a_host_of_devices_sends_one_worker_s_ring_and_all_devices_messages():
    flat = predict("gather", Placement(2, 4), Network(0.0, 1e8), QuantizerSpeed()).wire
    assert flat == pytest.approx(traffic_of("gather", 8).bytes / 1e8)
    traffic = traffic_of("two_way", 8).bytes
    direct = all_to_all(500_736, 8).bytes  # of one device to all others, of which 4/7 leave the host, times 4 devices
    two_way = predict("two_way", Placement(2, 4), Network(0.0, 1e8), QuantizerSpeed()).wire
    assert two_way == pytest.approx((traffic + (4 * 4 / 7 - 1) * direct) / 1e8, rel=1e-3)
    assert predict("two_way", Placement(2, 4, True)).wire < two_way


@pytest.mark.parametrize("rate", [1e6, 1e8, 1e10, 1e12])
@pytest.mark.parametrize("devices", [1, 4])
def test_the_recommendation_is_the_fastest(rate: float, devices: int):
    found = forecast(Network(1e-4, rate), devices=devices)
    exact = {way: time.total for way, time in found.here.items() if way.method in EXACT}
    best = min(exact, key=lambda way: exact[way])
    base = min(time.total for way, time in found.here.items() if way.method == "float")
    assert found.best_exact() == best
    said = found.recommendation()
    if exact[best] < base:
        assert said.startswith(f"take {best}: {seconds(exact[best])} a step, {base / exact[best]:.2f} times")
    else:
        assert said.startswith("stay with float")
    two_way = min(time.total for way, time in found.here.items() if way.method == "two_way")
    assert ("unbiased but not exact" in said) == (two_way < min(base, exact[best]))


def test_the_recommendation_says_so_where_one_worker_is_faster():
    rare = forecast(Network(1e-4, 1e6))
    speed = 8 * 0.1 / rare.here[rare.best_exact()].total
    assert f" and {speed:.2f} times that of one worker, which is faster alone" in rare.recommendation()
    assert "try 10 to 30 steps first, as more cost accuracy" in rare.recommendation()
    assert "faster alone" not in forecast(Network(1e-4, 1e10)).recommendation()


def test_the_forecast_has_a_row_of_the_cluster_itself():
    assert list(forecast(hosts=3).scaling)[:4] == [1, 2, 3, 4]


def test_the_forecast_scales_from_one_worker_by_whole_hosts():
    found = forecast(devices=4)
    assert list(found.scaling) == [1, *(2**k for k in range(2, 11))]
    assert found.speed_up(1, Way("float", False)) == 1
    assert forecast(hosts=1).recommendation() == "one worker exchanges nothing: take float"
    assert found.predict(32) == found.here
    assert forecast(devices=3).scenario.worker_counts() == [1, *(3 * 2**k for k in range(9))]
    assert all(len(line) <= 100 for line in str(found).splitlines())


def test_local_steps_share_an_exchange_and_fragments_have_messages_of_their_own():
    whole = predict("gather")
    time = predict("gather", timing=Timing(10))
    assert time == (whole.compute, pytest.approx(whole.codec / 10), pytest.approx(whole.wire / 10))
    messages = traffic_of("gather", 4).messages
    time = predict("gather", timing=Timing(10, 5))
    assert time.wire == pytest.approx((whole.wire + 4 * messages * SLOW.latency) / 10)
    assert predict("gather", timing=Timing(10, 5), overlap=True, compute=whole.wire).wire == 0
    short = 0.5 * whole.wire
    late = predict("gather", timing=Timing(10), overlap=True, compute=short).wire
    assert late == pytest.approx((whole.wire - short) / 10)


def test_local_steps_are_recommended_where_the_exchange_is_dear():
    ocean = forecast(Network(0.1, 12.5e6), hosts=4)
    assert re.search(r"with an exchange in (\d+) steps \(local\.steps=\1\) it takes", ocean.recommendation())
    assert "local.steps" not in forecast(Network(1e-6, 12.5e9), hosts=4).recommendation()


def test_an_exchange_that_cannot_add_so_many_is_left_out():
    methods = usual_methods(Quantizer(levels=100), layout_of_vectors(1000), 0, QuantizerSpeed())
    found = Forecast(methods, Scenario(1024, 1, SLOW, SLOW, 0.0))
    assert {way.method for way in found.here} == {"float", "gather", "two_way"}
    assert found.best_exact().method == "gather"
    most = (2**16 - 1) // 200
    predict_step(methods["sum"], Placement(most), SLOW, 0.0)
    with pytest.raises(ValueError, match=rf"^placement: {most + 1} workers: must be at most {most}$"):
        predict_step(methods["sum"], Placement(most + 1), SLOW, 0.0)


def test_tensors_that_stay_float_are_sent_beside_the_words():
    """Gathered by two workers; of four, in shards, whose first half each device sends to all others."""
    network, free, both = Network(0.0, 1e8), QuantizerSpeed(), {"sizes": (1000,), "num_floats": 10**6}
    for hosts, sent in ((2, 4e6), (4, 4e6 * 2 * 3 / 4)):
        alone = predict("gather", hosts, network, free, (1000,)).wire
        assert predict("gather", hosts, network, free, **both).wire == pytest.approx(alone + sent / 1e8)
    flat, alone = (predict("gather", Placement(2, 2), network, free, (1000,), floats).wire for floats in (10**6, 0))
    assert flat == pytest.approx(alone + 4e6 * 3 / 4 * (1 + 2 * 2 / 3) / 1e8)


@pytest.mark.few("q")
@pytest.mark.parametrize(
    "reducer", [low_rank(2), top_k(0.01, "bfloat16"), sign(two_way=True), quantized(2)], ids=["low", "top", "sign", "q"]
)
def test_any_reducer_is_measured_and_sends_what_it_says(reducer: Reducer):
    layout = layout_of({"a": jnp.zeros((64, 32)), "b": jnp.zeros(7, jnp.bfloat16)})
    took = measure_reduce_seconds(reducer, layout, seconds=0.01)
    assert 0 < took < 1
    method = measured_method(reducer, layout, took)
    for hosts in (1, 2, 16):
        time = predict_step(method, Placement(hosts), SLOW, 0.1)
        assert time == (0.1, took, SLOW.seconds(reducer.traffic(layout, hosts)))


def test_a_reducer_of_ones_own_has_a_row_beside_the_others():
    """One that sends two bytes of every worker straight to all others, whatever there is."""

    def reduce(workers: Any, state: Any, _: Any) -> Reduced:
        return Reduced(workers[0], state)

    mine = Reducer(stateless, reduce, lambda _, workers: all_to_all(0.5 * workers, workers))
    layout, network = layout_of_vectors(1000), Network(0.0, 1.0)
    methods = usual_methods(Quantizer(), layout, 0, SPEED) | {"mine": measured_method(mine, layout, 1e-3, 100)}
    found = Forecast(methods, Scenario(2, 2, network, Network(0.0, 1e300), 0.0))
    assert found.here[Way("mine", False)].wire == pytest.approx((2 * 3 + 300) * 4 / 3 + 300)
    assert found.here[Way("mine", True)] == (0.0, 1e-3, pytest.approx(2 + 400))
    assert found.here[found.best_exact()].total > 500
    assert found.recommendation().endswith(
        f"; mine, hierarchical takes 402 s, {4000 / 402:.2f} times the speed of float"
    )
    assert all(len(line) <= 100 for line in str(found).splitlines())


def test_codec_speed_is_measured_in_every_stage():
    speed = measure_quantizer_speed(Quantizer(), seconds=0.1, elements=2**16)
    for name in ("scales", "encode", "sum_row", "mean_row", "add"):
        assert 0 < getattr(speed, name) < 1e-5
    assert 0 < speed.decode + speed.decode_row < 1e-5
    assert speed.flatten == 0  # CPUs compress tensors where they lie


def test_times_are_written_with_three_digits():
    assert [seconds(x) for x in (0, 1.5e-6, 9.996e-3, 0.1234, 0.9996, 250)] == [
        "0", "1.50 us", "10.0 ms", "123 ms", "1.00 s", "250 s",
    ]  # fmt: skip
