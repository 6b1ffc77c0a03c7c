"""Reads JSON that may be malformed."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Reads a JSON file; raises OSError if it cannot be read, ValueError if it is not JSON."""
    return parse_json(path.read_bytes())


def parse_json(text: str | bytes) -> Any:
    """Parses JSON in UTF-8; raises ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
