"""The hot loop: encodes gradients to words and back. It imports only JAX and NumPy, nothing of jaxtern."""

from .barriers import concatenate as concatenate, follow as follow
from .moments import Moments as Moments, moments as moments
from .noise import derive_key as derive_key, random_bits as random_bits
from .radix import digits_per_word as digits_per_word, num_words as num_words
from .rotation import rotate as rotate
from .segments import Segments as Segments
from .shards import shard_sum as shard_sum
from .ternary_decode import decode_span as decode_span, ternary_decode as ternary_decode
from .ternary_encode import encode_span as encode_span, ternary_encode as ternary_encode
