"""Reads JSON that may be malformed."""

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Reads a JSON file; raises OSError if it cannot be read, ValueError if it is not JSON or nested too deeply."""
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
