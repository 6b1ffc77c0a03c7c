"""Final test accuracy of a recipe, float against ternary, over workers and seeds.

    python -m benchmarks.accuracy --config=mnist --data_dir=FOLDER --workers 2 4 8 --seeds 0 1 2 --out=runs/accuracy

Runs `python -m jaxtern.train` once for each, in a folder of its own under OUT; a run that is there already is finished
or taken as it is, so a study that was stopped goes on with the same command. The table is OUT/table.md.
"""

import argparse
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

from jaxtern.training.metrics import read_metrics


def main() -> None:
    arguments = _parse()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    variants = [("float", workers) for workers in arguments.float_workers]
    variants += [("ternary", workers) for workers in arguments.workers]
    for seed in arguments.seeds:
        for codec, workers in variants:
            command = _command(arguments, codec, workers, seed)
            print(shlex.join(command), flush=True)
            with (out / f"{codec}_{workers}_{seed}.log").open("a") as log:
                subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
            (out / "table.md").write_text(make_table(out, variants, arguments.seeds))
    print(make_table(out, variants, arguments.seeds))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="mnist", help="recipe")
    parser.add_argument("--data_dir", help="folder of the dataset")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8], help="of the ternary runs")
    parser.add_argument("--float_workers", type=int, nargs="*", default=[4], help="of the float runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="runs/accuracy")
    parser.add_argument("--override", nargs="*", default=[], help="field=value, for every run")
    return parser.parse_args()


def _command(arguments: argparse.Namespace, codec: str, workers: int, seed: int) -> list[str]:
    fields = [f"codec={codec}", f"num_workers={workers}", f"seed={seed}", *arguments.override]
    if arguments.data_dir:
        fields.append(f"data_dir={arguments.data_dir}")
    workdir = _workdir(Path(arguments.out), codec, workers, seed)
    overrides = [f"--config.{field}" for field in fields]
    return [sys.executable, "-m", "jaxtern.train", f"--config={arguments.config}", *overrides, f"--workdir={workdir}"]


def _workdir(out: Path, codec: str, workers: int, seed: int) -> Path:
    return out / f"{codec}_{workers}_{seed}"


def make_table(out: Path, variants: list[tuple[str, int]], seeds: list[int]) -> str:
    """Test precision@1 in percent at the last step: a row for each variant, a column for each seed."""
    header = ["codec", "workers", *(f"seed {seed}" for seed in seeds), "mean", "deviation"]
    rows = [header, ["---"] * len(header)]
    for codec, workers in variants:
        results = [_final_accuracy(_workdir(out, codec, workers, seed)) for seed in seeds]
        done = [result for result in results if result is not None]
        mean = f"{statistics.mean(done):.2f}" if done else ""
        deviation = f"{statistics.stdev(done):.2f}" if len(done) > 1 else ""
        cells = ["" if result is None else f"{result:.2f}" for result in results]
        rows.append([codec, str(workers), *cells, mean, deviation])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _final_accuracy(workdir: Path) -> float | None:
    """Of the last evaluation, if the run has reached its last step."""
    if not (workdir / "curves.png").exists():
        return None
    evaluations = [record for record in read_metrics(workdir) if "test/precision_at_1" in record]
    return 100 * evaluations[-1]["test/precision_at_1"]


if __name__ == "__main__":
    main()
