"""The commands of README.md and docs/ are such as their doors take."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HELPER = Path(__file__).with_name("parse_commands.py")
TRIED = [  # the first alone is right
    ["train", "--config=digits"],
    ["train", "--config=digits", "--config.run.nothing=1"],
    ["train", "--config.run.batch_size=0"],
    ["train", "--config=nowhere"],
    ["predict"],
    ["plan", "--hosts=0"],
]


@pytest.fixture(scope="module")
def said(pages: list[str], read_commands: Callable) -> dict[str, str]:
    """What the doors say against each command, as JSON; of all pages at once, as imports take seconds."""
    commands = [*TRIED, *(command for page in pages for command in read_commands(page))]
    done = subprocess.run(
        [sys.executable, HELPER], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    return dict(zip(map(json.dumps, commands), json.loads(done.stdout), strict=True))


def test_commands_of_a_page_are_parsed_by_their_doors(command_page: str, read_commands: Callable, said: dict[str, str]):
    commands = list(read_commands(command_page))
    assert commands
    assert [(command, error) for command in commands if (error := said[json.dumps(command)])] == []


def test_commands_that_no_door_takes_are_told(said: dict[str, str]):
    errors = [said[json.dumps(command)] for command in TRIED]
    assert [bool(error) for error in errors] == [False] + [True] * 5
    assert "run.batch_size=0" in errors[2]
