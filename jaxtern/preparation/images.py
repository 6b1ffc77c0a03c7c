"""Checks one image by decoding it, and keeps its file or encodes it again."""

import re
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np
import simplejpeg

from jaxtern.data.any_image import JPEG, DamagedImage, decode_any, is_plain_png, is_upright
from jaxtern.data.images import require_few_pixels
from jaxtern.preparation.source import Encoding

_INKS = ("CMYK", "YCCK")
_MARKER = re.compile(rb"\xff+[^\x00\xff]")
_UNNAMED_SAMPLING = "Could not determine subsampling"  # TurboJPEG refuses such a file
_STRAY_BYTES = re.compile(r"(\d+) extraneous bytes before marker 0xd9")


@dataclass(frozen=True)
class Rules:
    """How images are stored."""

    encoding: Encoding  # "jpeg" or "png"
    channels: int  # 1 if all images of the source are grey, else 3; decoders repeat the channel of a grey file
    # images are shrunk, by averaging areas, until the shorter side has at most this many pixels
    shortest: int | None = None
    quality: int = 95  # of images that are encoded as JPEG, 1 to 100


class Stored(NamedTuple):
    """An image as it is stored."""

    content: bytes  # bytes of a JPEG or PNG file
    shape: tuple[int, int]  # height and width in pixels
    repaired: bool  # whether the original file broke the rules, other than by its size


def store_image(raw: bytes | np.ndarray, rules: Rules) -> Stored:
    """Stores an image, a file of any format that Pillow reads or uint8[H, W, C], by the rules.

    Raises DamagedImage if it cannot be decoded to its end.
    """
    if isinstance(raw, np.ndarray):
        pixels, fits = raw, True
    else:
        try:
            if raw.startswith(JPEG):
                pixels, fits = _decode_jpeg(raw, rules)
            else:
                pixels = decode_any(raw, rules.channels)
                fits = rules.encoding == "png" and is_plain_png(raw) and is_upright(raw)
        except ValueError as error:
            raise DamagedImage(str(error)) from None
        if fits and not (rules.shortest and min(pixels.shape[:2]) > rules.shortest):
            return Stored(raw, pixels.shape[:2], repaired=False)
    pixels = _shrink(pixels, rules.shortest)
    return Stored(_encode(pixels, rules), pixels.shape[:2], not fits)


def _decode_jpeg(raw: bytes, rules: Rules) -> tuple[np.ndarray, bool]:
    """Decodes a JPEG; also returns whether the file fits the rules.

    Pillow decodes files with these harmless faults: an unknown revision of JFIF, bytes between segments or before the
    end, an unusual subsampling of colours. Any other fault raises ValueError, also in a file that has a harmless one.
    """
    try:
        return _decode_sound_jpeg(raw, rules)
    except ValueError:
        header, data = _mend_header(raw)
    try:
        _decode_sound_jpeg(header + data, rules)
    except ValueError as damage:
        if stray := _STRAY_BYTES.search(str(damage)):
            end = data.find(b"\xff\xd9")
            _decode_sound_jpeg(header + data[: end - int(stray[1])] + data[end:], rules)
        elif _UNNAMED_SAMPLING not in str(damage):
            raise
    return decode_any(raw, rules.channels), False


def _mend_header(raw: bytes) -> tuple[bytes, bytes]:
    """A JPEG's header, without bytes between segments and with a known revision of JFIF; and the rest of the file."""
    segments, place = [raw[:2]], 2
    while (marker := _MARKER.search(raw, place)) and marker[0][-1:] != b"\xda":
        place = marker.end() + int.from_bytes(raw[marker.end() : marker.end() + 2], "big")
        segment = raw[marker.start() : place]
        if marker[0] == b"\xff\xe0" and segment[4:9] == b"JFIF\0":
            segment = segment[:9] + b"\x01" + segment[10:]
        segments.append(segment)
    return b"".join(segments), raw[marker.start() :] if marker else b""


def _decode_sound_jpeg(raw: bytes, rules: Rules) -> tuple[np.ndarray, bool]:
    """As `_decode_jpeg`, without mending. A file that is kept is decoded to grey, which finds damage faster."""
    height, width, colours, _ = simplejpeg.decode_jpeg_header(raw)
    require_few_pixels(int(height), int(width))
    is_plain = colours not in _INKS and is_upright(raw)
    fits = is_plain and rules.encoding == "jpeg"
    is_grey_enough = rules.channels == 1 or (fits and rules.shortest is None)
    # simplejpeg reports all damage; OpenCV and Pillow accept garbled data.
    pixels = simplejpeg.decode_jpeg(raw, "CMYK" if colours in _INKS else "GRAY" if is_grey_enough else "RGB")
    # Pillow handles Adobe's inverted inks and turns the image upright.
    return (pixels if is_plain else decode_any(raw, rules.channels)), fits


def _shrink(pixels: np.ndarray, shortest: int | None) -> np.ndarray:
    height, width = pixels.shape[:2]
    if shortest is None or min(height, width) <= shortest:
        return pixels
    scale = shortest / min(height, width)
    size = max(shortest, round(width * scale)), max(shortest, round(height * scale))
    shrunk = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return shrunk.reshape(*shrunk.shape[:2], pixels.shape[2])


def _encode(pixels: np.ndarray, rules: Rules) -> bytes:
    in_order = pixels if pixels.shape[2] == 1 else pixels[..., ::-1]  # OpenCV's order is BGR
    options = []
    if rules.encoding == "jpeg":
        # Optimised Huffman tables make a file smaller and faster to decode, without loss.
        options = [cv2.IMWRITE_JPEG_QUALITY, rules.quality, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
    done, encoded = cv2.imencode(f".{rules.encoding}", in_order, options)
    if not done:
        raise DamagedImage(f"an image of shape {pixels.shape} cannot be encoded as {rules.encoding.upper()}")
    return encoded.tobytes()
