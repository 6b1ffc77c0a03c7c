"""A small decoder-only transformer that predicts each character of a text from those before it."""

import functools
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxtern.models.model import Model, split_key

_normal = functools.partial(nnx.initializers.normal, dtype=jnp.float32)
_DEVIATION = 0.02  # of the initial weights


class Transformer(Model):
    """The sum of token and position embeddings; blocks; layer norm; linear C, not tied to the embeddings.

    A block computes x + attention(norm(x)), causal, then x + mlp(norm(x)); the MLP is linear 4 W, GELU, linear W.
    Attention has no biases. Dropout follows the embeddings, every attention and every MLP. There are (C + T) W +
    D (12 W^2 + 9 W) + 2 W + (W + 1) C parameters: 824,385 for T = 128 and C = 65 (Vaswani et al. 2017; norms and
    initial deviations of Radford et al. 2019, GPT-2).
    """

    last_layer: ClassVar[str] = "head"
    takes_text: ClassVar[bool] = True

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        dropout_rate: float = 0.1,
        depth: int = 4,
        width: int = 128,
        heads: int = 4,
        rngs: nnx.Rngs,
    ):
        """Draws the weights.

        Args:
          input_shape: (T,), the maximum length of an input in tokens.
          num_classes: C, the number of different tokens.
          dropout_rate: share of activations dropped in training.
          depth: D, the number of blocks.
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
        """Predicts the token after each token.

        Args:
          tokens: int32[B, t], t at most T, each 0 to C - 1.
          key: of the dropout in training; None in evaluation.

        Returns:
          float32[B, t, C]: at place i the logits of the token at place i + 1, which depend on places 0 to i alone.

        Raises:
          ValueError: if the input is longer than T.
        """
        length, longest = tokens.shape[1], self.positions.num_embeddings
        if length > longest:
            raise ValueError(f"tokens.shape={tokens.shape}: must have at most {longest} tokens a row, as the model has")
        own, *keys = split_key(key, len(self.blocks) + 1)
        x = self.tokens(tokens) + self.positions(jnp.arange(length))[None]
        x = self.dropout(x, deterministic=key is None, rngs=own)
        for block, own in zip(self.blocks, keys, strict=True):
            x = block(x, own)
        return self.head(self.norm(x))


class _Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, heads: int, depth: int, dropout_rate: float, rngs: nnx.Rngs):
        inner, residual = _normal(_DEVIATION), _normal(_DEVIATION / math.sqrt(2 * depth))  # 2 D branches add up
        self.attention_norm, self.mlp_norm = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            heads, width, kernel_init=inner, out_kernel_init=residual, use_bias=False, decode=False, rngs=rngs
        )
        self.widen = nnx.Linear(width, 4 * width, kernel_init=inner, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, kernel_init=residual, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        keys = split_key(key, 2)
        drop = functools.partial(self.dropout, deterministic=key is None)
        x += drop(self.attention(self.attention_norm(x), is_causal=True), rngs=keys[0])
        return x + drop(self.narrow(nnx.gelu(self.widen(self.mlp_norm(x)))), rngs=keys[1])
