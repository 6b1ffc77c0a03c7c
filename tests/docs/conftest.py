"""The pages, README.md first, the blocks of code in them, and the commands of doors in these.

A comment right above a block, `<!-- not run: REASON -->`, keeps it from being run or parsed.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]
QUICK = {"README.md", "docs/index.md", "docs/methods.md"}  # the Python of other pages trains, or compiles much
BLOCK = re.compile(r"(?:^<!-- not run[^:\n]*: (.+?) -->\n)?^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"-m jaxtern\.(evaluate|export|launch|plan|predict|prepare|train)\b(.*)")
FILLED_IN = re.compile(r"\$\(\(.*?\)\)|\$\(.*?\)|\$\{[^}]*\}|\$\w+")  # by a shell


class Block(NamedTuple):
    """A block of code of a page.

    Attributes:
      line: where it begins.
      kind: its language.
      code: what it holds.
      reason: why it is neither run nor parsed; None: it is.
    """

    line: int
    kind: str
    code: str
    reason: str | None


def read_blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [Block(text.count("\n", 0, m.start(3)), m[2], m[3], m[1]) for m in BLOCK.finditer(text)]


def read_commands(page: str) -> Iterator[list[str]]:
    """A door and its arguments, of every command in a page's shell blocks; what `launch` starts is a second one."""
    for block in read_blocks(page):
        if block.kind in ("sh", "bash") and not block.reason:
            for door, rest in COMMAND.findall(block.code.replace("\\\n", " ")):
                arguments = _split(FILLED_IN.sub("1", rest))
                yield [door, *arguments]
                if door == "launch":
                    yield ["train", *arguments[arguments.index("--") + 1 :]]


def _split(text: str) -> list[str]:
    """As a shell does, up to the end of the command; a quote that was opened before it ends there."""
    if text.count('"') % 2:
        text = text.rpartition('"')[0]
    lexer, arguments = shlex.shlex(text, posix=True, punctuation_chars="|&;"), []
    lexer.whitespace_split = True
    for token in lexer:
        if set(token) <= set("|&;"):
            break
        arguments.append(token)
    return arguments


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`python_page` and `command_page` are the pages that have some."""
    if "python_page" in metafunc.fixturenames:
        pages = [page for page in PAGES if any(b.kind == "python" and not b.reason for b in read_blocks(page))]
        metafunc.parametrize("python_page", [_mark(page) for page in pages])
    if "command_page" in metafunc.fixturenames:
        metafunc.parametrize("command_page", [page for page in PAGES if any(read_commands(page))])


def _mark(page: str):
    return pytest.param(page, marks=() if page in QUICK else pytest.mark.slow)


@pytest.fixture(scope="session")
def pages() -> list[str]:
    return PAGES


@pytest.fixture(scope="session", name="read_blocks")
def _read_blocks() -> Callable[[str], list[Block]]:
    return read_blocks


@pytest.fixture(scope="session", name="read_commands")
def _read_commands() -> Callable[[str], Iterator[list[str]]]:
    return read_commands


@pytest.fixture(scope="session")
def start() -> Callable[..., subprocess.Popen]:
    """Starts a process that runs code, and does not know of this one's devices."""

    def start(code: str, folder: Path, *arguments: object, **variables: object) -> subprocess.Popen:
        own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_NUM_CPU", "JAXTERN_"))}
        own |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        own |= {name: str(value) for name, value in variables.items()}
        command, pipe = [sys.executable, "-c", code, *map(str, arguments)], subprocess.PIPE
        return subprocess.Popen(command, cwd=folder, env=own, stdout=pipe, stderr=pipe, text=True)

    return start


@pytest.fixture(scope="session")
def finish() -> Callable[..., list[str]]:
    """What each process has printed, when all have ended well."""

    def finish(*processes: subprocess.Popen) -> list[str]:
        try:
            said = [process.communicate(timeout=900) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert not any(process.returncode for process in processes), [errors for _, errors in said]
        return [output for output, _ in said]

    return finish
