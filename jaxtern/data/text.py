"""Cuts a text file into windows, whose characters a network predicts from those before."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxtern.data.dataset import Dataset, refuse_arguments

MAX_CHARACTERS = 256  # different ones, as classes are uint8
_TEST_SHARE = 10  # the last tenth is the test split


class Windows(NamedTuple):
    """Windows of characters. The label of a character is the one after it, so there are no separate labels."""

    examples: np.ndarray  # uint8[n, T + 1], the classes of the characters
    labels: None = None

    @property
    def size(self) -> int:
        return len(self.examples)


def open_text(
    name: str,
    sequence_length: int,
    data_dir: str | None = None,
    train_split: str = "train",
    test_split: str | None = None,
) -> Dataset:
    """Reads a text file. Its first nine tenths are the training split, its last tenth the test split.

    A character's class is its rank, by code point, among the different characters of the file. Example i holds the
    characters at places i T to (i + 1) T inclusive, so every character but the first is predicted exactly once. The
    fewer than T characters that remain at the end are not used.

    Args:
      name: path of a file in UTF-8, with a slash in it.
      sequence_length: T, predicted characters of an example.
      data_dir, train_split, test_split: must be the defaults.

    Returns:
      Splits of `Windows`; the class names are the characters.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if the file is not in UTF-8, has more than 256 different characters or fewer than two examples; for a
        name without a slash, a folder, or an argument that is not the default.
    """
    given, path = f"dataset={name!r}", Path(name)
    if "/" not in name or path.is_dir():
        hint = f"; for the file of that name write ./{name}" if path.is_file() else ""
        raise ValueError(f"{given}: preprocessing='text' takes the path of a text file, with a slash{hint}")
    refuse_arguments(name, data_dir=data_dir, train_split=train_split, test_split=test_split)
    if not path.is_file():
        raise FileNotFoundError(f"{given}: no such file")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{given}: is no text in UTF-8: {error.reason} at byte {error.start:,}") from None
    characters, places = np.unique(np.frombuffer(text.encode("utf-32-le"), "<u4"), return_inverse=True)
    if len(characters) > MAX_CHARACTERS:
        raise ValueError(f"{given}: has {len(characters):,} different characters, must be {MAX_CHARACTERS} at most")
    num_examples = (len(text) - 1) // sequence_length
    if num_examples < 2:
        need = f"sequence_length={sequence_length} needs {2 * sequence_length + 1:,} or more"
        raise ValueError(f"{given}: has {len(text):,} characters; {need}")
    starting_anywhere = np.lib.stride_tricks.sliding_window_view(places.astype(np.uint8), sequence_length + 1)
    windows = starting_anywhere[::sequence_length].copy()
    first = num_examples - max(1, num_examples // _TEST_SHARE)
    names = tuple(map(chr, characters.tolist()))
    return Dataset(Windows(windows[:first]), Windows(windows[first:]), len(names), names)
