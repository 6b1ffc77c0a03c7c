"""JSON of files that may hold anything."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Reads a file of JSON.

    Raises:
      OSError: if it cannot be read.
      ValueError: if it is no JSON, or nested too deeply.
    """
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Reads JSON from text in UTF-8; errors are those of `read_json`."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
