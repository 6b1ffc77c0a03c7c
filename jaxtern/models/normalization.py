"""Normalisations that flax does not have."""

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
    """Batch norm whose moving moments are means over batches alone, after one step as after thousands.

        s' = d s + 1 - d,    mean' = (d s mean + (1 - d) mean of the batch) / s',    var likewise

    d is the momentum. Those of `nnx.BatchNorm` hold d^t of the zeros and ones that they start with, more than of 2,000
    batches where d = .9997. Here s is 1 - d^t in step t, by which Adam divides its moments, too (Kingma and Ba 2015,
    section 3); as s is kept, moments that are taken over from elsewhere count in full.

    Attributes:
      share: s, float32 scalar: 0 where `mean` and `var` are fresh, 1 where they are all of batches.
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
    """Activations over a power of the squares of their neighbours among the channels.

        y[c] = x[c] / (bias + alpha * sum of x[k]^2 over |k - c| <= radius)^beta

    Channels beyond the first and the last count as zeros. `alpha` is of a single square, not of their mean. Computed in
    float32: squares of float16 overflow from 256 on. (Krizhevsky et al. 2012, 3.3.)

    Args:
      x: float[..., C] activations.
      radius: channels on either side, 0 or more.
      bias: above 0, so that zeros stay zeros.
      alpha, beta: 0 or more.

    Returns:
      An array like `x`.
    """
    x = jnp.asarray(x)
    wide = x.astype(jnp.float32)
    # A window is seven times as fast on a CPU as a sum of shifted slices, whose gradient XLA does not fuse.
    window, strides = (*(1 for _ in x.shape[:-1]), 2 * radius + 1), (1,) * x.ndim
    padding = (*((0, 0) for _ in x.shape[:-1]), (radius, radius))
    total = jax.lax.reduce_window(wide * wide, np.zeros((), np.float32), jax.lax.add, window, strides, padding)
    return (wide * (bias + alpha * total) ** -beta).astype(x.dtype)
