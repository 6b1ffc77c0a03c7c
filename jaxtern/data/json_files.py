"""JSON of files that may hold anything."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Reads a file of JSON; raises OSError if it cannot be read, ValueError as `parse_json` does."""
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Reads JSON from text in UTF-8; raises ValueError if it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
