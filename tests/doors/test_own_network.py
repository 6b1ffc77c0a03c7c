"""A user's own network, as an example of the docs writes it: trained, evaluated, exported, used."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, run_door: Callable) -> Path:
    """Where the example lies, and `run`, which it has trained."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(EXAMPLES / "two_layers.py", folder)
    done = run_door("train", "--config=./two_layers.py", "--config.run.num_steps=100", "--workdir=run", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hidden/kernel" in done.stdout
    return folder


def test_own_network_is_evaluated_and_exported_from_its_file(folder: Path, run_door: Callable):
    evaluated = run_door("evaluate", "--workdir=run", "--networks=two_layers.py", cwd=folder)
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    (found,) = re.findall(r"precision@1 (.*?)%", evaluated.stdout)
    assert float(found) > 80
    exported = run_door("export", "--workdir=run", "--networks=two_layers.py", "--out=exported", cwd=folder)
    assert (exported.returncode, exported.stderr) == (0, "")
    assert exported.stdout.startswith("two_layers of step 100 (9,610 numbers)")
    (folder / "two_layers.py").rename(folder / "gone.py")
    try:
        predicted = run_door("predict", "exported", "--dataset=digits", "--out=predicted.csv", cwd=folder)
    finally:
        (folder / "gone.py").rename(folder / "two_layers.py")
    assert (predicted.returncode, predicted.stderr) == (0, "")
    assert len((folder / "predicted.csv").read_text().splitlines()) == 361


@pytest.mark.parametrize("door", ["evaluate", "export"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "error: model.name='two_layers': must be one of lenet, "),
        (["--networks=nowhere.py"], "error: --networks=nowhere.py: FileNotFoundError: "),
        (["--networks=broken.py"], "error: --networks=broken.py: ZeroDivisionError: division by zero"),
    ],
)
def test_network_that_is_not_there_ends_in_a_line(
    folder: Path, run_door: Callable, door: str, flags: list[str], words: str
):
    (folder / "broken.py").write_text("1 / 0\n")
    out = ["--out=refused"] if door == "export" else []
    done = run_door(door, "--workdir=run", *flags, *out, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1
    assert not (folder / "refused").exists()


@pytest.mark.slow
def test_network_of_too_many_logits_is_not_exported(tmp_path: Path, run_door: Callable):
    text = (EXAMPLES / "two_layers.py").read_text()
    assert text.count("num_classes, rngs") == 1
    (tmp_path / "wide.py").write_text(text.replace("num_classes, rngs", "num_classes + 1, rngs"))
    trained = run_door("train", "--config=./wide.py", "--config.run.num_steps=2", "--workdir=run", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    done = run_door("export", "--workdir=run", "--networks=wide.py", "--out=exported", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: model.name='two_layers': gives 11 logits: must be 10\n")
    assert not (tmp_path / "exported").exists()


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["--config.run.dry_run=True"], ["--config.run.num_steps=2", "--workdir=run"]])
def test_own_loss_that_gives_one_number_is_refused_in_a_line(tmp_path: Path, run_door: Callable, flags: list[str]):
    text = (EXAMPLES / "squares.py").read_text()
    own = 'jaxtern.training.LOSSES["squares"] = lambda *given: {"loss": squares(*given)["loss"].mean()}\n'
    (tmp_path / "mean.py").write_text(f"import jaxtern.training\n{text}\n{own}")
    done = run_door("train", "--config=./mean.py", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: model.loss='squares': must give a dict with 'loss', all of the targets' shape"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_own_loss_trains_and_is_evaluated_from_its_file(tmp_path: Path, run_door: Callable):
    """As an example of the docs writes it; without its file the run is refused."""
    shutil.copy(EXAMPLES / "squares.py", tmp_path)
    flags = "--config=./squares.py", "--config.run.num_steps=100", "--workdir=run"
    done = run_door("train", *flags, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^step 100: loss 0\.\d+ \(squares\), accuracy ", done.stdout, re.MULTILINE)
    assert re.search(r"^step 100: test loss 0\.\d+ \(squares\), .*, confidence 0\.\d+$", done.stdout, re.MULTILINE)
    evaluated = run_door("evaluate", "--workdir=run", "--networks=squares.py", cwd=tmp_path)
    assert (evaluated.returncode, evaluated.stderr) == (0, "")
    (record,) = map(json.loads, (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines())
    assert record["metrics/confidence"] > 0
    assert record["precision_at_1"] > 0.6
    refused = run_door("evaluate", "--workdir=run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "model.loss='squares': must be one of cross_entropy" in refused.stderr
