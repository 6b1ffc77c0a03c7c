"""The transformer is trained and evaluated on text as LeNet is on images: all targets count, none twice."""

import math
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxtern.models.transformer import Transformer
from jaxtern.training.run import loop
from jaxtern.training.run.evaluation import evaluate
from jaxtern.training.run.run import Run
from jaxtern.training.saved.trees import digest

pytestmark = pytest.mark.slow

TEXT = Path(__file__).parents[1] / "data" / "shakespeare.txt"
FIELDS = {
    "preprocessing": "text", "sequence_length": 16, "model": "transformer", "num_workers": 2, "batch_size": 8,
    "optimizer": "adam", "learning_rate": 5e-3,
}  # fmt: skip


def small(folder: Path) -> str:
    """The path of a text of 71 windows of 16 characters, of which the last 7 are the test split."""
    path = folder / "small.txt"
    path.write_bytes(TEXT.read_bytes()[: 71 * 16 + 5])
    return str(path)


def test_text_is_learnt_and_goes_on_where_it_stopped(prepare: Callable[..., Run], read_jsonl: Callable, tmp_path: Path):
    """From knowing nothing; and 15 steps and 15 more are 30, to the bit."""
    fields = FIELDS | {"data": small(tmp_path)}
    straight = prepare(tmp_path / "straight", **fields, num_steps=30)
    result = loop.train(straight)
    losses = [record["loss"] for record in read_jsonl(tmp_path / "straight" / "metrics.jsonl") if "loss" in record]
    assert abs(losses[0] - math.log(straight.inputs.dataset.num_classes)) < 0.1
    assert np.mean(losses[-5:]) < 0.85 * losses[0]
    assert result.num_examples == 7 * 16
    first = prepare(tmp_path / "parts", **fields, num_steps=15)
    loop.train(first)
    first.close()
    second = prepare(tmp_path / "parts", **fields, num_steps=30, allow_config_change=True)
    assert int(second.state.step) == 15
    assert loop.train(second) == result
    assert digest(second.state) == digest(straight.state)


def test_text_has_no_predictions_of_images(prepare: Callable[..., Run], run_door: Callable, tmp_path: Path):
    """In one line, and not once for each checkpoint."""
    run = prepare(**FIELDS, data=small(tmp_path))
    run.close()
    predictions = tmp_path / "labels.csv"
    done = run_door("evaluate", f"--workdir={run.workdir}", f"--predictions={predictions}", cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert done.err == f"error: --predictions={predictions}: must be left out, as the data of this run are text\n"


def test_evaluation_of_text_is_over_all_characters(prepare: Callable[..., Run], tmp_path: Path):
    run = prepare(**FIELDS, data=small(tmp_path))
    split = run.inputs.dataset.train
    result = evaluate(run.program.graph, run.state.params, split, run.inputs.task)
    tokens = split.examples.astype(np.int32)
    model = nnx.merge(run.program.graph, run.state.params)
    assert isinstance(model, Transformer)
    logits = np.asarray(model(jnp.asarray(tokens[:, :-1])), np.float64)
    right = np.take_along_axis(logits, tokens[:, 1:, None], axis=-1)
    losses = np.log(np.exp(logits).sum(axis=-1)) - right[..., 0]
    better = np.sum(logits > right, axis=-1)
    assert result.num_examples == split.size * 16 == losses.size
    np.testing.assert_allclose(result.loss, losses.mean(), rtol=1e-6)
    assert (result.precision_at_1, result.recall_at_5) == (np.mean(better == 0), np.mean(better < 5))
