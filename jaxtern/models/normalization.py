"""Normalisations that flax lacks: batch norm with unbiased moving moments, and LRN."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Whole(nnx.BatchStat):
    """Set as a whole. nnx compares shardings first; a traced array has none, and JAX's error for it takes seconds."""

    def __setitem__(self, _: Any, value: jax.Array) -> None:
        self.set_value(value)


class BatchNorm(nnx.BatchNorm):
    """Batch norm whose moving moments are weighted means of the batches, unbiased from the first step on.

        s' = d s + 1 - d,    mean' = (d s mean + (1 - d) mean of the batch) / s',    var likewise

    d is the momentum. After t steps, the moments of `nnx.BatchNorm` still contain their initial zeros and ones with
    weight d^t. Here s = 1 - d^t corrects this, as in Adam (Kingma and Ba 2015, section 3). s is kept, so that imported
    moments count in full.

    Attributes:
      share: s, float32 scalar: 0 while `mean` and `var` are initial values, 1 once they come from batches alone.
    """

    def __init__(self, num_features: int, **options: Any):
        """As `nnx.BatchNorm`."""
        super().__init__(num_features, **options)
        self.mean, self.var = Whole(self.mean[...]), Whole(self.var[...])
        self.share = Whole(jnp.zeros((), jnp.float32))

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """As `nnx.BatchNorm`."""
        if self.use_running_average if use_running_average is None else use_running_average:
            return super().__call__(x, use_running_average=True, mask=mask)
        for moments in (self.mean, self.var):
            moments[...] *= self.share[...]
        x = super().__call__(x, use_running_average=False, mask=mask)
        self.share[...] = self.momentum * self.share[...] + (1 - self.momentum)
        for moments in (self.mean, self.var):
            moments[...] /= self.share[...]
        return x


def local_response_normalization(x: jax.Array, radius: int, bias: float, alpha: float, beta: float) -> jax.Array:
    """Divides activations by a power of the squares of the neighbouring channels (Krizhevsky et al. 2012, 3.3).

        y[c] = x[c] / (bias + alpha * sum of x[k]^2 over |k - c| <= radius)^beta

    Channels beyond the first and last count as zeros. `alpha` multiplies the sum of the squares, not their mean. It
    computes in float32, as the squares of float16 overflow from 256 on.

    Args:
      x: float[..., C] activations.
      radius: channels on either side, 0 or more.
      bias: above 0.
      alpha, beta: 0 or more.

    Returns:
      An array like `x`.
    """
    wide = x.astype(jnp.float32)
    # On a CPU this is seven times as fast as a sum of shifted slices, whose gradient XLA does not fuse.
    window, strides = (*(1 for _ in x.shape[:-1]), 2 * radius + 1), (1,) * x.ndim
    padding = (*((0, 0) for _ in x.shape[:-1]), (radius, radius))
    total = jax.lax.reduce_window(wide * wide, np.zeros((), np.float32), jax.lax.add, window, strides, padding)
    return (wide * (bias + alpha * total) ** -beta).astype(x.dtype)
