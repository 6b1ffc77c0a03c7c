"""How many bits an exchange sends, and which exchange sends fewest."""

from jaxtern.compression.codecs import Codec

EXCHANGES = ("gather", "sum", "float")


def sent_bits(exchange: str, num_words: int, num_workers: int) -> float:
    """Bits that one worker sends to exchange `num_words` words of 32 bits.

    Of an all-gather each worker's words travel N - 1 links; of a ring all-reduce (`sum`, `float`) 2 (N - 1) / N.
    """
    if exchange == "gather":
        return 32.0 * num_words * (num_workers - 1)
    return 32.0 * num_words * 2 * (num_workers - 1) / num_workers


def step_bits(
    codec: Codec, exchange: str, compressed: tuple[int, ...], floats: tuple[int, ...], num_workers: int
) -> float:
    """Bits that one worker sends in one step: scales, words, and the tensors that stay float.

    Args:
      codec: of the compressed tensors.
      exchange: "gather", "sum", or "float" for no compression at all.
      compressed: sizes of the compressed tensors.
      floats: sizes of the tensors that stay float.
      num_workers: N.
    """
    if exchange == "float":
        return sent_bits("float", sum(compressed) + sum(floats), num_workers)
    num_added = num_workers if exchange == "sum" else 1
    return (
        sent_bits("sum", codec.num_scales(compressed), num_workers)
        + sent_bits(exchange, codec.num_words(compressed, num_added), num_workers)
        + sent_bits("gather", sum(floats), num_workers)
    )


def cheapest_exchange(codec: Codec, num_workers: int) -> str:
    """The exchange that sends fewest bits for a large tensor; of two alike `gather`, which takes fewer steps."""
    if not codec.can_add(num_workers):
        return "gather"
    large = (2**24,)
    gathered = sent_bits("gather", codec.num_words(large, 1), num_workers)
    added = sent_bits("sum", codec.num_words(large, num_workers), num_workers)
    return "gather" if gathered <= added * (1 + 1e-6) else "sum"
