"""Decodes JPEGs and PNGs to squares of pixels, and no more of them than a view shows.

The rows of a JPEG below the view are not decoded. If the view is at least two, four or eight times as large as the
result, the decoder shrinks it by that factor, which takes fewer frequencies. simplejpeg, which has its own
libjpeg-turbo, decodes JPEGs; Pillow decodes PNGs; OpenCV does the rest. All release Python's global lock.
"""

import struct
from typing import Any, NamedTuple

import cv2
import numpy as np
import simplejpeg

from jaxtern.data.any_image import JPEG, PNG, DamagedImage, decode_any
from jaxtern.data.preprocessing.views import View

cv2.setNumThreads(0)  # as many images are decoded at once as there are cores to do it
_END_OF_JPEG = b"\xff\xd9"
# simplejpeg reports these as damage, but other decoders read such files.
_HARMLESS = ("unknown JFIF revision", "Could not determine subsampling", "extraneous bytes")
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers of a frame's header, which has the size
_FACTORS = (8, 4, 2)  # libjpeg-turbo shrinks fast by these; other factors take longer than decoding the whole
_GREY, _RGB = 1, 3
MAX_PIXELS = 1 << 28  # a header that claims more is refused before memory is allocated
_Box = tuple[float, float, float, float]  # top, left, height and width of a view in decoded pixels


class _Header(NamedTuple):
    """An image's size; `place` is the offset of the height in a JPEG, 0 for others."""

    height: int
    width: int
    place: int


def read_shape(image: bytes | np.ndarray) -> tuple[int, int]:
    """Height and width in pixels, read from the header; raises ValueError if it is neither a JPEG nor a PNG."""
    return _read_header(image)[:2]


def decode(image: bytes | np.ndarray, channels: int) -> np.ndarray:
    """Decodes a whole image to uint8[H, W, channels], at the decoder's full precision.

    Args:
      image: bytes of a JPEG or PNG, or uint8[H, W, 1 or 3].
      channels: 1 for grey, 3 for RGB.

    Raises:
      ValueError: if the file is not a grey or RGB JPEG or PNG, or is damaged or cut short.
    """
    if channels not in (_GREY, _RGB):
        raise ValueError(f"channels={channels}: must be 1 or 3")
    if isinstance(image, np.ndarray):
        if image.shape[2] == channels:
            return image
        code = cv2.COLOR_GRAY2RGB if channels == _RGB else cv2.COLOR_RGB2GRAY
        return cv2.cvtColor(image, code).reshape(*image.shape[:2], channels)
    if _read_header(image).place:
        return _call_simplejpeg(image, channels)
    return _call_pillow(image, channels, "PNG")


def render(image: bytes | np.ndarray, view: View, size: int, channels: int) -> np.ndarray:
    """Renders a view of an image as uint8[size, size, channels]: crops, resizes, rotates and flips it.

    A box more than twice as large as the result is first shrunk by averaging areas; the rest is bilinear. Pixels that a
    rotation brings in from outside the box are black. Subsampled colours of a JPEG are repeated, not interpolated,
    which changes values by less than 1 of 255 on average. Damage inside a JPEG with a sound end may go unnoticed, as in
    tf.io.decode_jpeg; `decode` finds more of it.

    Args:
      image: bytes of a JPEG or PNG, or uint8[H, W, 1 or 3].
      view: the box to show, and how it is turned.
      size: side of the result in pixels.
      channels: 1 for grey, 3 for RGB.

    Raises:
      ValueError: as for `decode`, and if the box is empty or not inside the image.
    """
    header = _read_header(image)
    if not (0 <= view.top < view.bottom <= header.height and 0 <= view.left < view.right <= header.width):
        raise ValueError(f"view={view}: must have pixels, none outside of {header.height} by {header.width}")
    pixels, box = _cut(image, header, view, size, channels)
    pixels, box = _shrink(pixels, box, size)
    if view.degrees == 0 and box == (0, 0, *pixels.shape[:2]):
        pixels = cv2.resize(pixels, (size, size), interpolation=cv2.INTER_LINEAR)
        pixels = cv2.flip(pixels, 1) if view.flip else pixels
    else:
        pixels = _turn(pixels, box, view, size)
    return pixels.reshape(size, size, channels)


def _cut(image: bytes | np.ndarray, header: _Header, view: View, size: int, channels: int) -> tuple[np.ndarray, _Box]:
    """Decodes the pixels that a view touches, a JPEG's shrunk by 1, 2, 4 or 8; returns them and the box in them."""
    if isinstance(image, np.ndarray) or not header.place:
        factor, pixels = 1, decode(image, channels)
    else:
        shortest = min(view.bottom - view.top, view.right - view.left)
        factor = next((each for each in _FACTORS if shortest >= each * size), 1)
        pixels = _decode_part(image, header, view.bottom, factor, channels)
    top, left = view.top // factor, view.left // factor
    bottom, right = -(-view.bottom // factor), -(-view.right // factor)
    edges = view.top / factor - top, view.left / factor - left
    sides = (view.bottom - view.top) / factor, (view.right - view.left) / factor
    return pixels[top:bottom, left:right], (*edges, *sides)


def _decode_part(encoded: bytes, header: _Header, bottom: int, factor: int, channels: int) -> np.ndarray:
    """Decodes a JPEG down to row `bottom`, or a little further, with both sides divided by `factor`.

    A decoder stops at the last row that the header claims, so the header is changed to claim only the rows needed. The
    rest then looks like damage, which is ignored; but a JPEG without its end marker is decoded whole, to find damage.
    """
    has_end = encoded[-2:] == _END_OF_JPEG
    height = bottom if has_end else header.height
    told = bytearray(encoded)
    struct.pack_into(">H", told, header.place, height)
    least = {"min_height": -(-height // factor), "min_width": -(-header.width // factor), "min_factor": factor}
    # fastupsample, but not fastdct, which gains less and costs 2 of 255 at high qualities
    return _call_simplejpeg(told, channels, fastupsample=True, strict=not has_end, **least)


def _call_simplejpeg(encoded: bytes | bytearray, channels: int, **options: Any) -> np.ndarray:
    try:
        return simplejpeg.decode_jpeg(encoded, "RGB" if channels == _RGB else "GRAY", **options)
    except ValueError as error:
        if any(words in str(error) for words in _HARMLESS):
            return _call_pillow(encoded, channels, "JPEG", options.get("min_factor", 1))
        raise ValueError(f"the JPEG is damaged or cut short: {' '.join(str(error).split())}") from None


def _call_pillow(encoded: bytes | bytearray, channels: int, kind: str, factor: int = 1) -> np.ndarray:
    """Decodes a PNG, or a JPEG that simplejpeg refuses, to the size that it would have returned."""
    try:
        pixels = decode_any(bytes(encoded), channels, as_stored=True)
    except DamagedImage as error:
        raise ValueError(f"the {kind} is damaged or cut short: {error}") from None
    if factor > 1:
        height, width = (-(-length // factor) for length in pixels.shape[:2])
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return pixels.reshape(*pixels.shape[:2], channels)


def _shrink(pixels: np.ndarray, box: _Box, size: int) -> tuple[np.ndarray, _Box]:
    """Averages sides longer than twice the size down to the size, as bilinear interpolation would skip pixels."""
    top, left, height, width = box
    rows, columns = size if height > 2 * size else pixels.shape[0], size if width > 2 * size else pixels.shape[1]
    if (rows, columns) == pixels.shape[:2]:
        return pixels, box
    vertical, horizontal = rows / pixels.shape[0], columns / pixels.shape[1]
    shrunk = cv2.resize(pixels, (columns, rows), interpolation=cv2.INTER_AREA)
    return shrunk, (top * vertical, left * horizontal, height * vertical, width * horizontal)


def _turn(pixels: np.ndarray, box: _Box, view: View, size: int) -> np.ndarray:
    """Resizes, rotates and flips in one step, so that pixels are interpolated only once."""
    top, left, height, width = box
    vertical, horizontal, middle = height / size, width / size, (size - 1) / 2
    resized = np.diag([horizontal, vertical, 1.0])  # maps the result's coordinates to the image's
    resized[:2, 2] = left + horizontal / 2 - 0.5, top + vertical / 2 - 0.5
    rotated = np.vstack([cv2.getRotationMatrix2D((middle, middle), -view.degrees, 1.0), [0.0, 0.0, 1.0]])
    flipped = np.array([[-1.0, 0.0, size - 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) if view.flip else np.eye(3)
    from_result = (resized @ rotated @ flipped)[:2]
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    border = cv2.BORDER_CONSTANT if view.degrees else cv2.BORDER_REPLICATE
    return cv2.warpAffine(pixels, from_result, (size, size), flags=flags, borderMode=border)


def _read_header(encoded: bytes | np.ndarray) -> _Header:
    """Reads an image's header; raises ValueError if this is not a JPEG or PNG that can be read here."""
    if isinstance(encoded, np.ndarray):
        return _Header(encoded.shape[0], encoded.shape[1], 0)
    if encoded[:8] == PNG:
        if encoded[12:16] != b"IHDR" or len(encoded) < 24:
            raise ValueError("the PNG is damaged or cut short: it has no header")
        width, height = struct.unpack_from(">II", encoded, 16)
        require_few_pixels(height, width)
        return _Header(height, width, 0)
    if not encoded:
        raise ValueError("is empty")
    if encoded[:3] != JPEG:
        raise ValueError(f"starts with {bytes(encoded[:4]).hex()!r}: is neither a JPEG nor a PNG")
    place = _find_frame(encoded)
    bits, height, width, components = struct.unpack_from(">BHHB", encoded, place + 4)
    if bits != 8 or components not in (_GREY, _RGB):
        raise ValueError(f"the JPEG has {components} channels of {bits} bits: must be grey or RGB of 8")
    if height == 0 or width == 0:
        raise ValueError(f"the JPEG is damaged: its header claims {height} by {width} pixels")
    require_few_pixels(height, width)
    return _Header(height, width, place + 5)


def require_few_pixels(height: int, width: int) -> None:
    """Refuses an image that would take too much memory."""
    if height * width > MAX_PIXELS:
        raise ValueError(f"the JPEG or PNG claims {height} by {width} pixels: must have {MAX_PIXELS:,} at most")


def _find_frame(encoded: bytes) -> int:
    """The offset of a JPEG's frame header; the segments before it each hold their own length."""
    place = 2
    while place + 10 <= len(encoded) and encoded[place] == 0xFF:
        marker = encoded[place + 1]
        if marker in _FRAMES:
            return place
        place += 1 if marker == 0xFF else 2 + struct.unpack_from(">H", encoded, place + 2)[0]
    raise ValueError("the JPEG is damaged or cut short: it has no frame header")
