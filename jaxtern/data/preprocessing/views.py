"""The part of an image that a model is shown: random boxes for training, central ones for evaluation.

Resizing an image and then cropping it equals resizing a box of it. So every family's geometry comes down to a box of
source pixels, with edges rounded to whole pixels, which `jaxtern.data.images.render` makes a square of `size` pixels.
The lengths that papers give for crops of 224 pixels, such as 256 and 512, scale with the size.
"""

import math
from typing import NamedTuple

import numpy as np

_CROP = 224  # side of the papers' crops in pixels


class View(NamedTuple):
    """A box of an image in whole source pixels, and how it is turned after it was resized."""

    top: int
    left: int
    bottom: int  # the first row below the box
    right: int  # the first column right of it
    flip: bool = False  # whether to mirror it, left to right, after the rotation
    degrees: float = 0.0  # counter-clockwise rotation about the centre


def alexnet_view(generator: np.random.Generator, height: int, width: int, size: int) -> View:
    """A random crop of the image resized to a square of 256 (for a size of 224), flipped half the time.

    Krizhevsky et al. (2012), section 4.1.

    Args:
      generator: of the random choices for this example alone.
      height, width: of the image, in pixels.
      size: side of the result in pixels.
    """
    side = _scaled(256, size)
    top, left = generator.integers(0, side - size, 2, endpoint=True)
    vertical, horizontal = height / side, width / side
    view = _enclose(top * vertical, left * horizontal, size * vertical, size * horizontal, height, width)
    return view._replace(flip=_toss(generator))


def alexnet_central_view(height: int, width: int, size: int) -> View:
    """The centre of the square from which `alexnet_view` crops."""
    share = size / _scaled(256, size)
    return _centre(height * share, width * share, height, width)


def vgg_view(generator: np.random.Generator, height: int, width: int, size: int) -> View:
    """A random crop of the image resized to a shortest side of 256 to 512 (for a size of 224), flipped half the time.

    Simonyan and Zisserman (2015), section 3.1. The arguments are those of `alexnet_view`.
    """
    shortest = generator.integers(_scaled(256, size), _scaled(512, size), endpoint=True)
    scale = min(height, width) / shortest
    top, left = (
        generator.integers(0, max(0, round(length / scale) - size), endpoint=True) for length in (height, width)
    )
    view = _enclose(top * scale, left * scale, size * scale, size * scale, height, width)
    return view._replace(flip=_toss(generator))


def central_view(height: int, width: int, size: int) -> View:
    """The central square of the image resized to a shortest side of 256 (for a size of 224)."""
    side = min(height, width) * size / _scaled(256, size)
    return _centre(side, side, height, width)


def inception_view(generator: np.random.Generator, height: int, width: int, size: int) -> View:
    """A random box of 10 to 100 % of the area, aspect .75 to 1.33, flipped half the time.

    Szegedy et al. (2015), section 6, drawn as tf.image.sample_distorted_bounding_box does where no object is marked:
    first the aspect, then a height for 5 to 100 % of the area, until the box has a tenth of it. After 100 smaller boxes
    it takes the whole image. The arguments are those of `alexnet_view`.
    """
    for _ in range(100):
        found = _draw_box(generator, height, width)
        if found and (found.bottom - found.top) * (found.right - found.left) >= 0.1 * (height * width):
            return found._replace(flip=_toss(generator))
    return View(0, 0, height, width, _toss(generator))


def inception_central_view(height: int, width: int, size: int) -> View:
    """The middle 87.5 % of both sides, as cut by tf.image.central_crop."""
    top, left = (int((length - length * 0.875) / 2) for length in (height, width))
    return View(top, left, height - top, width - left)


def vgg_f_view(generator: np.random.Generator, height: int, width: int, size: int) -> View:
    """A random box of 80 to 100 % of the area, aspect 3/4 to 4/3, rotated by up to 10 degrees, flipped half the time.

    As in torchvision's RandomResizedCrop, area and logarithm of the aspect are uniform; if none of ten boxes fits, it
    takes the central one of the allowed aspect. The arguments are those of `alexnet_view`.
    """
    view = _resized_crop(generator, height, width)
    degrees = float(generator.uniform(-10.0, 10.0))
    return view._replace(flip=_toss(generator), degrees=degrees)


def _draw_box(generator: np.random.Generator, height: int, width: int) -> View | None:
    """A random box of 5 to 100 % of the area; None if rounding to pixels leaves none of the drawn aspect."""
    aspect = generator.uniform(0.75, 1.33)
    smallest, largest = 0.05 * height * width, 1.0 * height * width
    highest = min(height, round(math.sqrt(largest / aspect)), int((width + 0.5) / aspect))
    least = min(round(math.sqrt(smallest / aspect)), highest)
    box_height = int(generator.integers(least, highest, endpoint=True))
    box_width = round(box_height * aspect)
    if not (1 <= box_height <= height and 1 <= box_width <= width and smallest <= box_height * box_width <= largest):
        return None
    return _place(generator, box_height, box_width, height, width)


def _resized_crop(generator: np.random.Generator, height: int, width: int) -> View:
    low, high = 3 / 4, 4 / 3
    for _ in range(10):
        area = height * width * generator.uniform(0.8, 1.0)
        aspect = math.exp(generator.uniform(math.log(low), math.log(high)))
        box_height, box_width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 1 <= box_height <= height and 1 <= box_width <= width:
            return _place(generator, box_height, box_width, height, width)
    return _centre(min(height, width / low), min(width, height * high), height, width)


def _place(generator: np.random.Generator, box_height: int, box_width: int, height: int, width: int) -> View:
    """A box of this size at a uniformly random place in the image."""
    top = int(generator.integers(0, height - box_height, endpoint=True))
    left = int(generator.integers(0, width - box_width, endpoint=True))
    return View(top, left, top + box_height, left + box_width)


def _toss(generator: np.random.Generator) -> bool:
    return bool(generator.random() < 0.5)


def _scaled(length: int, size: int) -> int:
    """Scales a length given for crops of 224 pixels to crops of `size`; the result is never below `size`."""
    return max(size, round(length * size / _CROP))


def _centre(box_height: float, box_width: float, height: int, width: int) -> View:
    return _enclose((height - box_height) / 2, (width - box_width) / 2, box_height, box_width, height, width)


def _enclose(top: float, left: float, box_height: float, box_width: float, height: int, width: int) -> View:
    """Rounds a box to whole pixels, first its size and then its place: at least one pixel, inside the image."""
    rows, columns = min(height, max(1, round(box_height))), min(width, max(1, round(box_width)))
    first_row, first_column = min(max(0, round(top)), height - rows), min(max(0, round(left)), width - columns)
    return View(first_row, first_column, first_row + rows, first_column + columns)
