"""What several processes print, on one screen: whole lines with the number of their process, one progress bar."""

import asyncio
import re
import sys
from typing import TextIO

_CLEAR_LINE = "\r\x1b[K"
_GLOO = re.compile(rb"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.[^\n]* : \d+")  # tells nothing, from C++


class Screen:
    """Standard output and error of the launcher; below all lines the progress bar, if there is one."""

    def __init__(self):
        self._bar = ""

    def line(self, text: str, stream: TextIO) -> None:
        """A line above the bar."""
        self._erase()
        print(text, file=stream, flush=True)
        self._draw()

    def bar(self, text: str) -> None:
        """Replaces the bar; it lies on standard error, which is a terminal."""
        self._erase()
        self._bar = text
        self._draw()

    def _erase(self) -> None:
        if self._bar:
            print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)

    def _draw(self) -> None:
        if self._bar:
            print(self._bar, end="", file=sys.stderr, flush=True)


async def copy_lines(reader: asyncio.StreamReader, process: int, screen: Screen, stream: TextIO, bar: bool) -> None:
    """Prints what comes, line by line, until its end; but for what gloo says of its connections.

    Args:
      reader: of what the process prints.
      process: its number.
      screen: to print on.
      stream: of the screen.
      bar: whether what is not yet a line is a progress bar, to be shown as it is.
    """
    rest = b""
    while chunk := await _read(reader):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if (told := _GLOO.sub(b"", line)) or not line:
                screen.line(f"[{process}] {_as_seen(told)}", stream)
        if bar:
            screen.bar(_prefixed(process, rest))
    if bar:
        screen.bar("")
    if _as_seen(rest):
        screen.line(_prefixed(process, rest), stream)


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(1 << 16)
    except OSError:  # how a terminal says that nobody writes to it any more
        return b""


def _prefixed(process: int, line: bytes) -> str:
    seen = _as_seen(line)
    return f"[{process}] {seen}" if seen else ""


def _as_seen(line: bytes) -> str:
    """What a terminal shows of a line in which a bar was drawn again and again: the last one that is not blank."""
    drawn = [part for part in line.decode(errors="replace").split("\r") if part.strip()]
    return drawn[-1].rstrip() if drawn else ""
