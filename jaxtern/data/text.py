"""A text file as windows of characters, each of which is predicted from those before it."""

from pathlib import Path

import numpy as np

from jaxtern.data.dataset import Dataset, Split

MAX_CHARACTERS = 256  # that a uint8 tells apart
_TEST_SHARE = 10  # the last tenth


def load_text(path: str | Path, sequence_length: int) -> Dataset:
    """Reads a text; what is learnt from its first nine tenths is tested on the last.

    A character's class is its place among all different characters of the file, in the order of their code points.
    Example i is the characters from place i T to place (i + 1) T, both included, so that every character but the first
    is predicted exactly once. What is left at the end, fewer than T characters, belongs to none.

    Args:
      path: of a file in UTF-8.
      sequence_length: T, characters that are predicted in an example.

    Returns:
      Splits of uint8[n, 1, T + 1, 1] and labels 0; the names of the classes are the characters.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not in UTF-8, has more than 256 different characters, or fewer than two examples.
    """
    given = f"dataset={str(path)!r}"
    if not Path(path).is_file():
        raise FileNotFoundError(f"{given}: no such file")
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{given}: is no text in UTF-8: {error.reason} at byte {error.start:,}") from None
    characters, places = np.unique(np.frombuffer(text.encode("utf-32-le"), "<u4"), return_inverse=True)
    if len(characters) > MAX_CHARACTERS:
        raise ValueError(f"{given}: has {len(characters):,} different characters, must be {MAX_CHARACTERS} at most")
    num_examples = (len(text) - 1) // sequence_length
    if num_examples < 2:
        need = f"sequence_length={sequence_length} needs {2 * sequence_length + 1:,} or more"
        raise ValueError(f"{given}: has {len(text):,} characters; {need}")
    windows = cut_windows(places.astype(np.uint8), sequence_length)
    first = num_examples - max(1, num_examples // _TEST_SHARE)
    names = tuple(map(chr, characters.tolist()))
    return Dataset(as_split(windows[:first]), as_split(windows[first:]), len(names), names)


def cut_windows(classes: np.ndarray, sequence_length: int) -> np.ndarray:
    """uint8[characters] to uint8[examples, sequence_length + 1], where a window's last is also the next one's first."""
    return np.lib.stride_tricks.sliding_window_view(classes, sequence_length + 1)[::sequence_length].copy()


def as_split(windows: np.ndarray) -> Split:
    """uint8[n, T + 1] as feeds take them: images of one row and one channel, whose labels say nothing."""
    return Split(windows[:, None, :, None], np.zeros(len(windows), np.int32))
