"""`python -m benchmarks.accuracy.language`: the runs it starts and its table; the figures are another matter."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from flax import traverse_util

from benchmarks.accuracy import language
from jaxtern.configs import charlm
from jaxtern.training.recipe.recipe import Recipe

RUNS = {"float_0": 1.5, "float_1": 1.7, "ternary_0": 1.56, "ternary_1": 1.8}  # test loss at the end


def pretend(workdir: Path) -> None:
    """Leaves what a run leaves."""
    workdir.mkdir()
    (workdir / "curves.png").touch()
    end = {"test/loss": RUNS[workdir.name], "test/precision_at_1": 0.5}
    bits = 48.0 if workdir.name.startswith("float") else 3.64
    records = [
        {"step": 10, "loss": 3.0, "sent_bits_per_element": bits},
        {"step": 10, "test/loss": 3.0, "test/precision_at_1": 0.2},
        {"step": 20, **end},
    ]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def test_study_trains_each_variant_and_seed_and_makes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    commands = []

    def run(command: list[str], **_: object) -> None:
        commands.append(command)
        pretend(Path(command[-1].removeprefix("--workdir=")))

    monkeypatch.setattr(subprocess, "run", run)
    arguments = ["a.txt", "--variants", "float", "ternary", "--seeds", "0", "1", "--override", "run.num_steps=20"]
    monkeypatch.setattr(sys, "argv", ["language", *arguments, f"--out={tmp_path / 'out'}"])
    language.main()
    assert len(commands) == 4
    assert {"--config=charlm", "--config.data.name=./a.txt", "--config.run.num_steps=20"} <= set(commands[3])
    assert {"--config.run.seed=1", "--config.mean.method=ternary", f"--workdir={tmp_path / 'out' / 'ternary_1'}"} <= {
        *commands[3]
    }
    table = (tmp_path / "out" / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]] == [
        ["float", "48.00", "1.500", "1.700", "1.600", "0.141", "", "50.0"],
        ["ternary", "3.64", "1.560", "1.800", "1.680", "0.170", "+0.080", "50.0"],
    ]
    rows = json.loads((tmp_path / "out" / "language.json").read_text())["rows"]
    assert (rows[2]["steps"], rows[2]["losses"]) == ([10, 20], [3.0, 1.56])
    assert (tmp_path / "out" / "language.png").stat().st_size > 1000


def test_study_has_variants_that_recipes_take():
    recipe = Recipe.from_dict(charlm.get_config().to_dict())
    made = {
        recipe.replace(run={"num_steps": 600}, **traverse_util.unflatten_dict(fields, sep="."))
        for fields in language.VARIANTS.values()
    }
    assert len(made) == len(language.VARIANTS) == len(language.NAMES) == len(language.STYLES)
    assert language.NAMES.keys() == language.VARIANTS.keys()


def test_study_takes_no_run_that_is_not_finished(tmp_path: Path):
    pretend(tmp_path / "float_0")
    assert len(language.read_rows(tmp_path, ["float", "ternary"], [0])) == 1
    (tmp_path / "float_0" / "curves.png").unlink()
    assert language.read_rows(tmp_path, ["float", "ternary"], [0]) == []
