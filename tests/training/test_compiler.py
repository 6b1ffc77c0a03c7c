"""The options by which the training step is compiled: taken where they help, and never in the way."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training.step import compiler
from jaxtern.training.step.compiler import keep_programs, step_options


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    step_options.cache_clear()
    yield
    step_options.cache_clear()


def _gradient_of_a_convolution(options) -> str:
    """Of its kernel, as XLA compiles it."""
    images, kernel = jnp.zeros((8, 12, 12, 20)), jnp.zeros((5, 5, 20, 50))

    def total(kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jnp.sum(jax.lax.conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=numbers) ** 2)

    program = jax.jit(jax.grad(total), compiler_options=options).lower(kernel).compile().as_text()
    assert program is not None
    return program


def test_convolutions_are_left_to_eigen_on_cpus():
    options = step_options("cpu")
    assert options is not None
    assert "ynn" in _gradient_of_a_convolution(None)
    assert "ynn" not in _gradient_of_a_convolution(options)


@pytest.mark.parametrize("compute", [lambda x: x @ x.T, lambda x: x.sum(0), jnp.sum, lambda x: jnp.exp(x).mean(1)])
def test_products_and_sums_have_the_bits_of_the_defaults(compute: Callable[[jax.Array], jax.Array]):
    numbers = np.random.default_rng(0).normal(size=(50, 1000)).astype(np.float32)
    ours, by_default = (jax.jit(compute, compiler_options=options)(numbers) for options in (step_options("cpu"), None))
    np.testing.assert_array_equal(ours, by_default)


def test_gpus_have_the_defaults():
    assert step_options("gpu") is None


def test_what_xla_flags_say_stays(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_DOT")
    assert step_options("cpu") is None


def test_an_xla_that_does_not_know_the_option_compiles_by_its_defaults(monkeypatch, caplog):
    monkeypatch.setattr(compiler, "_FUSIONS", "xla_cpu_no_such_option")
    with caplog.at_level("INFO"):
        assert step_options("cpu") is None
    assert "No such compile option: 'xla_cpu_no_such_option'" in caplog.text


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A user's cache folder, of which JAX has not been told."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "jaxtern"
    jax.config.update("jax_compilation_cache_dir", before)


def test_programs_are_kept_in_a_folder_of_the_processor_s_own(untold: Path):
    keep_programs()
    (folder,) = untold.iterdir()
    assert folder.name.startswith("programs-")
    assert jax.config.jax_compilation_cache_dir == str(folder)


def test_programs_are_kept_where_the_user_wants_them_or_not_at_all(untold: Path):
    jax.config.update("jax_enable_compilation_cache", False)
    keep_programs()
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    keep_programs()
    assert jax.config.jax_compilation_cache_dir == "elsewhere"
    assert not untold.exists()


def test_a_cache_folder_to_which_others_may_write_is_not_used(untold: Path, caplog: pytest.LogCaptureFixture):
    untold.mkdir()
    untold.chmod(0o777)
    with caplog.at_level("INFO"):
        keep_programs()
    assert jax.config.jax_compilation_cache_dir is None
    assert f"compiled programs are not kept: others may write to {untold}" in caplog.text
