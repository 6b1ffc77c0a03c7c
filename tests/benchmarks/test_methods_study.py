"""benchmarks.accuracy.methods: every run has fields that a recipe takes, and the table is of what the runs wrote."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.accuracy import methods, study
from jaxtern.configs import cifar10
from jaxtern.training.recipe.recipe import Recipe


def pretend(workdir: Path, bits: float, accuracy: float) -> None:
    """What a run of 780 steps leaves behind."""
    workdir.mkdir(parents=True)
    (workdir / "curves.png").touch()
    logged = {"step": 100, "loss": 1.0, "examples_per_second": 640.0, "sent_bits_per_element": bits}
    tested = [{"step": step, "test/loss": 1.0, "test/precision_at_1": accuracy} for step in (390, 780)]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in [logged, *tested]))


def test_table_and_plot_are_of_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Those that are not there are left empty; bits are means over the run, milliseconds are those of 128 examples."""
    trained = []

    def train(config: str, fields: list[str], workdir: Path) -> None:
        trained.append((config, workdir.name, fields))
        pretend(workdir, 0.25 * len(trained), 0.5 + len(trained) / 100)

    monkeypatch.setattr(study, "train", train)
    arguments = ["./data", f"--out={tmp_path}", "--variants", "float", "dgc_0.1", "--optimizers", "momentum"]
    monkeypatch.setattr(sys, "argv", ["methods", *arguments, "--override", "mean.density_warmup=()", "run.seed=3"])
    methods.main()
    assert [(config, name) for config, name, _ in trained] == [
        ("cifar10", "momentum_float"),
        ("cifar10", "momentum_dgc_0.1"),
    ]
    assert [each for each in trained[1][2] if "warmup" in each] == ["mean.density_warmup=()"]  # twice, they would join
    assert all(fields[0] == "data.name=./data" and fields[-1] == "run.seed=3" for _, _, fields in trained)
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert rows[0] == ["float", "0.25", "51.00", "200", "", ""]
    assert rows[6] == ["top_k as DGC, .1 %", "0.50", "52.00", "200", "", ""]
    assert (tmp_path / "methods.png").stat().st_size > 1000


@pytest.mark.parametrize("optimizer", methods.OPTIMIZERS)
@pytest.mark.parametrize("variant", methods.VARIANTS)
def test_runs_have_fields_that_a_recipe_takes(variant: str, optimizer: str):
    """DGC has the momentum itself, and none under Adam."""
    recipe = Recipe.from_dict(cifar10.get_config().to_dict()).replace(**methods.fields_of(variant, optimizer))
    is_dgc = variant.startswith("dgc")
    assert recipe.run.num_workers == 4
    assert recipe.optimizer.name == ("sgd" if is_dgc and optimizer == "momentum" else optimizer)
    assert not is_dgc or recipe.mean.momentum == (0.9 if optimizer == "momentum" else 0.0)
