"""Encode in plain jnp."""

import jax
import jax.numpy as jnp
from jax import lax

from . import dither, noise, radix as radix_lib
from .radix import RUN
from .rounding import to_digits
from .segments import Segments


def ternary_encode_reference(
    gradient: jax.Array, steps: jax.Array, key: jax.Array, segments: Segments, radix: int, levels: int, offset: int
) -> jax.Array:
    """`ternary_encode`, its arguments checked; steps are what turns g into fixed-point levels.

    All tiles but one or two are encoded in one loop, to which each plane is a slice of the gradient with a start of its
    own, so that the compiler reads the gradient in place whatever its length.
    """
    one_step = steps[0] if segments.num_scales == 1 else None  # a factor for all fuses into the loop
    vector = gradient if one_step is not None else segments.spread(gradient.astype(jnp.float32), steps)
    depth = radix_lib.digits_per_word(radix)
    tile = depth * RUN

    def encode(vector: jax.Array, tiles: int, first_tile: int) -> jax.Array:
        def plane(k: int) -> jax.Array:
            run = vector[k * RUN : k * RUN + tiles * tile].reshape(tiles, tile)[:, :RUN].astype(jnp.float32)
            return run if one_step is None else run * one_step

        drawn = noise_planes(key, tiles, first_tile, depth, offset)
        planes = [to_digits(plane(k), dither.shifted(drawn[k], key[2], key[3]), levels) for k in range(depth)]
        return radix_lib.pack_planes(planes, radix).reshape(-1)

    tiles = segments.num_words(radix) // RUN
    in_place = max(vector.size - tile + RUN, 0) // tile  # so that the slice of the last plane ends in the gradient
    words = [encode(vector, in_place, 0)] if in_place else []
    if tiles > in_place:
        rest = vector[in_place * tile :]
        rest = jnp.pad(rest, (0, (tiles - in_place + 1) * tile - rest.size))
        words.append(encode(rest, tiles - in_place, in_place))
    return jnp.concatenate(words) if words else jnp.zeros((0,), jnp.uint32)


def noise_planes(key: jax.Array, tiles: int, first_tile: int, depth: int, offset: int) -> list[jax.Array]:
    """The random bits of every plane of consecutive tiles, uint32[tiles, RUN] each.

    A tile need not begin with a group of noise, so its k-th run takes its bits from one of two neighbouring groups.
    """
    first_run = (lax.broadcasted_iota(jnp.uint32, (tiles, 1), 0) + jnp.uint32(first_tile)) * jnp.uint32(depth)
    place = lax.broadcasted_iota(jnp.uint32, (1, RUN), 1) + jnp.uint32(offset // noise.LANES)
    first_group = first_run // noise.LANES * RUN + place
    if depth % noise.LANES == 0:
        halves = [noise.draw(key, first_group + jnp.uint32(i * RUN)) for i in range(depth // noise.LANES)]
        return [noise.take(halves[k // noise.LANES], k % noise.LANES) for k in range(depth)]
    skipped = first_run % noise.LANES
    groups = (depth + 2 * noise.LANES - 2) // noise.LANES
    halves = [noise.draw(key, first_group + jnp.uint32(i * RUN)) for i in range(groups)]

    def bits(k: int) -> jax.Array:
        i, lane = divmod(k, noise.LANES)
        lane = skipped + lane
        this, following = halves[i], halves[min(i + 1, groups - 1)]
        pair = [jnp.where(lane < noise.LANES, a, b) for a, b in zip(this, following, strict=True)]
        return noise.take((pair[0], pair[1]), lane % noise.LANES)

    return [bits(k) for k in range(depth)]
