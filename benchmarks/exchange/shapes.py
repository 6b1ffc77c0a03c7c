"""The gradients that are exchanged: their shapes, and whether a mean of them may be one."""

import math

from benchmarks.commands import parse_elements

Shapes = tuple[tuple[int, ...], ...]

# AlexNet on one GPU (Krizhevsky, One weird trick, 2014): 61.1 M parameters, of which 16 tensors.
ALEXNET: Shapes = (
    *((64, 3, 11, 11), (64,), (192, 64, 5, 5), (192,), (384, 192, 3, 3), (384,), (256, 384, 3, 3), (256,)),
    *((256, 256, 3, 3), (256,), (4096, 9216), (4096,), (4096, 4096), (4096,), (1000, 4096), (1000,)),
)
SIDE = 1024  # of the matrices that other sizes are made of, as a network's are, and as PowerSGD needs them


def parse_size(text: str) -> str:
    """The type of --elements: "alexnet", or a number in digits."""
    return text if text == "alexnet" else str(parse_elements(text))


def shapes_of(size: str) -> Shapes:
    """Of "alexnet", or of so many elements: matrices of 1024 x 1024, or one smaller matrix, as square as can be."""
    if size == "alexnet":
        return ALEXNET
    elements = int(size)
    if elements % SIDE**2 == 0:
        return ((SIDE, SIDE),) * (elements // SIDE**2)
    rows = next(rows for rows in range(math.isqrt(elements), 0, -1) if elements % rows == 0)
    return ((rows, elements // rows),)


def count_elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def is_plausible(slope: float, spread: float, elements: int, is_biased: bool = False) -> bool:
    """Whether an estimate m of a mean f may be one: <m, f> / <f, f> is 1, up to clipping and chance; above 0 if biased.

    `spread` is |m - f|^2 / |f|^2; were m - f independent of f, the slope would vary by the root of spread / elements.
    """
    if not math.isfinite(spread):
        return False
    return slope > 0 if is_biased else abs(slope - 1) < 0.05 + 5 * math.sqrt(spread / elements)
