"""benchmarks.accuracy.gradient_noise foretells the noise that the quantizer really makes."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.accuracy import gradient_noise
from jaxtern.compression.radix.quantizer import Quantizer
from jaxtern.kernels import Segments, derive_key, ternary_decode, ternary_encode
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.recipe.run import RunSection
from jaxtern.training.run import loop
from jaxtern.training.run.run import prepare_run

SIZE, WORKERS, DRAWS = 300, 3, 4000


@pytest.mark.parametrize(
    "quantizer",
    [Quantizer(), Quantizer(clip_sigmas=1.25), Quantizer(clip_sigmas=2.5, block_size=64), Quantizer(levels=3)],
    ids=str,
)
def test_variance_that_is_foretold_is_that_of_what_is_decoded(quantizer: Quantizer):
    """Off by more than 6 standard errors of the mean over the draws in fewer than one of 10^8 runs."""
    gradients = jax.random.laplace(jax.random.key(0), (WORKERS, SIZE)) * jnp.array([[1.0], [2.0], [0.5]])
    segments, radix = Segments((SIZE,), quantizer.block_size), 2 * quantizer.levels + 1
    scales = jnp.max(jnp.stack([quantizer.local_scales(gradient, (SIZE,)) for gradient in gradients]), 0)

    @jax.jit
    @jax.vmap
    def decoded(step: jax.Array) -> jax.Array:
        options = {"segments": segments, "radix": radix, "levels": quantizer.levels, "implementation": "reference"}
        keys = [derive_key(0, step, worker) for worker in range(WORKERS)]
        words = [ternary_encode(own, scales, key, **options) for own, key in zip(gradients, keys, strict=True)]
        return ternary_decode(jnp.stack(words), scales, num_workers=WORKERS, **options)

    sums = gradient_noise._add(gradients, None, [quantizer])
    (clipped,), (added,) = sums.clipped, sums.added
    errors = np.sum((np.asarray(decoded(jnp.arange(DRAWS))) - np.asarray(clipped)) ** 2, axis=1)
    assert abs(errors.mean() - float(added)) < 6 * errors.std() / DRAWS**0.5


def test_nothing_is_lost_where_nothing_is_rounded():
    """Every element of each gradient is a whole level, but the gradients differ: no noise of the quantizer's own."""
    gradients = [jnp.array([1.0, -1.0, 0.0, 1.0]), jnp.array([1.0, 1.0, 0.0, -1.0]), jnp.array([1.0, -1.0, 1.0, 1.0])]
    sums = None
    for gradient in gradients:
        sums = gradient_noise._add(gradient[None], sums, [Quantizer()])
    assert sums is not None
    np.testing.assert_allclose(list(gradient_noise._judge(sums, len(gradients))), [(1, 1)], rtol=1e-6)


def test_tensors_without_gradients_are_left_out(monkeypatch: pytest.MonkeyPatch):
    """As nothing is a share of them."""
    gradients = {"dead": jnp.zeros(4), "alive": jnp.array([1.0, -1.0, 0.5, 0.25])}
    monkeypatch.setattr(gradient_noise, "draw_gradients", lambda *_: iter([gradients] * 4))
    sums = gradient_noise.add_up(object(), 0, [Quantizer()], 2, 2)
    assert list(sums) == ["alive"]
    assert "| alive " in gradient_noise.make_table(sums, [Quantizer()], 2)


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
    monkeypatch.setattr(sys, "argv", ["gradient_noise", str(workdir), "--batches=3", "--block_sizes", "0"])
    gradient_noise.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert rows[0][3:] == [f"tensor, c = {c}: cosine, kept" for c in ("0", "1.25", "2.5")]
    assert {"fc1/kernel", "all"} <= {row[0] for row in rows[2:]}
    for _, _, _, *cells in rows[2:]:
        cosine, kept = (float(cell) for cell in cells[0].split(", "))
        assert cosine == 1  # nothing is clipped
        assert 0 < kept < 1


@pytest.mark.parametrize(
    ("flag", "status"), [("--batches=1", 2), ("--workers=0", 2), ("--workers=3", "error: --workers=3: must divide ")]
)
def test_bad_numbers_are_refused(workdir: Path, monkeypatch: pytest.MonkeyPatch, flag: str, status: int | str):
    monkeypatch.setattr(sys, "argv", ["gradient_noise", str(workdir), flag])
    with pytest.raises(SystemExit) as ended:
        gradient_noise.main()
    assert str(ended.value.code).startswith(str(status))
