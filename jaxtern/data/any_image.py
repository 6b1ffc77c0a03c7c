"""Decodes image files of any format that Pillow reads, for preparation and prediction."""

import contextlib
import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import ExifTags, Image, ImageOps

LOSSLESS = (".png", ".gif", ".bmp", ".tif", ".tiff")
SUFFIXES = (".jpg", ".jpeg", ".webp", *LOSSLESS)  # of image files; letter case does not matter
JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"  # first bytes of a file
Image.MAX_IMAGE_PIXELS = 2**27  # Pillow warns beyond, and refuses twice as many
_GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
# Exceptions of Pillow's decoders for damaged files.
_DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, OverflowError, struct.error, zlib.error,
    NotImplementedError, Image.DecompressionBombError,
)  # fmt: skip


class DamagedImage(ValueError):
    """An image that cannot be decoded; the message says why."""


def decode_any(encoded: bytes, channels: int, as_stored: bool = False) -> np.ndarray:
    """Decodes the first frame to uint8[H, W, channels]: grey with 1 channel, RGB with 3; upright by its EXIF tag.

    Drops alpha, as the decoders of training do, and reduces 16 bits a channel to 8. `as_stored` turns nothing. Raises
    DamagedImage if the file is not an image, or damaged.
    """
    if encoded.startswith(PNG):
        with _opened(encoded) as image:
            image.verify()  # decoding alone does not notice a missing end
    with _opened(encoded) as image:
        upright = image if as_stored else ImageOps.exif_transpose(image)
        if upright.mode == "F" or (upright.mode == "I" and not encoded.startswith(PNG)):
            raise DamagedImage("has pixels of 32 bits: must be of 8 or 16")
        if upright.mode.startswith("I"):  # Pillow would clip 16 bits
            upright = Image.fromarray((np.asarray(upright).astype(np.uint32) >> 8).astype(np.uint8))
        upright.info.pop("transparency", None)  # or Pillow warns, though alpha is dropped
        pixels = np.array(upright.convert("L" if channels == 1 else "RGB"))
    return pixels.reshape(*pixels.shape[:2], channels)


def as_plain(encoded: bytes) -> bytes | np.ndarray:
    """The file if training's decoders show it correctly, else its pixels, uint8[H, W, 3]; raises DamagedImage."""
    with _opened(encoded) as image:
        plain = is_plain_png(encoded) or (encoded.startswith(JPEG) and image.mode != "CMYK")
    return encoded if plain and is_upright(encoded) else decode_any(encoded, 3)


def is_grey(image: bytes | np.ndarray) -> bool:
    """Whether an image's header says that it has one channel; raises DamagedImage."""
    if isinstance(image, np.ndarray):
        return image.shape[2] == 1
    with _opened(image) as opened:
        return opened.mode in _GREY_MODES


def is_upright(encoded: bytes) -> bool:
    """Whether a JPEG or PNG needs no turning; True if its EXIF data cannot be read."""
    if b"Exif\0" in encoded or b"eXIf" in encoded:
        with contextlib.suppress(DamagedImage), _opened(encoded) as image:
            return image.getexif().get(ExifTags.Base.Orientation, 1) in (0, 1)
    return True


def is_plain_png(encoded: bytes) -> bool:
    """Whether a file is a PNG with 8 bits a channel, grey or RGB, without alpha, palette or animation."""
    is_simple = encoded.startswith(PNG) and encoded[24:26] in (b"\x08\0", b"\x08\x02")
    return is_simple and b"tRNS" not in encoded[:1024] and b"acTL" not in encoded[:1024]


@contextlib.contextmanager
def _opened(encoded: bytes) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            yield image
    except Image.UnidentifiedImageError:  # its message holds a memory address
        raise DamagedImage("is no image" if encoded else "is empty") from None
    except _DECODING_ERRORS as error:
        raise DamagedImage(str(error) or type(error).__name__) from None
