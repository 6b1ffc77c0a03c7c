"""What several processes print: whole lines with the number of their process before them."""

import asyncio
import re
from typing import TextIO

_GLOO = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]* : \d+")  # tells nothing, from C++


async def copy_lines(reader: asyncio.StreamReader, process: int, stream: TextIO) -> None:
    """Prints what comes, line by line, until its end; but for what gloo says of its connections.

    Args:
      reader: of what the process prints.
      process: its number.
      stream: to print on.
    """
    rest = b""
    while chunk := await reader.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if (told := _GLOO.sub(b"", line)) or not line:
                print(f"[{process}] {_as_seen(told)}", file=stream, flush=True)
    if _as_seen(rest):
        print(f"[{process}] {_as_seen(rest)}", file=stream, flush=True)


def _as_seen(line: bytes) -> str:
    """The text that a terminal would show of a line with carriage returns: the last part that is not blank."""
    drawn = [part for part in line.decode(errors="replace").split("\r") if part.strip()]
    return drawn[-1].rstrip() if drawn else ""
