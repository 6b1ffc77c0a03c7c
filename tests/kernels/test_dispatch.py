"""Which implementation runs."""

import logging
import types

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from jaxtern.kernels import Segments, dispatch, moments
from jaxtern.kernels.native import library as native_library


def set_version(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(jax, "__version__", version)
    monkeypatch.setattr(jax, "__version_info__", tuple(map(int, version.split("."))))


def _device(platform: str = "gpu", capability: str | None = "9.0", kind: str = "NVIDIA H200") -> types.SimpleNamespace:
    attributes = {} if capability is None else {"compute_capability": capability}
    return types.SimpleNamespace(platform=platform, device_kind=kind, **attributes)


CPU = _device(platform="cpu", capability=None, kind="cpu")


@pytest.mark.parametrize(
    ("device", "version", "implementation", "chosen"),
    [
        (_device(), "0.11.2", "auto", "mosaic"),
        (_device(), "0.12.0.1", "auto", "mosaic"),
        (_device(capability="10.0"), "0.11.0", "auto", "mosaic"),
        (_device(), "0.10.2", "auto", "reference"),
        (_device(capability="8.6"), "0.11.2", "auto", "reference"),
        (_device(), "0.11.2", "mosaic", "mosaic"),
        (_device(capability="gfx942"), "0.11.2", "auto", "reference"),
        (_device(platform="tpu", capability=None, kind="TPU v5"), "0.11.2", "auto", "reference"),
        (_device(), "0.11.2", "reference", "reference"),
    ],
)
def test_auto_takes_mosaic_on_new_nvidia_gpus_with_a_new_jax(
    monkeypatch: pytest.MonkeyPatch, device: types.SimpleNamespace, version: str, implementation: str, chosen: str
):
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    set_version(monkeypatch, version)
    assert dispatch.pick_implementation("moments", implementation, 2**30) == chosen


@pytest.mark.parametrize(
    ("device", "version", "reason"),
    [
        (CPU, "0.11.2", "the device is 'cpu', no NVIDIA GPU"),
        (_device(capability="7.5", kind="T4"), "0.11.2", "T4 has compute capability 7.5, below 9.0"),
        (_device(), "0.10.2", r"JAX is 0.10.2, older than 0\.11"),
    ],
)
def test_mosaic_where_it_cannot_run_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, device: types.SimpleNamespace, version: str, reason: str
):
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    set_version(monkeypatch, version)
    with pytest.raises(ValueError, match=f"moments: implementation='mosaic': {reason}"):
        moments(jnp.zeros(3), Segments((3,)), implementation="mosaic")


def test_arrays_too_large_to_count_in_int32_take_the_reference(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "devices", lambda *_: [_device()])
    monkeypatch.setattr(dispatch, "why_not_mosaic", lambda: "")
    assert dispatch.pick_implementation("moments", "auto", 2**30) == "mosaic"
    assert dispatch.pick_implementation("moments", "auto", 2**30 + 1) == "reference"
    with pytest.raises(ValueError, match=r"moments: implementation='mosaic': 1073741825 numbers are more than 2\^30"):
        dispatch.pick_implementation("moments", "mosaic", 2**30 + 1)


@pytest.mark.parametrize(
    ("device", "level", "message"),
    [
        (_device(), logging.INFO, "kernels: mosaic"),
        (
            _device(capability="8.0", kind="A100"),
            logging.INFO,
            "kernels: reference, as A100 has compute capability 8.0, below 9.0",
        ),
        (
            _device(platform="tpu", capability=None, kind="TPU v5"),
            logging.DEBUG,
            "kernels: reference, as the device is 'TPU v5', no NVIDIA GPU",
        ),
    ],
)
def test_auto_logs_its_choice_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    device: types.SimpleNamespace,
    level: int,
    message: str,
):
    monkeypatch.setattr(jax, "devices", lambda *_: [device])
    set_version(monkeypatch, "0.11.2")
    dispatch.log_once.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="jaxtern.kernels.dispatch"):
        for _ in range(3):
            dispatch.pick_implementation("moments", "auto", 3)
            dispatch.pick_implementation("moments", "reference", 3)
    assert [(record.levelno, record.message) for record in caplog.records] == [(level, message)]


@pytest.mark.parametrize(
    ("why_not", "not_native", "chosen"),
    [
        ("", "", "native"),
        ("there is no compiler", "", "reference"),
        ("", "dtype=float16 is not float32", "reference"),
    ],
)
@pytest.mark.parametrize("size", [1, 2**20])
def test_auto_takes_native_on_a_cpu_with_a_compiler(
    monkeypatch: pytest.MonkeyPatch, size: int, why_not: str, not_native: str, chosen: str
):
    monkeypatch.setattr(jax, "devices", lambda *_: [CPU])
    monkeypatch.setattr(native_library, "why_not_native", lambda: why_not)
    assert dispatch.pick_implementation("moments", "auto", size, not_native) == chosen
    reason = not_native or why_not
    if reason:
        with pytest.raises(ValueError, match=f"moments: implementation='native': {reason}"):
            dispatch.pick_implementation("moments", "native", size, not_native)
    else:
        assert dispatch.pick_implementation("moments", "native", size, not_native) == "native"


def test_a_program_over_a_mesh_is_for_its_devices_whatever_the_default_one_is(monkeypatch: pytest.MonkeyPatch):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    monkeypatch.setattr(jax, "devices", lambda platform=None: [CPU if platform == "cpu" else _device()])
    found = []
    own = jax.shard_map(lambda: found.append(dispatch.device()), mesh=mesh, in_specs=(), out_specs=None)
    jax.jit(own).lower()
    assert (found, dispatch.device()) == ([CPU], _device())


def test_a_program_without_a_mesh_is_for_the_default_device():
    with jax.default_device(jax.devices()[1]):
        assert dispatch.device() == jax.devices()[1]
    with jax.default_device("cpu"):
        assert dispatch.device() == jax.devices("cpu")[0]
    assert dispatch.device() == jax.devices()[0]


def test_native_is_refused_where_the_device_is_no_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "devices", lambda *_: [_device()])
    with pytest.raises(ValueError, match="implementation='native': the device is 'NVIDIA H200', no CPU"):
        dispatch.pick_implementation("moments", "native", 2**20)


def test_a_missing_compiler_is_logged_once_and_only_where_it_would_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(jax, "devices", lambda *_: [CPU])
    monkeypatch.setattr(native_library, "why_not_native", lambda: "there is no C compiler")
    dispatch.log_once.cache_clear()
    with caplog.at_level(logging.DEBUG, logger="jaxtern.kernels.dispatch"):
        dispatch.pick_implementation("moments", "auto", 3, "dtype=float16 is not float32")
        assert not caplog.records
        for _ in range(3):
            dispatch.pick_implementation("moments", "auto", 3)
    found = [(record.levelno, record.message) for record in caplog.records]
    assert found == [(logging.INFO, "kernels: reference, as there is no C compiler")]
