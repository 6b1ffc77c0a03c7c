"""`python -m benchmarks.kernels`: what it counts, prints, compares and refuses; its figures are another matter."""

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import timing
from benchmarks.kernels import __main__ as command, cases, check, lowering
from jaxtern.compression.radix.buckets import BUCKET_SIZE, plan_buckets
from jaxtern.compression.transform import layout_of
from jaxtern.kernels import dispatch, tuning
from jaxtern.kernels.dispatch import why_not_native
from jaxtern.kernels.tuning import OPS


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command and returns what it exits with."""

    def call(*arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["kernels", *arguments])
        with pytest.raises(SystemExit) as ended:
            command.main()
        return ended.value.code

    return call


@pytest.mark.slow
def test_bytes_are_those_of_arguments_and_results():
    created = list(cases.create_cases(30_000, ["float32", "bfloat16"], 3))
    assert {case.op for case in created} == {"rotate", *OPS}
    for case in created:
        results = jax.eval_shape(partial(case.run, implementation="reference"), *case.arguments)
        sent = case.arguments[1 if case.in_place and case.op != "rotate" else 0]
        large = [sent, *(each for each in jax.tree.leaves(results) if each.size > 1)]
        moved = sum(each.size * each.dtype.itemsize for each in large)
        assert case.moved == moved, case.name


@pytest.mark.slow
def test_table_and_figures_hold_every_operation(run: Callable, tmp_path: Path, capsys: pytest.CaptureFixture):
    file = tmp_path / "kernels.json"
    assert run("--elements", "2**12", "--dtypes", "float32", "--repeats", "2", "--json", str(file)) == 0
    record = json.loads(file.read_text())
    found = {(row["operation"], row["implementation"]) for row in record["rows"]}
    encodes = {"encode, radix 3", "encode, radix 9"}
    decodes = {"decode one worker", "decode 4 workers gathered", "decode 4 workers summed"}
    rotates = {"rotate, in place", "rotate back, in place"}
    shards = {"sum 4 workers' shards"}
    decodes |= {f"{name}, {what}" for name in decodes for what in ("in place", "less a dither")}
    ours = {(name, "reference") for name in {"moments", *rotates, *shards, *encodes, *decodes}}
    if not why_not_native():
        ours |= {(name, "native") for name, _ in ours}
    assert found == {("copy", "jnp"), ("moments", "jnp"), *ours, *((name, "jax.random") for name in encodes)}
    for row in record["rows"]:
        assert row["elements"] == 2**12
        assert len(row["seconds"]) == len(row["seconds_of_copy"]) == 2
        assert min(row["milliseconds"], row["gigabytes_per_second"], row["fraction_of_copy"]) > 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found)
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.slow
def test_blocks_have_a_scale_each_and_no_rows_of_plain_jnp(run: Callable, tmp_path: Path):
    for case in cases.create_cases(1000, ["float32"], 3, 16):
        if case.op in ("ternary_encode", "ternary_decode"):
            assert (63,) in [array.shape for array in case.arguments], case.name
    file = tmp_path / "kernels.json"
    sizes = ("--elements", "1000", "--block_size", "16", "--dtypes", "float32", "--repeats", "1")
    assert run(*sizes, "--json", str(file)) == 0
    assert {row["implementation"] for row in json.loads(file.read_text())["rows"][1:]} <= {"reference", "native"}


@pytest.mark.slow
def test_a_program_that_fails_takes_one_row_and_the_status(
    run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def fail(*_: jax.Array) -> None:
        raise RuntimeError("out of\nmemory | or worse")

    monkeypatch.setattr(cases, "plain_moments", fail)
    assert run("--elements", "100", "--dtypes", "float32", "--repeats", "1") == 1
    printed = capsys.readouterr().out
    assert "| moments | float32 | jnp | RuntimeError: out of memory / or worse | | | |" in printed
    assert "| sum 4 workers' shards |" in printed


def test_a_gpu_takes_batches_of_calls_over_rotating_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "on_gpu", lambda: True)
    monkeypatch.setattr(timing, "ROTATED_BYTES", 100)
    program = timing.prepare(jnp.copy, (jnp.arange(4.0),), 32)
    buffers = {each[0].unsafe_buffer_pointer() for each in program.arguments}
    assert len(buffers) == len(program.arguments) == 4
    assert program.calls > 1
    figures = timing.summarize(program, program, 3)
    assert figures["calls"] == program.calls
    assert figures["milliseconds"] * program.calls < 1e3


@pytest.mark.parametrize(
    ("mosaic", "reference", "difference"),
    [
        ([1.0, np.nan], [1.0, -np.nan], ""),
        ([1.0, 2.0], [1.0, 2.5], "1 of 2 differ, number 1: 2.0, not 2.5"),
        ([0.0], [-0.0], "1 of 1 differ, number 0: 0.0, not -0.0"),
        ([np.nan], [1.0], "1 of 1 differ, number 0: nan, not 1.0"),
        ([1.0, 1.0], [1.0], r"float32\[2\], not float32\[1\]"),
    ],
)
def test_comparison_is_bit_for_bit_and_any_nan_is_nan(mosaic: list[float], reference: list[float], difference: str):
    results = {"mosaic": mosaic, "reference": reference}

    def run(_: jax.Array, implementation: str) -> jax.Array:
        return jnp.array(results[implementation], jnp.float32)

    assert check.find_difference(run, (jnp.ones(1),)) == difference.replace("\\", "")


@pytest.mark.slow
def test_check_names_every_op_and_what_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    bad = check.shard_sum
    monkeypatch.setattr(check, "MIXES", 2)
    monkeypatch.setattr(check, "find_difference", lambda run, _: "all differ" if run.func is bad else "")
    with ThreadPoolExecutor(1) as pool:
        assert not check.compare_all(pool)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("check")] == [
        *(f"check {op}: {'FAILED' if op == 'shard_sum' else 'ok'}" for op in check.NAMES)
    ]
    assert sum(line.endswith(": all differ") for line in lines) == 2


@pytest.mark.slow
def test_reference_of_what_is_not_finite_agrees_with_itself():
    for _, run, arrays in [next(check.comparisons("not finite", number)) for number in (1, 3, 5)]:
        # NaN, infinities; tensors, blocks
        found, forced = (jax.jit(partial(run, implementation=each))(*arrays) for each in ("auto", "reference"))
        np.testing.assert_array_equal(found, forced)
        np.testing.assert_array_equal(np.isnan(forced), arrays[2])


def test_tune_prints_the_best_and_leaves_the_defaults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def measure(_: Callable, case: Any, *__: Any) -> dict:
        now = tuning.DEFAULTS[case.op]
        if now == 4:
            return {"error": "too many registers"}
        return {"fraction_of_copy": 1.0 if now == 2 else 0.5}

    before = dict(tuning.DEFAULTS)
    monkeypatch.setattr(command, "measure", measure)
    rows = command.tune(OPS, 1000, "float32", 4, 1)
    assert len(rows) == len(OPS) * len(command.WARPGROUPS)
    assert before == tuning.DEFAULTS
    printed = capsys.readouterr().out
    entries = "".join(f'    "{op}": 2,\n' for op in OPS)
    assert printed.endswith(f"\nDEFAULTS = {{\n{entries}}}\n")
    assert "    4: too many registers" in printed


@pytest.mark.slow
def test_without_mosaic_tune_is_refused_and_check_says_so(run: Callable, capsys: pytest.CaptureFixture):
    reason = "the device is 'cpu', no NVIDIA GPU"
    assert run("--tune") == f"--tune: {reason}"
    assert run("--check", "--elements", "10", "--dtypes", "float32", "--repeats", "1") == 0
    assert f"check: nothing to compare: {reason}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--elements", "0"],
            "argument --elements: '0': must be an integer, or a power such as 2**20, from 1 to 2**30",
        ),
        (["--elements", "2**31"], "argument --elements: '2**31': must be"),
        (["--elements", "9" * 20 + "**9"], "must be an integer"),
        (["--elements", "many"], "argument --elements: 'many': must be"),
        (["--workers", "0"], "--workers=0: must be from 1 to 32767"),
        (["--repeats", "0"], "--repeats: '0': must be an integer, 1 or more"),
        (["--dtypes", "float64"], "argument --dtypes: invalid choice: 'float64'"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(
    run: Callable, capsys: pytest.CaptureFixture, arguments: list[str], message: str
):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_file_that_cannot_be_written_is_refused_before_measuring(
    run: Callable, tmp_path: Path, capsys: pytest.CaptureFixture
):
    assert run("--json", str(tmp_path)) == 2
    assert f"--json: {tmp_path}: cannot be written" in capsys.readouterr().err


def test_sizes_beyond_memory_are_refused_or_left_out(
    run: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    class Device:
        platform, device_kind = "gpu", "NVIDIA Toy"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 2**30}

    monkeypatch.setattr(jax, "devices", lambda: [Device()])
    assert run("--elements", "2**20", "2**28") == 2
    assert "--elements=268435456: needs 12.9 GB, and JAX has 1.1 GB here" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["kernels"])
    assert command.parse().elements == [2**20, 2**24]


@pytest.mark.newest
@pytest.mark.skipif(jax.__version_info__ < dispatch.MIN_JAX, reason="the kernels need a newer JAX")
def test_the_default_recipe_lowers_each_kernel_once():
    assert lowering.lower(lowering.shapes_of("digits"), 4, "mosaic")[0] == 5  # two rotations, moments, encode, decode


@pytest.mark.newest
@pytest.mark.skipif(jax.__version_info__ < dispatch.MIN_JAX, reason="the kernels need a newer JAX")
def test_buckets_of_about_a_size_share_kernels():
    shapes = {str(size): jax.ShapeDtypeStruct((size,), np.float32) for size in range(1_500_000, 1_590_000, 10_000)}
    assert len(plan_buckets(layout_of(shapes), BUCKET_SIZE)) == 3
    assert lowering.lower(shapes, 1, "mosaic", devices=8)[0] == 6  # those above, and the sum of shards
