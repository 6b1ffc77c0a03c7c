"""The options by which the training step is compiled: taken where they help, and never in the way."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern.training.step import compiler
from jaxtern.training.step.compiler import step_options


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
