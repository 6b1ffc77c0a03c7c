"""The commands of README.md and docs/ are such as their doors take."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HELPER = Path(__file__).with_name("parse_commands.py")


def parse(commands: list[list[str]]) -> list[str]:
    done = subprocess.run(
        [sys.executable, HELPER], input=json.dumps(commands), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_commands_of_a_page_are_parsed_by_their_doors(command_page: str, read_commands: Callable):
    commands = list(read_commands(command_page))
    wrong = [(command, error) for command, error in zip(commands, parse(commands), strict=True) if error]
    assert wrong == []


def test_commands_that_no_door_takes_are_told():
    commands = [
        ["train", "--config=digits"],
        ["train", "--config=digits", "--config.run.nothing=1"],
        ["train", "--config.run.batch_size=0"],
        ["train", "--config=nowhere"],
        ["predict"],
        ["plan", "--hosts=0"],
    ]
    said = parse(commands)
    assert [bool(error) for error in said] == [False] + [True] * 5
    assert "run.batch_size=0" in said[2]
