"""The hot loop: gradients to words and back. Imports nothing of jaxtern, only JAX and NumPy."""

from .concatenate import concatenate
from .moments import Moments, moments
from .noise import derive_key, random_bits
from .order import follow
from .radix import digits_per_word, num_words, pack, unpack
from .segments import Segments
from .shard_mean import shard_mean
from .shard_sum import shard_sum
from .spans import decode_span, encode_span
from .ternary_decode import ternary_decode
from .ternary_encode import ternary_encode

__all__ = [
    "Moments",
    "Segments",
    "concatenate",
    "decode_span",
    "derive_key",
    "digits_per_word",
    "encode_span",
    "follow",
    "moments",
    "num_words",
    "pack",
    "random_bits",
    "shard_mean",
    "shard_sum",
    "ternary_decode",
    "ternary_encode",
    "unpack",
]
