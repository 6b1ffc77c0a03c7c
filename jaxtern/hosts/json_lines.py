"""The messages between processes of a cluster: lines of JSON, {"jaxtern": version of the protocol, ...}."""

import json
from typing import Any

PROTOCOL = 2
LONGEST_LINE = 1 << 16  # bytes


def encode_line(content: dict[str, Any]) -> bytes:
    """Encodes a message as one line."""
    return json.dumps({"jaxtern": PROTOCOL, **content}).encode() + b"\n"


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Decodes a line; None for anything but a message of this protocol."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and content.get("jaxtern") == PROTOCOL else None
