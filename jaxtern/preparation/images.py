"""One image: decoded to find damage, kept byte for byte where nothing must change, else stored anew."""

import contextlib
import io
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from jaxtern.data.images import require_few_pixels
from jaxtern.preparation.source import DamagedImage

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_GREY_MODES = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
_MARKER = re.compile(rb"\xff+[^\x00\xff]")
_UNNAMED_SAMPLING = "Could not determine subsampling"  # of which TurboJPEG decodes nothing
_STRAY_BYTES = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
# What Pillow's decoders raise on damaged files.
_DECODING_ERRORS = (
    OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, OverflowError, struct.error, zlib.error,
    NotImplementedError, Image.DecompressionBombError,
)  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """How images are stored.

    Attributes:
      encoding: "jpeg", "png", or "raw" for pixels.
      channels: 1 if all images of the source are grey, else 3. A grey file in a set of colour stays as it is: decoders
        repeat its channel.
      shortest: images whose shorter side is longer are shrunk, by averaging areas, until it is this; none is enlarged.
      quality: of images that are encoded as JPEG, 1 to 100.
      shape: of all images, if raw.
    """

    encoding: Literal["jpeg", "png", "raw"]
    channels: int
    shortest: int | None = None
    quality: int = 95
    shape: tuple[int, int, int] | None = None


class Stored(NamedTuple):
    """An image as it goes on disk.

    Attributes:
      content: the bytes of a file, or uint8[H, W, C] if raw.
      shape: height and width.
      repaired: whether the file was not what the rules want, apart from its size.
    """

    content: bytes | np.ndarray
    shape: tuple[int, int]
    repaired: bool


class _Decoded(NamedTuple):
    """Pixels uint8[H, W, C], or None where a file that fits was looked at only for damage."""

    pixels: np.ndarray | None
    shape: tuple[int, int]
    fits: bool


def store_image(raw: bytes | np.ndarray, rules: Rules) -> Stored:
    """Makes an image fit the rules.

    Args:
      raw: the bytes of a file of any format that Pillow reads, or uint8[H, W, C].

    Raises:
      DamagedImage: if it cannot be decoded to its end.
      ValueError: if it is to be raw and has another shape than the rules say.
    """
    if isinstance(raw, np.ndarray):
        decoded = _Decoded(raw, raw.shape[:2], fits=True)
    elif raw.startswith(_JPEG):
        decoded = _decode_jpeg(raw, rules)
    else:
        decoded = _decode_other(raw, rules)
    if decoded.pixels is None:
        assert isinstance(raw, bytes)
        return Stored(raw, decoded.shape, repaired=False)
    pixels = _shrink(decoded.pixels, rules.shortest)
    if rules.encoding == "raw":
        if rules.shape is not None and pixels.shape != rules.shape:
            raise ValueError(
                f"raw_pixels: all images must have one shape, but this has {pixels.shape} and others {rules.shape};"
                " prepare them without --raw_pixels"
            )
        return Stored(pixels, pixels.shape[:2], not decoded.fits)
    return Stored(_encode(pixels, rules), pixels.shape[:2], not decoded.fits)


def is_grey(raw: bytes | np.ndarray) -> bool:
    """Whether an image has one channel, as its header says.

    Raises:
      DamagedImage: if it cannot be read.
    """
    if isinstance(raw, np.ndarray):
        return raw.shape[2] == 1
    if raw.startswith(_JPEG):
        with contextlib.suppress(DamagedImage):  # of headers Pillow forgives more
            return _read_jpeg_header(raw)[2] == "Gray"
    try:
        with Image.open(io.BytesIO(raw)) as image:
            return image.mode in _GREY_MODES
    except _DECODING_ERRORS as error:
        raise DamagedImage(_describe(raw, error)) from None


def _decode_jpeg(raw: bytes, rules: Rules) -> _Decoded:
    """Keeps a sound file as it is; decodes another by Pillow if nothing of its image is lost."""
    try:
        return _decode_sound_jpeg(raw, rules)
    except DamagedImage:
        _require_harmless(raw, rules)
    pixels = _open_with_pillow(raw, rules.channels)
    return _Decoded(pixels, pixels.shape[:2], fits=False)


def _require_harmless(raw: bytes, rules: Rules) -> None:
    """Raises what is wrong with the image's data, which alone is seen where all else is mended."""
    header, data = _mend_header(raw)
    try:
        _decode_sound_jpeg(header + data, rules)
    except DamagedImage as damage:
        stray = _STRAY_BYTES.search(str(damage))
        if stray:
            end = data.find(b"\xff\xd9")
            _decode_sound_jpeg(header + data[: end - int(stray[1])] + data[end:], rules)
        elif _UNNAMED_SAMPLING not in str(damage):
            raise


def _mend_header(raw: bytes) -> tuple[bytes, bytes]:
    """All before the data, without bytes between segments and with the revision of JFIF that there is; and the data."""
    segments, place = [raw[:2]], 2
    while (marker := _MARKER.search(raw, place)) and marker[0][-1:] != b"\xda":
        place = marker.end() + int.from_bytes(raw[marker.end() : marker.end() + 2], "big")
        segment = raw[marker.start() : place]
        if marker[0] == b"\xff\xe0" and segment[4:9] == b"JFIF\0":
            segment = segment[:9] + b"\x01" + segment[10:]
        segments.append(segment)
    return b"".join(segments), raw[marker.start() :] if marker else b""


def _decode_sound_jpeg(raw: bytes, rules: Rules) -> _Decoded:
    height, width, colours, _ = _read_jpeg_header(raw)
    fits = colours not in ("CMYK", "YCCK")
    keep = fits and rules.encoding == "jpeg" and not (rules.shortest and min(height, width) > rules.shortest)
    space = "GRAY" if keep or rules.channels == 1 else "RGB"  # looking for damage, grey does, and is faster
    try:
        # simplejpeg tells of every damage, also where it could go on; OpenCV and Pillow are silent on garbled data
        pixels = simplejpeg.decode_jpeg(raw, space if fits else "CMYK")
    except ValueError as error:
        raise DamagedImage(str(error)) from None
    if not fits:
        pixels = _open_with_pillow(raw, rules.channels)  # which knows of Adobe's inverted inks
    return _Decoded(None if keep else pixels, (height, width), fits)


def _read_jpeg_header(raw: bytes) -> tuple[int, int, str, str]:
    try:
        height, width, colours, sampling = simplejpeg.decode_jpeg_header(raw)
        require_few_pixels(int(height), int(width))
    except ValueError as error:
        raise DamagedImage(str(error)) from None
    return int(height), int(width), colours, sampling


def _decode_other(raw: bytes, rules: Rules) -> _Decoded:
    pixels = _open_with_pillow(raw, rules.channels)
    fits = rules.encoding != "jpeg" and raw.startswith(_PNG) and _is_plain_png(raw)
    keep = fits and rules.encoding == "png" and not (rules.shortest and min(pixels.shape[:2]) > rules.shortest)
    return _Decoded(None if keep else pixels, pixels.shape[:2], fits)


def _is_plain_png(raw: bytes) -> bool:
    """Whether it has 8 bits a channel, grey or RGB, without alpha, transparent colour, palette or animation."""
    depth, colour = raw[24], raw[25]
    return depth == 8 and colour in (0, 2) and b"tRNS" not in raw[:1024] and b"acTL" not in raw[:1024]


def _open_with_pillow(raw: bytes, channels: int) -> np.ndarray:
    """uint8[H, W, C] of the first frame; alpha is dropped, as all decoders of training data do, 16 bits become 8."""
    try:
        if raw.startswith(_PNG):
            with Image.open(io.BytesIO(raw)) as image:
                image.verify()  # decoding alone overlooks a missing end
        with Image.open(io.BytesIO(raw)) as image:
            if image.mode.startswith("I"):  # 16 bits, which Pillow would clip
                image = Image.fromarray((np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8))
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    except _DECODING_ERRORS as error:
        raise DamagedImage(_describe(raw, error)) from None
    return pixels.reshape(*pixels.shape[:2], channels)


def _describe(raw: bytes, error: Exception) -> str:
    if not raw:
        return "is empty"
    # the message of "cannot identify image file" shows an address, different each time
    return "is no image" if isinstance(error, Image.UnidentifiedImageError) else str(error) or type(error).__name__


def _shrink(pixels: np.ndarray, shortest: int | None) -> np.ndarray:
    height, width = pixels.shape[:2]
    if shortest is None or min(height, width) <= shortest:
        return pixels
    scale = shortest / min(height, width)
    size = max(shortest, round(width * scale)), max(shortest, round(height * scale))
    shrunk = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return shrunk.reshape(*shrunk.shape[:2], pixels.shape[2])


def _encode(pixels: np.ndarray, rules: Rules) -> bytes:
    in_order = pixels if pixels.shape[2] == 1 else pixels[..., ::-1]  # OpenCV holds blue first
    if rules.encoding == "jpeg":
        # Huffman tables of its own make a file smaller and faster to decode, and no less exact
        options = {
            cv2.IMWRITE_JPEG_QUALITY: rules.quality,
            cv2.IMWRITE_JPEG_OPTIMIZE: 1,
            cv2.IMWRITE_JPEG_SAMPLING_FACTOR: cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
        }
        done, encoded = cv2.imencode(".jpg", in_order, [number for option in options.items() for number in option])
    else:
        done, encoded = cv2.imencode(".png", in_order)
    if not done:
        raise ValueError(f"an image of shape {pixels.shape} cannot be encoded as {rules.encoding.upper()}")
    return encoded.tobytes()
