"""What becomes of one image: kept, stored anew, or known to be damaged."""

import io
import warnings
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageOps

from jaxtern.data.any_image import DamagedImage, as_plain, is_grey
from jaxtern.preparation.images import Rules, store_image

JPEG, PNG = Rules("jpeg", 3), Rules("png", 3)


def open_pixels(content: bytes) -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(content)))
    return pixels if pixels.ndim == 3 else pixels[..., None]


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_that_fits_stays_byte_for_byte(make, channels: int):
    raw = make.jpeg(1, channels=channels)
    for rules in (JPEG, Rules("jpeg", 3, shortest=12), Rules("jpeg", 3, quality=10)):
        assert store_image(raw, rules) == (raw, (12, 16), False)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_that_fits_stays_byte_for_byte(make, channels: int):
    raw = make.png(1, channels=channels)
    assert store_image(raw, PNG) == (raw, (12, 16), False)


def test_png_too_wide_for_a_jpeg_counts_as_damaged(make):
    with pytest.raises(DamagedImage, match="cannot be encoded as JPEG"):
        store_image(make.file(Image.new("RGB", (70_000, 2)), "PNG"), JPEG)


def test_progressive_jpeg_stays(make):
    raw = make.file(Image.fromarray(make.pixels(3, 40, 60)), "JPEG", progressive=True)
    assert store_image(raw, JPEG).content == raw


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP"])
def test_other_files_called_jpeg_are_encoded_as_jpeg(make, kind: str):
    pixels = make.pixels(2, 40, 60)
    options = {"lossless": True} if kind == "WEBP" else {}
    content, shape, repaired = store_image(make.file(Image.fromarray(pixels), kind, **options), JPEG)
    assert (shape, repaired) == ((40, 60), True)
    assert simplejpeg.decode_jpeg_header(content)[2] == "YCbCr"
    # a palette of 256 colours costs more than the encoding
    assert np.abs(simplejpeg.decode_jpeg(content).astype(int) - pixels).mean() < (8 if kind == "GIF" else 2)


def test_cmyk_jpeg_is_encoded_as_rgb(make):
    pixels = make.pixels(2, 40, 60)
    raw = make.file(Image.fromarray(pixels).convert("CMYK"), "JPEG", quality=95)
    assert simplejpeg.decode_jpeg_header(raw)[2] == "CMYK"
    content, _, repaired = store_image(raw, JPEG)
    assert repaired
    assert simplejpeg.decode_jpeg_header(content)[2] == "YCbCr"
    assert np.abs(simplejpeg.decode_jpeg(content).astype(int) - pixels).mean() < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_images_are_stored_upright(make, kind: str, orientation: int):
    """As Pillow turns them, which is the reference for EXIF; an upright file of the right kind stays as it is."""
    image, exif = Image.fromarray(make.pixels(2, 40, 60)), Image.Exif()
    exif[0x0112] = orientation
    raw = make.file(image, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(raw))).convert("RGB"))
    content, shape, repaired = store_image(raw, Rules("jpeg" if kind == "JPEG" else "png", 3))
    assert shape == expected.shape[:2] == ((40, 60) if orientation < 5 else (60, 40))
    stays = orientation == 1 and kind in ("JPEG", "PNG")
    assert ((content == raw), repaired) == (stays, not stays)
    np.testing.assert_allclose(open_pixels(content).astype(int), expected, atol=12 if kind == "JPEG" else 0)
    read = as_plain(raw)
    assert (read == raw) if stays else np.array_equal(read, expected)


def _with_alpha(image: Image.Image, transparency: Any) -> Image.Image:
    image.info["transparency"] = transparency
    return image


PNG_KINDS = {
    "alpha": lambda p: (Image.fromarray(np.dstack([p, p[..., :1]])), p),
    "grey alpha": lambda p: (Image.fromarray(p[..., :2], "LA"), np.repeat(p[..., :1], 3, 2)),
    "palette": lambda p: (Image.fromarray(p).quantize(200), None),
    "black and white": lambda p: (Image.fromarray(p[..., 0] > 99), np.repeat((p[..., :1] > 99) * 255, 3, 2)),
    "palette with alpha": lambda p: (_with_alpha(Image.fromarray(p).quantize(200), bytes(200)), None),
    "colour for alpha": lambda p: (_with_alpha(Image.fromarray(p), (1, 2, 3)), p),
    "animated": lambda p: (Image.fromarray(p), p),
    "16 bit": lambda p: (Image.fromarray(p[..., 0].astype(np.uint16) * 257), np.repeat(p[..., :1], 3, 2)),
}


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
@pytest.mark.parametrize("kind", PNG_KINDS)
def test_png_of_other_kinds_becomes_eight_bit_rgb(make, kind: str):
    image, expected = PNG_KINDS[kind](make.pixels(4))
    frames = {"save_all": True, "append_images": [image.rotate(180)]} if kind == "animated" else {}
    with warnings.catch_warnings(action="error", category=UserWarning):
        content, shape, repaired = store_image(make.file(image, "PNG", **frames), PNG)
    assert (shape, repaired) == ((12, 16), True)
    expected = np.asarray(image.convert("RGBA").convert("RGB")) if expected is None else expected
    np.testing.assert_array_equal(open_pixels(content), expected)


def test_png_of_16_bit_colours_becomes_eight_bit(make):
    pixels = make.pixels(4)
    raw = cv2.imencode(".png", pixels[..., ::-1].astype(np.uint16) * 257)[1].tobytes()
    content, _, repaired = store_image(raw, PNG)
    assert repaired
    np.testing.assert_array_equal(open_pixels(content), pixels)


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_grey_images_keep_one_channel_where_all_are_grey(make, encoding: str):
    raw = {"jpeg": make.jpeg, "png": make.png}[encoding](1, 40, 60, 1)
    assert store_image(raw, Rules(encoding, 1)).content == raw
    shrunk = store_image(raw, Rules(encoding, 1, shortest=20))
    assert shrunk.shape == (20, 30)
    assert is_grey(shrunk.content)
    assert open_pixels(shrunk.content).shape == (20, 30, 1)


def test_grey_is_seen_from_the_header(make):
    for channels, grey in ((1, True), (3, False)):
        assert is_grey(make.jpeg(1, channels=channels)) is grey
        assert is_grey(make.png(1, channels=channels)) is grey
        assert is_grey(make.pixels(1, channels=channels)) is grey
    with pytest.raises(DamagedImage):
        is_grey(b"nothing")


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(40, 60, (20, 30)), (61, 40, (30, 20)), (20, 300, (20, 300)), (21, 1000, (20, 952)), (19, 90, (19, 90))],
)
def test_resize_shrinks_the_shorter_side_and_enlarges_none(make, height: int, width: int, expected: tuple[int, int]):
    for raw, encoding in ((make.jpeg(5, height, width), "jpeg"), (make.png(5, height, width), "png")):
        stored = store_image(raw, Rules(encoding, 3, shortest=20))
        assert stored.shape == expected == open_pixels(stored.content).shape[:2]
        assert not stored.repaired
        assert (stored.content == raw) == (min(height, width) <= 20)


def test_resize_averages_areas(make):
    pixels = make.pixels(6, 40, 60)
    stored = store_image(pixels, Rules("png", 3, shortest=20))
    means = pixels.reshape(20, 2, 30, 2, 3).mean((1, 3))
    np.testing.assert_allclose(open_pixels(stored.content), means, atol=0.51)


def test_quality_is_that_of_the_encoder(make):
    raw = make.png(7, 60, 80)
    sizes = [len(store_image(raw, Rules("jpeg", 3, quality=quality)).content) for quality in (30, 95)]
    assert sizes[0] < sizes[1]


def test_jpegs_have_huffman_tables_of_their_own(make):
    """Fewer bytes for the same pixels."""
    pixels = cv2.resize(make.pixels(4, 12, 16), (160, 120))
    content = store_image(make.file(Image.fromarray(pixels), "PNG"), JPEG).content
    done, usual = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])
    assert done
    assert isinstance(content, bytes)
    assert len(content) < len(usual)
    assert simplejpeg.decode_jpeg_header(content)[2:] == ("YCbCr", "420")
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(content), simplejpeg.decode_jpeg(usual.tobytes()))


def test_pixels_of_an_array_are_stored_without_loss(make):
    for channels in (1, 3):
        pixels = make.pixels(8, channels=channels)
        np.testing.assert_array_equal(open_pixels(store_image(pixels, Rules("png", channels)).content), pixels)


@pytest.mark.parametrize("rules", [JPEG, PNG, Rules("jpeg", 3, shortest=5)])
@pytest.mark.parametrize(
    ("kind", "kept"),
    # of a PNG the last four bytes are the checksum of nothing, which no decoder misses
    [(k, n) for k in ("jpeg", "png", "cmyk") for n in (0, 1, 3, 10, 0.3, 0.6, -30, -14, -2) if (k, n) != ("png", -2)],
)
def test_images_cut_short_anywhere_are_damaged(make, kind: str, kept: float, rules: Rules):
    whole = {
        "jpeg": make.jpeg(9, 40, 60),
        "png": make.png(9, 40, 60),
        "cmyk": make.file(Image.fromarray(make.pixels(9, 40, 60)).convert("CMYK"), "JPEG"),
    }[kind]
    cut = whole[: int(kept * len(whole)) if isinstance(kept, float) else kept]
    with pytest.raises(DamagedImage, match=r".") as caught:
        store_image(cut, rules)
    assert "\n" not in str(caught.value)
    assert " at 0x" not in str(caught.value)


def test_garbled_jpeg_and_png_are_damaged(make):
    jpeg, png = bytearray(make.jpeg(9, 60, 80)), bytearray(make.png(9, 60, 80))
    jpeg[len(jpeg) // 2 : len(jpeg) // 2 + 30] = bytes([0xFF, 0x01] * 15)
    png[len(png) // 2] ^= 0x55
    for raw in (bytes(jpeg), bytes(png), b"no image at all", b"GIF89a and no more"):
        with pytest.raises(DamagedImage):
            store_image(raw, JPEG)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_tiff_of_32_bits_is_refused_as_its_range_is_not_known(make, dtype: type):
    with pytest.raises(DamagedImage, match=r"^has pixels of 32 bits: must be of 8 or 16$"):
        store_image(make.file(Image.fromarray(np.ones((8, 8), dtype)), "TIFF"), PNG)
    half = make.file(Image.fromarray(np.full((8, 8), 2**15, np.uint16)), "TIFF")
    stored, *_ = store_image(half, PNG)
    assert set(np.unique(open_pixels(stored))) == {128}


def make_three_to_one() -> bytes:
    """A grey square of 24x8 pixels, of which three blocks of luma share one of either chroma."""
    raw = Image.fromarray(np.full((8, 24, 3), 128, np.uint8))
    file = io.BytesIO()
    raw.save(file, "JPEG", subsampling=0)
    content = bytearray(file.getvalue())
    frame, scan = content.index(b"\xff\xc0"), content.index(b"\xff\xda")
    content[frame + 11] = 0x31
    # every block is a difference of 0 and an end: 001010 for luma, 0000 for chroma
    return bytes(content[: scan + 14]) + int("001010" * 3 + "0000" * 2 + "111111", 2).to_bytes(4, "big") + b"\xff\xd9"


def set_revision(raw: bytes, revision: bytes) -> bytes:
    assert raw[6:11] == b"JFIF\0"
    return raw[:11] + revision + raw[13:]


ODD_JPEGS = {
    "revision 0.00": lambda raw: set_revision(raw, b"\0\0"),
    "revision 2.01": lambda raw: set_revision(raw, b"\2\1"),
    "bytes between segments": lambda raw: raw[:20] + b"\0\7\0" + raw[20:],
    "bytes before the end": lambda raw: raw[:-2] + bytes(range(99)) + raw[-2:],
    "all of them": lambda raw: set_revision(raw[:20] + b"\0" + raw[20:-2], b"\2\0") + bytes(99) + raw[-2:],
}


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
@pytest.mark.parametrize("kind", ODD_JPEGS)
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_jpegs_that_lose_nothing_are_repaired(make, kind: str, encoding: str, channels: int):
    raw = ODD_JPEGS[kind](make.jpeg(9, 40, 60, channels))
    with pytest.raises(ValueError, match=r"JFIF|extraneous"):
        simplejpeg.decode_jpeg(raw)
    assert is_grey(raw) is (channels == 1)
    content, shape, repaired = store_image(raw, Rules(encoding, channels))
    assert (shape, repaired) == ((40, 60), True)
    assert store_image(content, Rules(encoding, channels)) == (content, shape, False)
    assert np.abs(open_pixels(content).astype(int) - make.pixels(9, 40, 60, channels)).mean() < 2


def test_jpeg_of_unnamed_sampling_is_repaired():
    raw = make_three_to_one()
    with pytest.raises(ValueError, match="Could not determine subsampling"):
        simplejpeg.decode_jpeg(raw)
    assert not is_grey(raw)
    content, shape, repaired = store_image(raw, JPEG)
    assert (shape, repaired) == ((8, 24), True)
    np.testing.assert_array_equal(open_pixels(content), 128)
    with pytest.raises(DamagedImage):
        store_image(raw[:-3], JPEG)


@pytest.mark.parametrize("kind", ODD_JPEGS)
def test_odd_jpegs_that_are_cut_short_or_garbled_are_damaged(make, kind: str):
    whole = make.jpeg(9, 60, 80)
    middle = len(whole) // 2
    garbled = whole[:middle] + bytes([0xFF, 0x01] * 15) + whole[middle + 30 :]
    restarting = make.file(Image.fromarray(make.pixels(9, 60, 80)), "JPEG", quality=95, restart_marker_blocks=4)
    place = restarting.index(b"\xff\xd2")
    unmarked = restarting[:place] + restarting[place + 2 :]
    for raw in (ODD_JPEGS[kind](whole)[: middle + 60], *map(ODD_JPEGS[kind], (garbled, unmarked, unmarked[:place]))):
        with pytest.raises(DamagedImage):
            store_image(raw, JPEG)
