"""The rotation: orthogonal, even, the same bits in C, and Gaussian whatever the tensor is."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings

from jaxtern.kernels import derive_key, rotate
from jaxtern.kernels.rotation import BLOCK, block_of

pytestmark = pytest.mark.optimized

KEY = derive_key(2, 7, 1)
few_examples = settings(max_examples=3)


def draw(*sizes: int) -> list[jax.Array]:
    random = np.random.default_rng(sum(sizes))
    return [jnp.asarray(random.standard_t(2, size), jnp.float32) for size in sizes]


@few_examples
@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=4))
@example([0, 1, 3, 4, 63, 64, 0, 1025, BLOCK - 1, BLOCK, BLOCK + 1, 6 * BLOCK - 1, 0])
def test_c_has_the_bits_of_the_reference(sizes: list[int]):
    tensors = draw(*sizes)

    def run(tensors: list[jax.Array], implementation: str) -> list[list[jax.Array]]:
        return [rotate(tensors, KEY, is_inverse=each, implementation=implementation) for each in (False, True)]

    found, expected = (jax.jit(run, static_argnums=1)(tensors, each) for each in ("native", "reference"))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("size", [1, 5, 300, BLOCK, 2 * BLOCK + 77])
def test_a_rotation_keeps_inner_products_and_its_inverse_undoes_it(size: int):
    tensors = [*draw(size), jnp.ones((size,))]
    turned = rotate(tensors, KEY)
    (x, y), (u, v) = (np.asarray(pair, np.float64) for pair in (tensors, turned))
    np.testing.assert_allclose([u @ u, u @ v, v @ v], [x @ x, x @ y, y @ y], rtol=1e-5, atol=1e-3 * np.abs(x).sum())
    for found, own in zip(rotate(turned, KEY, is_inverse=True), tensors, strict=True):
        np.testing.assert_allclose(found, own, rtol=0, atol=1e-6 * np.abs(own).max())


@pytest.mark.parametrize("size", [4, 256, BLOCK, 2 * BLOCK])
def test_an_element_reaches_all_of_its_block_with_one_weight(size: int):
    block = block_of(size)
    (turned,) = rotate([jnp.zeros((size,)).at[size // 3].set(1.0)], KEY)
    reached = np.abs(np.asarray(turned))
    start = size // 3 // block * block
    np.testing.assert_array_equal(reached[start : start + block], np.float32(block**-0.5))
    assert np.count_nonzero(reached) == block


def test_keys_have_signs_of_their_own():
    """Two rotations of a tensor by independent signs are uncorrelated; a bound of six deviations fails in 2e-9."""
    x = draw(8 * BLOCK)[0]
    (first,), (second,) = rotate([x], KEY), rotate([x], derive_key(2, 8, 1))
    cosine = float(jnp.vdot(first, second) / jnp.vdot(x, x))
    assert abs(cosine) < 6 * float(jnp.sqrt(jnp.sum(x**4)) / jnp.vdot(x, x)) + 6 * (8 * BLOCK) ** -0.5


def test_what_is_turned_has_no_tails():
    """The kurtosis of a tensor of which one element in a hundred is not zero, and heavy-tailed, is near a normal's."""
    random = np.random.default_rng(0)
    x = random.standard_t(3, 64 * BLOCK) * (random.random(64 * BLOCK) < 0.01)
    (turned,) = rotate([jnp.asarray(x, jnp.float32)], KEY)
    blocks = np.asarray(turned, np.float64).reshape(-1, BLOCK)
    kurtosis = np.mean(blocks**4, axis=1) / np.mean(blocks**2, axis=1) ** 2
    assert np.mean(x**4) / np.mean(x**2) ** 2 > 300
    assert kurtosis.max() < 4


def test_what_is_not_finite_stays_in_its_block():
    (turned,) = rotate([jnp.ones((3 * BLOCK,)).at[BLOCK].set(jnp.nan)], KEY)
    np.testing.assert_array_equal(np.isfinite(turned), np.repeat([True, False, True], BLOCK))


@pytest.mark.parametrize("bad", [{"key": jnp.zeros((3,), jnp.uint32)}, {"tensors": [jnp.zeros(3, jnp.bfloat16)]}])
def test_bad_arguments_are_refused(bad: dict):
    with pytest.raises(ValueError, match="must be"):
        rotate(**{"tensors": [jnp.zeros(3)], "key": KEY} | bad)
