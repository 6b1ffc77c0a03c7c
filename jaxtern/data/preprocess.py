"""What happens to images in the compiled step."""

import jax
import jax.numpy as jnp


def normalize(images: jax.Array) -> jax.Array:
    """uint8 to float32 in [-1, 1]."""
    return images.astype(jnp.float32) / 127.5 - 1.0
