"""A small decoder-only transformer, which predicts each character of a text from those before it."""

import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, split_key

_normal = functools.partial(nnx.initializers.normal, dtype=jnp.float32)
_DEVIATION = 0.02  # of initial weights


class Transformer(Model):
    """Embeddings of tokens and of positions, added; blocks; layer norm; linear C, which shares no weights.

    A block is x + attention(norm(x)), causal, then x + mlp(norm(x)), where the MLP is linear 4 W, GELU, linear W.
    Attention has no biases (that of its keys would change nothing). Dropout follows the embeddings and every attention
    and MLP. There are (C + T) W + D (12 W^2 + 9 W) + 2 W + (W + 1) C parameters: 824,385 for T = 128 and C = 65
    (Vaswani et al. 2017; norms and initial deviations of Radford et al. 2019, GPT-2).
    """

    last_layer: ClassVar[str] = "head"
    takes_text: ClassVar[bool] = True

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, dropout_rate: float = 0.1, depth: int = 4,
        width: int = 128, heads: int = 4, rngs: nnx.Rngs,
    ):  # fmt: skip
        """Draws the weights.

        Args:
          input_shape: (T,), the most tokens of an input.
          num_classes: C, different tokens.
          dropout_rate: share of activations that are dropped in training.
          depth: D, blocks.
          width: W, of the embeddings.
          heads: of attention; must divide the width.
          rngs: of the weights.
        """
        (num_positions,) = input_shape
        embedding = functools.partial(nnx.Embed, embedding_init=_normal(_DEVIATION), rngs=rngs)
        self.tokens, self.positions = embedding(num_classes, width), embedding(num_positions, width)
        self.blocks = nnx.List(_Block(width, heads, depth, dropout_rate, rngs) for _ in range(depth))
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, num_classes, kernel_init=_normal(_DEVIATION), rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, tokens: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Logits of the token after each.

        Args:
          tokens: int32[B, t], t at most T, each 0 to C - 1.
          key: of dropout, in training; None: in evaluation.

        Returns:
          float32[B, t, C]: at place i logits of the token at place i + 1, which depend on places 0 to i alone.

        Raises:
          ValueError: if the input is longer than T.
        """
        length, longest = tokens.shape[1], self.positions.num_embeddings
        if length > longest:
            raise ValueError(f"tokens of shape {tokens.shape}: must be {longest} a row at most, the model's positions")
        own, *keys = split_key(key, len(self.blocks) + 1)
        x = self.tokens(tokens) + self.positions(jnp.arange(length))[None]
        x = self.dropout(x, deterministic=key is None, rngs=own)
        for block, own in zip(self.blocks, keys, strict=True):
            x = block(x, own)
        return self.head(self.norm(x))


class _Block(nnx.Module):
    """Attention and MLP, each of a normalised input and added to it."""

    def __init__(self, width: int, heads: int, depth: int, dropout_rate: float, rngs: nnx.Rngs):
        linear = functools.partial(nnx.Linear, rngs=rngs)
        inner, residual = _normal(_DEVIATION), _normal(_DEVIATION / math.sqrt(2 * depth))  # 2 D branches are added up
        self.attention_norm, self.mlp_norm = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            heads, width, kernel_init=inner, out_kernel_init=residual, use_bias=False, decode=False, rngs=rngs
        )
        self.widen = linear(width, 4 * width, kernel_init=inner)
        self.narrow = linear(4 * width, width, kernel_init=residual)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        keys = split_key(key, 2)
        drop = functools.partial(self.dropout, deterministic=key is None)
        x += drop(self.attention(self.attention_norm(x), is_causal=True), rngs=keys[0])
        return x + drop(self.narrow(nnx.gelu(self.widen(self.mlp_norm(x)))), rngs=keys[1])
