"""Time to an accuracy, for benchmarks.training: a run of training, part by part, with evaluations between them."""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.netlab import parse_rate
from benchmarks.netlab.measuring import START_SECONDS
from benchmarks.netlab.team import Team
from benchmarks.training.step import create_network
from benchmarks.training.worker import load_splits
from jaxtern.data.order import ExampleOrder

TORCH = ("torch fp32", "torch fp16", "torch PowerSGD 4")  # DistributedDataParallel, and its hooks
STEP_SECONDS = 10.0  # that a step may take without the network, before its host is given up

HEADING = """| hosts | rate | model | batch a host | mean | exchange | steps | seconds | accuracy | ms a step |
| ---: | ---: | --- | ---: | --- | --- | ---: | ---: | ---: | ---: |"""


def measure_accuracy(team: Team, row: dict, arguments: argparse.Namespace) -> dict:
    """Trains until the accuracy is reached, or for the most steps that are allowed.

    Returns:
      Steps, seconds of the slowest host of every part, added, and accuracy in the end; (steps, seconds, accuracy) of
      every evaluation; and an error if it was not reached.
    """
    wire = 8 * 8 * row["elements"] / parse_rate(row["rate"])
    timeout = START_SECONDS + arguments.every * (STEP_SECONDS + 4 * wire)
    steps, seconds, accuracy = 0, 0.0, 0.0
    evaluations: list[tuple[int, float, float]] = []
    while accuracy < arguments.time_to and steps < arguments.max_steps:
        answers = team.ask("train", timeout, first=steps, steps=arguments.every, batch=row["batch"])
        steps += arguments.every
        seconds += max(answer["seconds"] for answer in answers)
        counts = team.ask("evaluate", START_SECONDS)
        accuracy = sum(count["right"] for count in counts) / sum(count["examples"] for count in counts)
        evaluations.append((steps, seconds, accuracy))
    found = {"steps": steps, "seconds": seconds, "accuracy": accuracy, "evaluations": evaluations}
    if accuracy < arguments.time_to:
        found["error"] = f"did not reach {arguments.time_to:.1%}"
    return found


def save_task(file: Path, data_dir: str, seed: int, num_examples: int) -> None:
    """Writes LeNet's first weights, MNIST, and the order of so many examples, for workers that may have no JAX."""
    train, test = load_splits(data_dir)
    layers = create_network("lenet", seed)[1]
    task = {f"{layer}/{name}": np.asarray(leaf) for layer, own in layers.items() for name, leaf in own.items()}
    task |= {"order": ExampleOrder(train.size, seed).batch(0, num_examples)}
    task |= {"images": train.images, "labels": train.labels, "test_images": test.images, "test_labels": test.labels}
    np.savez(file, allow_pickle=False, **task)


def as_line(row: dict) -> str:
    figures = [row["hosts"], row["rate"], row["model"], row["batch"], row["variant"], row["exchange"], row["steps"]]
    figures += [f"{row['seconds']:.1f}", f"{row['accuracy']:.2%}", f"{1e3 * row['seconds'] / row['steps']:.1f}"]
    error = f" {row['error']}" if "error" in row else ""
    return f"| {' | '.join(map(str, figures))} |{error}"
