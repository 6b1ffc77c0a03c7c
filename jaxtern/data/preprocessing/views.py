"""Which part of an image the model is shown: boxes of source pixels, drawn for training, central for evaluation.

Resizing an image and then cropping it is the same as resizing a box of it, so every family's geometry comes down to
a box, which `jaxtern.data.images.render` turns into a square of `size` pixels; only what lies in it need be decoded.
Edges are rounded to whole source pixels. The lengths that the families' papers give for crops of 224 pixels (256, 512)
grow and shrink with the size. A view for training is a function of the generator alone, besides the image.
"""

import math
from typing import NamedTuple

import numpy as np

_CROP = 224  # what the papers crop


class View(NamedTuple):
    """A box of an image, in whole source pixels, and how it is turned.

    Attributes:
      top, left, bottom, right: its edges, half-open: row `bottom` and column `right` lie outside.
      flip: whether it is mirrored, left to right.
      degrees: by which it is rotated counter-clockwise about its centre, after it was resized and before it is flipped.
    """

    top: int
    left: int
    bottom: int
    right: int
    flip: bool = False
    degrees: float = 0.0


def alexnet_view(generator: np.random.Generator, height: int, width: int, boxes: np.ndarray, size: int) -> View:
    """A crop of the image resized, whatever its aspect, to a square of 256 (for a size of 224), flipped or not.

    Krizhevsky et al. (2012), section 4.1.

    Args:
      generator: of the random choices, of this example alone.
      height, width: of the image, in pixels.
      boxes: float32[k, 4], of objects: (ymin, xmin, ymax, xmax) as fractions of the image; not looked at.
      size: of the crop, in pixels.
    """
    side = _scaled(256, size)
    top, left = generator.integers(0, side - size, 2, endpoint=True)
    vertical, horizontal = height / side, width / side
    view = _enclose(top * vertical, left * horizontal, size * vertical, size * horizontal, height, width)
    return view._replace(flip=_toss(generator))


def alexnet_central_view(height: int, width: int, size: int) -> View:
    """The middle of the square that `alexnet_view` crops."""
    share = size / _scaled(256, size)
    return _centre(height * share, width * share, height, width)


def vgg_view(generator: np.random.Generator, height: int, width: int, boxes: np.ndarray, size: int) -> View:
    """A square crop of the image resized so that its shortest side is one of 256 to 512 (for a size of 224).

    Simonyan and Zisserman (2015), section 3.1. Arguments are those of `alexnet_view`.
    """
    shortest = generator.integers(_scaled(256, size), _scaled(512, size), endpoint=True)
    scale = min(height, width) / shortest
    top, left = (
        generator.integers(0, max(0, round(length / scale) - size), endpoint=True) for length in (height, width)
    )
    view = _enclose(top * scale, left * scale, size * scale, size * scale, height, width)
    return view._replace(flip=_toss(generator))


def central_view(height: int, width: int, size: int) -> View:
    """The central square of the image resized so that its shortest side is 256 (for a size of 224)."""
    side = min(height, width) * size / _scaled(256, size)
    return _centre(side, side, height, width)


def inception_view(generator: np.random.Generator, height: int, width: int, boxes: np.ndarray, size: int) -> View:
    """A box of .05 to 1 of the area, aspect .75 to 1.33, with at least .1 of some object in it, flipped or not.

    Szegedy et al. (2015), section 6, as tf.image.sample_distorted_bounding_box draws it: the aspect first, then the
    height among those that keep the area; the whole image after 100 boxes that hold too little of every object.
    Arguments are those of `alexnet_view`; where there are no `boxes`, the whole image is the object.
    """
    objects = _in_pixels(boxes, height, width)
    for _ in range(100):
        found = _draw_box(generator, height, width)
        if found is not None and _covers(found, objects):
            return found._replace(flip=_toss(generator))
    return View(0, 0, height, width, _toss(generator))


def inception_central_view(height: int, width: int, size: int) -> View:
    """The middle 87.5 % of both sides, as tf.image.central_crop cuts it."""
    top, left = (int((length - length * 0.875) / 2) for length in (height, width))
    return View(top, left, height - top, width - left)


def vgg_f_view(generator: np.random.Generator, height: int, width: int, boxes: np.ndarray, size: int) -> View:
    """A box of .8 to 1 of the area, aspect 3/4 to 4/3, rotated by up to 10 degrees either way, flipped or not.

    Area and logarithm of the aspect are uniform, as in torchvision's RandomResizedCrop: up to ten boxes until one fits
    into the image, then the central one of the allowed aspect. Arguments are those of `alexnet_view`.
    """
    view = _resized_crop(generator, height, width)
    degrees = float(generator.uniform(-10.0, 10.0))
    return view._replace(flip=_toss(generator), degrees=degrees)


def _draw_box(generator: np.random.Generator, height: int, width: int) -> View | None:
    """One box of .05 to 1 of the area, or None where rounding to pixels leaves none of this aspect."""
    aspect = generator.uniform(0.75, 1.33)
    smallest, largest = 0.05 * height * width, 1.0 * height * width
    highest = min(height, round(math.sqrt(largest / aspect)), int((width + 0.5) / aspect))
    least = min(round(math.sqrt(smallest / aspect)), highest)
    box_height = int(generator.integers(least, highest, endpoint=True))
    box_width = round(box_height * aspect)
    if not (1 <= box_height <= height and 1 <= box_width <= width and smallest <= box_height * box_width <= largest):
        return None
    top, left = _place(generator, box_height, box_width, height, width)
    return View(top, left, top + box_height, left + box_width)


def _in_pixels(boxes: np.ndarray, height: int, width: int) -> list[View]:
    """Boxes of objects, of which some may have no pixels; the whole image where there are none."""
    return [
        View(int(top * height), int(left * width), int(bottom * height), int(right * width))
        for top, left, bottom, right in np.asarray(boxes).tolist() or [[0, 0, 1, 1]]
    ]


def _covers(box: View, objects: list[View]) -> bool:
    """Whether at least .1 of the pixels of some object lie in the box."""
    for each in objects:
        edges = (
            max(box.top, each.top),
            max(box.left, each.left),
            min(box.bottom, each.bottom),
            min(box.right, each.right),
        )
        if _area(View(*edges)) >= 0.1 * _area(each) > 0:
            return True
    return False


def _area(box: View) -> int:
    return max(0, box.bottom - box.top) * max(0, box.right - box.left)


def _resized_crop(generator: np.random.Generator, height: int, width: int) -> View:
    low, high = 3 / 4, 4 / 3
    for _ in range(10):
        area = height * width * generator.uniform(0.8, 1.0)
        aspect = math.exp(generator.uniform(math.log(low), math.log(high)))
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= box_height <= height and 1 <= box_width <= width:
            top, left = _place(generator, box_height, box_width, height, width)
            return View(top, left, top + box_height, left + box_width)
    return _centre(min(height, width / low), min(width, height * high), height, width)


def _place(generator: np.random.Generator, box_height: int, box_width: int, height: int, width: int) -> tuple[int, int]:
    """Top and left of a box, every place in the image as likely."""
    top = generator.integers(0, height - box_height, endpoint=True)
    return int(top), int(generator.integers(0, width - box_width, endpoint=True))


def _toss(generator: np.random.Generator) -> bool:
    return bool(generator.random() < 0.5)


def _scaled(length: int, size: int) -> int:
    """A length that belongs to a crop of 224 pixels, for a crop of `size`; never less than that."""
    return max(size, round(length * size / _CROP))


def _centre(box_height: float, box_width: float, height: int, width: int) -> View:
    return _enclose((height - box_height) / 2, (width - box_width) / 2, box_height, box_width, height, width)


def _enclose(top: float, left: float, box_height: float, box_width: float, height: int, width: int) -> View:
    """The box with its size and then its place rounded to pixels: at least one, and inside the image."""
    rows, columns = min(height, max(1, round(box_height))), min(width, max(1, round(box_width)))
    first_row, first_column = min(max(0, round(top)), height - rows), min(max(0, round(left)), width - columns)
    return View(first_row, first_column, first_row + rows, first_column + columns)
