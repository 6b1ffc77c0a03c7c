"""benchmarks.accuracy: each run is trained once, in order; what is cut off goes on; figures are those of the runs."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.accuracy import __main__ as command, report, study
from benchmarks.accuracy.methods import METHODS, OPTIMIZERS

TRAINER = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path([word for word in sys.argv if word.startswith("--workdir=")][0].partition("=")[2])
folder.mkdir(exist_ok=True)
(folder / "config.json").write_text(sys.argv[-1])
if "sign" in folder.name:
    sys.exit(3)
if "float" not in folder.name and not (folder / "saved").exists():
    def save(*_):
        (folder / "saved").touch()
        sys.exit(143)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "terngrad" in folder.name else save)
    (folder / "began").write_text(str(os.getpid()))
    time.sleep(60)
records = [{"step": 10, "examples_per_second": 100.0, "sent_bits_per_element": 2.0, "coded_bits_per_element": 1.5,
            "sent_bytes_per_step": 1e6}]
records += [{"step": step, "test/loss": 2 - step / 20, "test/precision_at_1": step / 40} for step in (10, 20)]
(folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\\n" for record in records))
"""

SHORT = "--override", "run.num_steps=20"


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the trainer: signs fail, float ends at once, others wait until they are stopped, terngrad is deaf."""
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    words = study.Run.command

    def run_script(run: study.Run, out: Path) -> list[str]:
        recipe = study.read(run.words()).to_dict()
        return [sys.executable, str(script), *words(run, out)[3:], json.dumps(recipe)]

    monkeypatch.setattr(study.Run, "command", run_script)
    return tmp_path


@pytest.fixture(autouse=True)
def same_handler() -> Iterator[None]:
    """The command changes it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run_study(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """The command's exit status, or what it ends with."""
    monkeypatch.setattr(sys, "argv", ["accuracy", *words, f"--out={folder / 'runs'}", f"--csv={folder / 'a.csv'}"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return ended.value.code


def test_a_study_that_is_cut_off_goes_on_and_names_what_failed(
    trainer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    words = ["digits", "--methods", "float", "ternary", "sign", "--seeds", "0", "1", "--jobs", "14", *SHORT]
    status = run_study(trainer, monkeypatch, *words, "--minutes", "0.03")
    folder = trainer / "runs" / "digits"
    failed = {f"{each}: status 3; see {each}.log" for each in folder.glob("sign_2_recipe_?")}
    assert set(status.splitlines()) == failed  # in the order in which they ended
    assert str(folder / "ternary_2_recipe_0") in capsys.readouterr().out.partition("not finished:")[2]
    assert (folder / "ternary_2_recipe_0" / "saved").exists()
    assert {row["method"] for row in study.read_rows(trainer / "a.csv")} == {"float"}

    before = (folder / "float_2_recipe_0" / "metrics.jsonl").stat().st_mtime_ns
    assert run_study(trainer, monkeypatch, *words[:4], "--seeds", "0", "1", *SHORT) == 0
    assert (folder / "float_2_recipe_0" / "metrics.jsonl").stat().st_mtime_ns == before  # not trained again
    rows = study.read_rows(trainer / "a.csv")
    assert [(row["method"], row["seed"], row["step"], row["test_accuracy"]) for row in rows] == [
        (method, seed, step, accuracy)
        for method in ("float", "ternary")
        for seed in ("0", "1")
        for step, accuracy in (("10", "25"), ("20", "50"))
    ]
    assert "not finished" not in capsys.readouterr().out


def test_nothing_is_left_behind_by_a_study_that_is_stopped(trainer: Path, monkeypatch: pytest.MonkeyPatch):
    """Not even what does not listen; and what was finished is kept."""
    monkeypatch.setattr(study, "PATIENCE", 0.3)
    folder = trainer / "runs" / "digits"
    began = [folder / f"{method}_2_recipe_0" / "began" for method in ("terngrad", "ternary")]

    def stop() -> None:
        while not all(path.exists() and path.read_text() for path in began):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop)
    thread.start()
    methods = "--methods", "float", "terngrad", "ternary"
    assert run_study(trainer, monkeypatch, "digits", *methods, "--seeds", "0", "--jobs", "3", *SHORT) == 130
    thread.join()
    for path in began:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
    assert {row["method"] for row in study.read_rows(trainer / "a.csv")} == {"float"}


def test_a_finished_run_is_not_taken_for_one_of_another_recipe(
    trainer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    words = "digits", "--methods", "float", "--seeds", "0"
    assert run_study(trainer, monkeypatch, *words, *SHORT) == 0
    before = (trainer / "a.csv").read_text()
    assert run_study(trainer, monkeypatch, *words, "--override", "run.num_steps=10") == 2
    assert "float_2_recipe_0 was trained with run.num_steps=20, not 10; take another" in capsys.readouterr().err
    assert (trainer / "a.csv").read_text() == before


def test_rows_take_the_place_of_those_of_the_same_run_only(tmp_path: Path):
    path, rows = tmp_path / "a.csv", rows_of_two()
    study.merge_rows(path, rows)
    study.merge_rows(path, [row | {"test_accuracy": "1"} for row in rows if row["method"] == "float"])
    found = study.read_rows(path)
    assert [row["test_accuracy"] for row in found if row["method"] == "float"] == ["1"] * 4
    assert [row for row in found if row["method"] == "ternary"] == [row for row in rows if row["method"] == "ternary"]


def test_runs_come_seed_by_seed_with_each_recipe_s_own_fields(trainer: Path, monkeypatch: pytest.MonkeyPatch):
    ran = []
    monkeypatch.setattr(study, "train_all", lambda runs, *_: ran.extend(runs) or {})
    words = ["digits", "mnist", "--methods", "float", "ternary", "--workers", "2", "8", "--seeds", "3", "1", "3"]
    common, own = "run.log_every=1", "run.num_steps=2"
    run_study(trainer, monkeypatch, *words, "--override", common, "--override_of", f"mnist:{own}")
    assert [(run.recipe, run.seed, run.workers, run.method) for run in ran] == [
        (recipe, seed, workers, method)
        for recipe in ("digits", "mnist")
        for seed in (3, 1)
        for workers in (2, 8)
        for method in ("float", "ternary")
    ]
    assert [run.overrides for run in ran] == [(common,)] * 8 + [(common, own)] * 8


def test_a_field_is_given_once():
    """A tuple that is given twice would be joined."""
    run = study.Run("cifar10", ("data.name=./x",), "recipe", ("mean.density_warmup=()", "run.seed=3"), "dgc_1", 2, 0)
    words = [word for word in run.words() if "warmup" in word or "seed" in word]
    assert sorted(words) == ["--config.mean.density_warmup=()", "--config.run.seed=3"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_runs_have_fields_that_a_recipe_takes(method: str, optimizer: str, name: str):
    """DGC has the momentum itself, also that of the recipe, and none under Adam."""
    recipe = study.read(study.Run(name, (), optimizer, ("run.num_steps=600",), method, 4, 0).words())
    by_momentum = (optimizer, name) == ("recipe", "mnist") or optimizer == "momentum"
    assert method[:3] != "dgc" or (recipe.mean.momentum, recipe.optimizer.name) == (
        (0.9, "sgd") if by_momentum else (0.0, "adam")
    )
    assert (recipe.run.num_steps, recipe.run.num_workers) == (600, 4)


def rows_of_two() -> list[study.Row]:
    """Float and ternary of cifar10 with two seeds; at the last step float has 70 and 72 %, ternary 69 and 72."""
    scores = {("float", 0): 70, ("float", 1): 72, ("ternary", 0): 69, ("ternary", 1): 72}
    rows = []
    for (method, seed), score in scores.items():
        named = ["cifar10", "recipe", "", method, "2", str(seed)]
        sent = ["32", "32", "4e6"] if method == "float" else ["1.6", "1.4", "2e5"]
        for step in (10, 20):
            tested = [str(step), "1.0", str(score - 20 + step)]
            rows.append(dict(zip(study.COLUMNS, [*named, *sent, "100", *tested], strict=True)))
    return rows


def test_the_table_compares_with_float_of_the_same_seeds():
    lines = report.make_tables(rows_of_two()).splitlines()
    assert lines[0] == "cifar10 recipe, 20 steps"
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]
    assert cells == [
        ["float", "2", "32.00", "32.00", "2", "71.00", "1.41", "", ""],
        ["ternary", "2", "1.60", "1.40", "2", "70.50", "2.12", "-0.50", "0.50"],
    ]


def test_runs_of_another_length_are_another_study():
    rows = [row | {"seed": "2"} for row in rows_of_two() if row["step"] == "10"]
    assert [results[0].scores for _, results in report.studies([*rows_of_two(), *rows])] == [{0: 70, 1: 72}, {2: 62}]


def test_time_is_of_steps_and_of_what_they_send(tmp_path: Path):
    ((_, results),) = report.studies(rows_of_two())
    assert report.minutes_of(results[0], 0.1, "100mbit") == pytest.approx(20 * (0.1 + 0.32) / 60)
    report.plot_all(rows_of_two(), {"cifar10": 0.1}, tmp_path / "plots")
    assert (tmp_path / "plots" / "cifar10_recipe.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--override", "run.seed"], "'run.seed': must be section.field=value"),
        (["digits", "--override", "run.seeds=1"], "run.seeds"),
        (["digits", "--override_of", "run.seed=1"], "'run.seed=1': must be RECIPE:section.field=value"),
        (["digits", "--override_of", "mnist:run.seed=1"], "--override_of mnist:...: must be of a recipe that is given"),
        (["digits", "--workers", "3"], "digits by float, 3 workers: config: run.batch_size=64: must be a multiple"),
        (["cifar10=nowhere"], "cifar10=nowhere: there is no nowhere"),
        (["cifar"], "--config=cifar: no such recipe is installed; available:"),
        (["digits", "digits"], "digits: must be the name of an installed recipe, given once"),
        (["digits", "--methods", "best"], "invalid choice: 'best'"),
        (["digits", "--minutes", "nan"], "'nan': must be a number, 0 or more"),
        (["--step_seconds", "cifar10"], "'cifar10': must be RECIPE=SECONDS"),
        ([], "a.csv"),
    ],
)
def test_bad_arguments_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, words: list[str], message: str
):
    assert run_study(tmp_path, monkeypatch, *words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "must have the columns recipe,optimizer,overrides,"),
        (",".join(study.COLUMNS) + "\nmnist,recipe,,best,2,0,1,1,1,1,10,1,1\n", "line 2 is no evaluation of a method"),
        (",".join(study.COLUMNS) + "\nmnist,recipe,,float,2,0,1,1,1,1\n", "line 2 is no evaluation of a method"),
    ],
)
def test_a_file_of_something_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, text: str, message: str
):
    (tmp_path / "a.csv").write_text(text)
    assert run_study(tmp_path, monkeypatch) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_trainer_takes_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One run from the command line to its row."""
    short = ["run.num_steps=4", "run.evaluate_every=4", "run.checkpoint_every=4"]
    words = "--methods", "ternary", "--seeds", "0", "--override", *short
    assert run_study(tmp_path, monkeypatch, "digits", *words) == 0
    (row,) = study.read_rows(tmp_path / "a.csv")
    last = (tmp_path / "runs/digits/ternary_2_recipe_0/metrics.jsonl").read_text().splitlines()[-1]
    assert float(row["test_accuracy"]) == pytest.approx(100 * json.loads(last)["test/precision_at_1"], rel=1e-4)
    assert (row["overrides"], row["step"]) == (" ".join(short), "4")
