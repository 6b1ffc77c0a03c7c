"""One image: decoded to find damage, kept byte for byte where nothing must change, else stored anew."""

import contextlib
import re
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import simplejpeg

from jaxtern.data.any_image import JPEG, decode_any, is_grey_file, is_plain_png, is_upright
from jaxtern.data.images import require_few_pixels
from jaxtern.preparation.source import DamagedImage, Encoding

_MARKER = re.compile(rb"\xff+[^\x00\xff]")
_UNNAMED_SAMPLING = "Could not determine subsampling"  # of which TurboJPEG decodes nothing
_STRAY_BYTES = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


@dataclass(frozen=True)
class Rules:
    """How images are stored.

    Attributes:
      encoding: "jpeg" or "png".
      channels: 1 if all images of the source are grey, else 3. A grey file in a set of colour stays as it is: decoders
        repeat its channel.
      shortest: images whose shorter side is longer are shrunk, by averaging areas, until it is this; none is enlarged.
      quality: of images that are encoded as JPEG, 1 to 100.
    """

    encoding: Encoding
    channels: int
    shortest: int | None = None
    quality: int = 95


class Stored(NamedTuple):
    """An image as it goes on disk.

    Attributes:
      content: the bytes of a file.
      shape: height and width.
      repaired: whether the file was not what the rules want, apart from its size.
    """

    content: bytes
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
    """
    if isinstance(raw, np.ndarray):
        decoded = _Decoded(raw, raw.shape[:2], fits=True)
    elif raw.startswith(JPEG):
        decoded = _decode_jpeg(raw, rules)
    else:
        decoded = _decode_other(raw, rules)
    if decoded.pixels is None:
        assert isinstance(raw, bytes)
        return Stored(raw, decoded.shape, repaired=False)
    pixels = _shrink(decoded.pixels, rules.shortest)
    return Stored(_encode(pixels, rules), pixels.shape[:2], not decoded.fits)


def is_grey(raw: bytes | np.ndarray) -> bool:
    """Whether an image has one channel, as its header says.

    Raises:
      DamagedImage: if it cannot be read.
    """
    if isinstance(raw, np.ndarray):
        return raw.shape[2] == 1
    if raw.startswith(JPEG):
        with contextlib.suppress(DamagedImage):  # of headers Pillow forgives more
            return _read_jpeg_header(raw)[2] == "Gray"
    try:
        return is_grey_file(raw)
    except ValueError as error:
        raise DamagedImage(str(error)) from None


def _decode_jpeg(raw: bytes, rules: Rules) -> _Decoded:
    """Keeps a sound file as it is; decodes another by Pillow if nothing of its image is lost."""
    try:
        return _decode_sound_jpeg(raw, rules)
    except DamagedImage:
        _require_harmless(raw, rules)
    pixels = _open(raw, rules.channels)
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
    has_inks = colours in ("CMYK", "YCCK")
    fits = not has_inks and is_upright(raw)
    keep = fits and rules.encoding == "jpeg" and not (rules.shortest and min(height, width) > rules.shortest)
    space = "GRAY" if keep or rules.channels == 1 else "RGB"  # looking for damage, grey does, and is faster
    try:
        # simplejpeg tells of every damage, also where it could go on; OpenCV and Pillow are silent on garbled data
        pixels = simplejpeg.decode_jpeg(raw, "CMYK" if has_inks else space)
    except ValueError as error:
        raise DamagedImage(str(error)) from None
    if not fits:
        pixels = _open(raw, rules.channels)  # which knows of Adobe's inverted inks, and turns it upright
    return _Decoded(None if keep else pixels, (height, width), fits)


def _read_jpeg_header(raw: bytes) -> tuple[int, int, str, str]:
    try:
        height, width, colours, sampling = simplejpeg.decode_jpeg_header(raw)
        require_few_pixels(int(height), int(width))
    except ValueError as error:
        raise DamagedImage(str(error)) from None
    return int(height), int(width), colours, sampling


def _decode_other(raw: bytes, rules: Rules) -> _Decoded:
    pixels = _open(raw, rules.channels)
    fits = rules.encoding != "jpeg" and is_plain_png(raw) and is_upright(raw)
    keep = fits and rules.encoding == "png" and not (rules.shortest and min(pixels.shape[:2]) > rules.shortest)
    return _Decoded(None if keep else pixels, pixels.shape[:2], fits)


def _open(raw: bytes, channels: int) -> np.ndarray:
    try:
        return decode_any(raw, channels)
    except ValueError as error:
        raise DamagedImage(str(error)) from None


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
