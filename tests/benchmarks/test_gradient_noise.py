"""benchmarks.accuracy.gradient_noise foretells the noise that the quantizer really makes."""

import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accuracy import gradient_noise
from jaxtern.compression.radix.gaussian import best_code
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run import loop
from jaxtern.training.run.run import prepare_run

SIZE, WORKERS, BATCHES = 9000, 3, 12


@pytest.mark.slow
def test_gain_and_noise_are_those_of_normal_variables():
    """Of heavy-tailed gradients, whose workers differ threefold."""
    methods = ["terngrad", "ternary", "7 levels"]
    scale = jnp.array([1.0, 1.5, 0.5])[:, None]
    measure = jax.jit(functools.partial(gradient_noise.measure, methods=tuple(methods)))
    sums = None
    for batch in range(BATCHES):
        rows = jax.random.t(jax.random.key(batch), 3.0, (WORKERS, SIZE)) * scale
        found = measure(list(rows), jnp.int32(batch))
        sums = found if sums is None else jax.tree.map(jnp.add, sums, found)
    assert sums is not None
    (clipped, _), (ternary, noise), (fine, less) = gradient_noise._judge(sums)
    assert clipped < 0.9
    assert abs(ternary - 1) < 0.03
    assert abs(fine - 1) < 0.01
    largest = 3 * 1.5**2 / (1 + 1.5**2 + 0.5**2)  # of the energy whose scale all share, over the mean
    assert best_code(1, "dither").noise < noise < 1.3 * largest * best_code(1, "dither").noise
    assert best_code(3, "dither").noise < less < 1.3 * largest * best_code(3, "dither").noise
    assert float(sums.workers) / BATCHES == pytest.approx(1 / 3, rel=0.3)


def test_tensors_without_gradients_are_left_out(monkeypatch: pytest.MonkeyPatch):
    """As nothing is a share of them."""
    gradients = {"dead": jnp.zeros(4), "alive": jnp.array([1.0, -1.0, 0.5, 0.25])}
    monkeypatch.setattr(gradient_noise, "draw_gradients", lambda *_: iter([gradients] * 4))
    sums = gradient_noise.add_up(object(), None, ["ternary"], 2, 2)
    assert list(sums) == ["alive"]
    assert "| alive " in gradient_noise.make_table(sums, ["ternary"], 2)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("gradient_noise") / "run"
    fields = {"num_steps": 2, "checkpoint_every": 2, "evaluate_every": 2, "num_workers": 2, "batch_size": 8}
    run = prepare_run(Recipe(run=RunSection(**fields)), folder)
    loop.train(run)
    run.close()
    return folder


@pytest.mark.slow
def test_table_is_of_a_run_with_its_workers(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    arguments = ["gradient_noise", str(workdir), "--batches=3", "--methods", "unclipped", "ternary"]
    monkeypatch.setattr(sys, "argv", arguments)
    gradient_noise.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[0][4:] == ["unclipped: gain, noise", "ternary: gain, noise"]
    assert {"fc1/kernel", "all"} <= {row[0] for row in rows[2:]}
    for name, *_, unclipped, ternary in rows[2:]:
        noise = float(unclipped.split(", ")[1])
        assert noise > 0.2
        assert "bias" in name or float(ternary.split(", ")[1]) < 0.7 * noise


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "status"), [("--batches=0", 2), ("--workers=0", 2), ("--workers=3", "error: --workers=3: must divide ")]
)
def test_bad_numbers_are_refused(workdir: Path, monkeypatch: pytest.MonkeyPatch, flag: str, status: int | str):
    monkeypatch.setattr(sys, "argv", ["gradient_noise", str(workdir), flag])
    with pytest.raises(SystemExit) as ended:
        gradient_noise.main()
    assert str(ended.value.code).startswith(str(status))
