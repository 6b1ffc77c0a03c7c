"""Decoding and rendering: against slow references, of all kinds of JPEG, and in one line where an image is damaged."""

import io
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import simplejpeg
from PIL import Image
from scipy import ndimage

from jaxtern.data import images
from jaxtern.data.images import decode, read_shape, render
from jaxtern.data.preprocessing.views import View

KINDS = {  # of JPEG, as OpenCV writes them
    "plain": [],
    "progressive": [cv2.IMWRITE_JPEG_PROGRESSIVE, 1],
    "restarts": [cv2.IMWRITE_JPEG_RST_INTERVAL, 3],
    "444": [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444],
    "422": [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422],
    "440": [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440],
    "411": [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411],
}


def paint(height: int, width: int, channels: int = 3, detail: int = 12, seed: int = 0) -> np.ndarray:
    """A smooth random image, something changing every `detail` pixels, as JPEG is made for."""
    coarse = (max(2, width // detail), max(2, height // detail))
    noise = np.random.default_rng(seed).random((coarse[1], coarse[0], channels), np.float32)
    smooth = cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, channels)
    return (255 * np.clip(smooth, 0, 1)).astype(np.uint8)


def to_png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()


def to_jpeg(pixels: np.ndarray, kind: str = "plain", quality: int = 95) -> bytes:
    return cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality, *KINDS[kind]])[1].tobytes()


def difference(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.abs(first.astype(np.float64) - second.astype(np.float64))


def interpolate(pixels: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Bilinear, in double precision, at any places; beyond the edge as at it."""
    planes = np.moveaxis(pixels.astype(np.float64), -1, 0)
    return np.stack([ndimage.map_coordinates(plane, [rows, columns], order=1, mode="nearest") for plane in planes], -1)


def resize_again(box: np.ndarray, size: int) -> np.ndarray:
    """Bilinear, the corners of both images on top of each other, as tf.image.resize and OpenCV have it."""
    rows, columns = ((np.arange(size) + 0.5) * length / size - 0.5 for length in box.shape[:2])
    return interpolate(box, *np.meshgrid(rows, columns, indexing="ij"))


@pytest.mark.parametrize("channels", [1, 3])
def test_png_decodes_to_what_was_encoded(channels: int):
    pixels = paint(33, 47, channels)
    np.testing.assert_array_equal(decode(to_png(pixels), channels), pixels)


def test_png_is_decoded_as_stored_whatever_its_exif_data_say():
    """As its header has it, in which the pixels of a view are given."""
    file, pixels = io.BytesIO(), paint(33, 47)
    turned = Image.Exif()
    turned[0x0112] = 6  # to be shown turned by a quarter
    Image.fromarray(pixels).save(file, "PNG", exif=turned)
    np.testing.assert_array_equal(decode(file.getvalue(), 3), pixels)


@pytest.mark.parametrize("kind", KINDS)
def test_jpeg_of_every_kind_decodes_to_nearly_what_was_encoded(kind: str):
    pixels = paint(100, 130)
    encoded = to_jpeg(pixels, kind)
    assert read_shape(encoded) == (100, 130)
    assert difference(decode(encoded, 3), pixels).mean() < (6 if kind == "411" else 2)


def test_grey_and_rgb_are_converted():
    grey, rgb = paint(40, 50, 1), paint(40, 50, 3)
    luma = rgb @ np.array([0.299, 0.587, 0.114])
    for encode, tolerance in ((to_png, 0.51), (to_jpeg, 2)):
        three, one = decode(encode(grey), 3), decode(encode(rgb), 1)
        assert difference(three, grey).mean() <= tolerance
        np.testing.assert_array_equal(three[..., 0], three[..., 2])
        assert one.shape == (40, 50, 1)
        assert difference(one[..., 0], luma).mean() <= tolerance
    whole = View(0, 0, 40, 50)
    np.testing.assert_array_equal(render(grey, whole, 20, 3)[..., 1:2], render(grey, whole, 20, 1))
    assert difference(render(rgb, View(0, 0, 40, 40), 40, 1)[..., 0], luma[:, :40]).max() < 1


@pytest.mark.parametrize(("height", "width"), [(2, 1), (1, 9), (300, 1), (9, 40)])
def test_narrow_jpeg_is_rendered(height: int, width: int):
    pixels = paint(height, width, detail=30)
    for bottom in {1, height // 2 + 1, height}:
        for size in (1, 3):
            shown = render(to_jpeg(pixels, "444"), View(0, 0, bottom, width), size, 3)
            assert difference(shown, render(pixels, View(0, 0, bottom, width), size, 3)).mean() < 16


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 700), (300, 1), (375, 500)])
def test_shape_is_read_from_the_header(height: int, width: int):
    pixels = np.zeros((height, width, 3), np.uint8)
    assert read_shape(to_png(pixels)) == (height, width)
    assert read_shape(to_jpeg(pixels)) == (height, width)
    assert read_shape(to_jpeg(pixels)[:400]) == (height, width)  # of a few bytes


def test_shape_is_that_of_the_image_and_not_of_its_thumbnail():
    encoded, thumbnail = to_jpeg(paint(60, 80)), to_jpeg(paint(6, 8))
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    nested = encoded[:2] + segment + b"\xff\xff" + encoded[2:]
    assert read_shape(nested) == (60, 80)
    np.testing.assert_array_equal(decode(nested, 3), decode(encoded, 3))
    box = View(0, 5, 20, 60)
    np.testing.assert_array_equal(render(nested, box, 24, 3), render(encoded, box, 24, 3))


@hypothesis.given(
    top=st.integers(0, 60),
    left=st.integers(0, 60),
    rows=st.integers(1, 60),
    columns=st.integers(1, 60),
    flip=st.booleans(),
)
@hypothesis.settings(max_examples=50)
def test_render_equals_slow_bilinear_resizing(top: int, left: int, rows: int, columns: int, flip: bool):
    pixels = paint(120, 120, detail=4)
    view = View(top, left, top + rows, left + columns, flip)
    expected = resize_again(pixels[view.top : view.bottom, view.left : view.right], 30)
    shown = render(pixels, view, 30, 3)
    assert difference(shown[:, ::-1] if flip else shown, expected).max() <= 1
    np.testing.assert_array_equal(render(to_png(pixels), view, 30, 3), shown)


@pytest.mark.parametrize(("encode", "detail", "tolerance"), [(to_png, 3, 0.5), (to_jpeg, 40, 1.0)])
def test_render_shrinks_much_by_means_of_areas(encode, detail: int, tolerance: float):
    pixels = paint(400, 320, detail=detail)
    means = pixels.reshape(40, 10, 40, 8, 3).mean(axis=(1, 3))
    shown = render(encode(pixels), View(0, 0, 400, 320), 40, 3)
    assert difference(shown, means).mean() < tolerance


def test_render_shrinks_one_side_and_enlarges_the_other():
    pixels = paint(10, 300)
    shown = render(pixels, View(0, 0, 10, 300), 30, 3)
    expected = resize_again(pixels.reshape(10, 30, 10, 3).mean(axis=2), 30)
    assert difference(shown, expected).max() <= 2


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("degrees", [-10.0, 3.0, 45.0])
def test_render_rotates_as_slow_interpolation_does(degrees: float, flip: bool):
    pixels = paint(90, 110)
    view = View(10, 20, 80, 105, flip, degrees)
    size, angle = 64, np.deg2rad(degrees)
    y, x = np.meshgrid(*[np.arange(size) - (size - 1) / 2] * 2, indexing="ij")
    rows, columns = x * np.sin(angle) + y * np.cos(angle), x * np.cos(angle) - y * np.sin(angle)
    heights, widths = ((place / size + 0.5) * length - 0.5 for place, length in ((rows, 70), (columns, 85)))
    expected = interpolate(pixels[10:80, 20:105], heights, widths)
    inside = (heights > 0) & (heights < 69) & (widths > 0) & (widths < 84)
    outside = (heights < -1) | (heights > 70) | (widths < -1) | (widths > 85)
    shown = render(pixels, view, size, 3)
    shown = shown[:, ::-1] if flip else shown
    errors = difference(shown, expected)[inside]
    assert errors.mean() < 0.7
    assert errors.max() < 6  # OpenCV 4 rounds places to 1/32 of a pixel
    assert not shown[outside].any()


def test_render_rotates_counter_clockwise():
    pixels = paint(64, 64)
    shown = render(pixels, View(0, 0, 64, 64, degrees=90.0), 64, 3)
    assert difference(shown, np.rot90(pixels))[1:-1, 1:-1].max() <= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_render_of_a_jpeg_without_its_lower_rows_is_the_same(monkeypatch, kind: str, channels: int):
    encoded = to_jpeg(paint(200, 150), kind)
    boxes = [View(top, 3, bottom, 140) for top, bottom in ((0, 1), (5, 16), (0, 33), (90, 128), (7, 199), (0, 200))]
    cases = [(box, size) for box in boxes for size in (8, 40)]
    short = [render(encoded, box, size, channels) for box, size in cases]
    monkeypatch.setattr(images, "_END_OF_JPEG", b"none ends so")
    for (box, size), shown in zip(cases, short, strict=True):
        np.testing.assert_array_equal(render(encoded, box, size, channels), shown)


def test_render_of_a_jpeg_leaves_lower_rows_out(monkeypatch):
    heights, decode_jpeg = [], simplejpeg.decode_jpeg

    def spy(encoded: bytes, *arguments, **options) -> np.ndarray:
        heights.append(read_shape(encoded)[0])
        return decode_jpeg(encoded, *arguments, **options)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    for bottom in (50, 199, 200):
        render(to_jpeg(paint(200, 150)), View(0, 0, bottom, 50), 50, 3)
    assert heights == [50, 199, 200]


def test_render_of_a_jpeg_decodes_to_no_less_than_the_size_and_less_than_twice_that(monkeypatch):
    widths, decode_jpeg = [], simplejpeg.decode_jpeg

    def spy(*arguments, **options) -> np.ndarray:
        pixels = decode_jpeg(*arguments, **options)
        widths.append(pixels.shape[1])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", spy)
    encoded = to_jpeg(paint(300, 400))
    for side in (63, 64, 127, 128, 255, 256):
        render(encoded, View(0, 0, side, 290), 32, 3)
    assert widths == [400, 200, 200, 100, 100, 50]


@pytest.mark.parametrize("kind", ["plain", "progressive", "444"])
@pytest.mark.parametrize("edge", [0, 3, 11])
@pytest.mark.parametrize("side", [30, 63, 64, 130, 259, 400])  # decoded as it is, then by a half, a quarter, an eighth
def test_render_of_a_jpeg_equals_exact_decoding_and_resizing(kind: str, edge: int, side: int):
    encoded = to_jpeg(paint(420, 500, detail=50), kind)
    view = View(edge, 2 * edge + 1, edge + side, 2 * edge + 1 + side)
    exact = decode(encoded, 3)[view.top : view.bottom, view.left : view.right]
    assert difference(render(encoded, view, 32, 3), resize_again(exact, 32)).mean() < 1.3


@pytest.mark.parametrize("edges", [(0, 0, 0, 5), (3, 4, 9, 4), (-1, 0, 5, 5), (0, 0, 11, 5), (0, 0, 5, 13)])
def test_render_refuses_a_box_without_pixels_or_beyond_the_image(edges: tuple[int, ...]):
    for image in (paint(10, 12), to_jpeg(paint(10, 12))):
        with pytest.raises(ValueError, match="outside of 10 by 12"):
            render(image, View(*edges), 8, 3)


@pytest.mark.parametrize("call", [lambda: decode(b"", 2), lambda: render(paint(9, 9), View(0, 0, 1, 1), 8, 4)])
def test_channels_other_than_one_and_three_are_refused(call):
    with pytest.raises(ValueError, match="channels="):
        call()


JPEG, PNG = to_jpeg(paint(60, 80)), to_png(paint(60, 80))
HUGE = b"IHDR" + (10**5).to_bytes(4, "big") * 2 + PNG[24:29]  # a header of ten thousand million pixels
DAMAGED = {
    "empty": b"",
    "text": b"<html>not found</html>",
    "gif": b"GIF89a" + bytes(100),
    "zeros": bytes(1000),
    "magic of a JPEG": JPEG[:3],
    "JPEG cut in its header": JPEG[:60],
    "JPEG cut before its frame": JPEG[:150],
    "JPEG cut behind its header": JPEG[:700],
    "JPEG cut in the middle": JPEG[: len(JPEG) // 2],
    "JPEG without its end": JPEG[:-2],
    "JPEG without its last byte": JPEG[:-1],
    "JPEG with noise for a header": JPEG[:20] + np.random.default_rng(0).bytes(2000),
    "JPEG of no rows": JPEG.replace(
        (60).to_bytes(2, "big") + (80).to_bytes(2, "big"), bytes(2) + (80).to_bytes(2, "big")
    ),
    "JPEG of CMYK": simplejpeg.encode_jpeg(np.zeros((60, 80, 4), np.uint8), colorspace="CMYK"),
    "PNG cut in its header": PNG[:20],
    "PNG of more pixels than any has": PNG[:12] + HUGE + zlib.crc32(HUGE).to_bytes(4, "big") + PNG[33:],
    "PNG cut in the middle": PNG[: len(PNG) // 2],
    "PNG without its end": PNG[:-12],
    "PNG with a wrong byte": PNG[:500] + bytes([PNG[500] ^ 1]) + PNG[501:],
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_image_is_refused_in_one_line(damage: str):
    for call in (lambda image: decode(image, 3), lambda image: render(image, View(0, 0, 10, 10), 8, 3)):
        with pytest.raises(ValueError, match=r"JPEG|PNG|is empty") as caught:
            call(DAMAGED[damage])
        assert "\n" not in str(caught.value)


@hypothesis.given(
    image=st.sampled_from([JPEG, PNG]), place=st.integers(0, 10000), value=st.integers(0, 255), cut=st.booleans()
)
@hypothesis.settings(max_examples=300)
def test_image_with_a_wrong_byte_is_read_or_refused(image: bytes, place: int, value: int, cut: bool):
    place %= min(len(image), 700)  # where the headers are
    damaged = image[:place] + bytes([value]) + (b"" if cut else image[place + 1 :])
    error = why_unreadable(damaged)
    assert "\n" not in error


def why_unreadable(image: bytes) -> str:
    """Nothing where decoding and rendering work."""
    try:
        shape = read_shape(image)
        if max(shape) < 1000:  # else memory would be all that is tested
            assert decode(image, 3).shape == (*shape, 3)
            render(image, View(0, 0, 1, 1), 8, 3)
    except ValueError as error:
        return str(error)
    return ""


def test_render_in_many_threads_is_the_same():
    encoded = [to_jpeg(paint(150, 200, seed=seed)) for seed in range(20)]
    box = View(3, 5, 103, 155, True)
    alone = [render(each, box, 64, 3) for each in encoded]
    with ThreadPoolExecutor(4) as pool:
        for shown, expected in zip(pool.map(lambda each: render(each, box, 64, 3), encoded), alone, strict=True):
            np.testing.assert_array_equal(shown, expected)


@pytest.mark.parametrize("bottom", [60, 98])
@pytest.mark.parametrize("kind", ["revision", "stray"])
def test_jpegs_that_are_odd_but_whole_are_read(kind: str, bottom: int):
    """Of a version that JFIF never had, or with bytes between pixels and end: no damage, though decoders warn of it."""
    plain = to_jpeg(paint(100, 120))
    place = plain.index(b"JFIF\0") + 5
    odd = plain[:place] + b"\0\0" + plain[place + 2 :] if kind == "revision" else plain[:-2] + bytes(50) + plain[-2:]
    assert difference(decode(odd, 3), decode(plain, 3)).max() <= 2
    view = View(10, 10, bottom, 110)
    assert difference(render(odd, view, 24, 3), render(plain, view, 24, 3)).mean() < 2
    with pytest.raises(ValueError, match="damaged or cut short"):
        decode(odd[: len(odd) // 2], 3)


def test_png_is_decoded_without_lines_of_the_library(capfd: pytest.CaptureFixture):
    """A colour profile that is none, and damage, of which libpng itself would print."""
    file, pixels = io.BytesIO(), np.arange(96, dtype=np.uint8).reshape(4, 8, 3)
    Image.fromarray(pixels).save(file, "PNG", icc_profile=b"none")
    raw = file.getvalue()
    np.testing.assert_array_equal(decode(raw, 3), pixels)
    for damaged in (raw[:-20], raw[:-12], raw.replace(b"IDAT", b"IDAT\xff", 1), raw[:70] + b"\xff" + raw[71:]):
        with pytest.raises(ValueError, match="the PNG is damaged or cut short"):
            decode(damaged, 3)
    with pytest.raises(ValueError, match="is empty"):
        decode(b"", 3)
    assert capfd.readouterr() == ("", "")
