"""benchmarks.gradient_noise foretells the noise that the codec really makes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxtern import Ternary
from jaxtern.kernels import Segments, derive_key, ternary_decode, ternary_encode

ROOT = Path(__file__).resolve().parents[1]
with pytest.MonkeyPatch.context() as patch:  # the benchmarks are not installed
    patch.syspath_prepend(ROOT)
    from benchmarks import gradient_noise

SIZE, DRAWS = 300, 4000


@pytest.mark.parametrize(
    "codec", [Ternary(), Ternary(clip_sigmas=1.25), Ternary(clip_sigmas=2.5, block_size=64), Ternary(levels=3)], ids=str
)
def test_variance_that_is_foretold_is_that_of_what_is_decoded(codec: Ternary):
    """Off by more than 6 standard errors of the mean over the draws in fewer than one of 10^8 runs."""
    gradient = jax.random.laplace(jax.random.key(0), (SIZE,))
    segments, radix = Segments((SIZE,), codec.block_size), 2 * codec.levels + 1
    scales = codec.local_scales(gradient, (SIZE,))

    @jax.jit
    @jax.vmap
    def decoded(step: jax.Array) -> jax.Array:
        options = {"segments": segments, "radix": radix, "levels": codec.levels, "implementation": "reference"}
        words = ternary_encode(gradient, scales, derive_key(0, step, 0), **options)
        return ternary_decode(words[None], scales, num_workers=1, **options)

    sums = gradient_noise._add(gradient, None, [codec])
    (clipped,), (added,) = sums.clipped, sums.added
    errors = np.sum((np.asarray(decoded(jnp.arange(DRAWS))) - np.asarray(clipped)) ** 2, axis=1)
    assert abs(errors.mean() - float(added)) < 6 * errors.std() / DRAWS**0.5


def test_nothing_is_lost_where_nothing_is_rounded():
    """Every element of each gradient is a whole level, but the gradients differ: no noise of the codec's own."""
    gradients = [jnp.array([1.0, -1.0, 0.0, 1.0]), jnp.array([1.0, 1.0, 0.0, -1.0]), jnp.array([1.0, -1.0, 1.0, 1.0])]
    sums = None
    for gradient in gradients:
        sums = gradient_noise._add(gradient, sums, [Ternary()])
    assert sums is not None
    np.testing.assert_allclose(list(gradient_noise._judge(sums, len(gradients))), [(1, 1)], rtol=1e-6)
