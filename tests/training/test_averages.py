"""Moving averages: their closed form, and that they are what is evaluated, exported and started from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.evaluate import Evaluator
from jaxtern.training.run import loop
from jaxtern.training.run.evaluation import evaluate
from jaxtern.training.run.saved_run import open_run
from jaxtern.training.step.state import variables_of

FIELDS = {"model": "tiny_norm", "num_workers": 2, "num_devices": 2, "batch_size": 16, "learning_rate": 0.5}


def expected(trees: list[Any], decay: float, of_moments: bool) -> list[np.ndarray]:
    """a <- d a + (1 - d) x in float64, d = min(decay, (1 + t) / (10 + t)) in update t = 1, 2, ...; of moments,
    which are of no batch before it, update 1 takes x alone.
    """
    averages = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(trees[0])]
    for t, tree in enumerate(trees[1:], start=1):
        d = 0 if of_moments and t == 1 else min(decay, (1 + t) / (10 + t))
        averages = [
            d * a + (1 - d) * np.asarray(x, np.float64) for a, x in zip(averages, jax.tree.leaves(tree), strict=True)
        ]
    return averages


@pytest.mark.few("0.9999")
@pytest.mark.parametrize("decay", [0.3, 0.9999])
def test_averages_follow_weights_and_moments(take_steps: Callable, decay: float):
    """The first is that of update 1, so 2/11 of the first weights stay; .3 is reached in update 3."""
    run = take_steps(5, average_decay=decay, **FIELDS)
    for i in (1, 5):
        states = run.states[: i + 1]
        for name in ("params", "moments"):
            closed = expected([getattr(state, name) for state in states], decay, name == "moments")
            for leaf, other in zip(jax.tree.leaves(getattr(states[-1].averages, name)), closed, strict=True):
                np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)
    last = run.states[5]
    assert np.abs(last.averages.params["fc1"]["kernel"] - last.params["fc1"]["kernel"]).max() > 1e-3
    assert np.abs(last.averages.moments["norm"]["mean"] - last.moments["norm"]["mean"]).max() > 1e-3


def test_averages_begin_with_the_first_weights(take_steps: Callable):
    first = take_steps(5, average_decay=0.3, **FIELDS).states[0]
    jax.tree.map(np.testing.assert_array_equal, tuple(first.averages), (first.params, first.moments))


def test_averages_change_nothing_of_training(take_steps: Callable):
    """But for how the compiler rounds."""
    with_them, without = (take_steps(5, average_decay=decay, **FIELDS) for decay in (0.3, 0.0))
    assert without.states[0].averages is None
    last = [jax.tree.leaves(run.states[2].params) for run in (with_them, without)]
    for leaf, other in zip(*last, strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_averages_are_what_is_evaluated(prepare: Callable, tmp_path: Path):
    """By the run, and by those who open its folder, the evaluator among them; frozen tensors have none."""
    run = prepare(average_decay=0.9, num_steps=3, freeze=("fc2/bias",), **FIELDS)
    result = loop.train(run)
    run.close()
    averages, state = run.state.averages, run.state
    inputs, graph = run.inputs, run.program.graph
    mixed = {**averages.params, "fc2": {**averages.params["fc2"], "bias": state.frozen["fc2"]["bias"]}}
    mixed["norm"] = {**averages.params["norm"], **averages.moments["norm"]}
    assert jax.tree.structure(mixed) == jax.tree.structure(variables_of(state))
    assert evaluate(graph, mixed, inputs.dataset.test, inputs.task) == result
    last = evaluate(graph, variables_of(state, averaged=False), inputs.dataset.test, inputs.task)
    assert last.loss != result.loss
    saved, inputs = open_run(tmp_path / "run")
    split, variables = inputs.dataset.test, variables_of(saved.restore(3))
    assert evaluate(saved.graph, variables, split, inputs.task) == result
    for averaged, found in ((True, result), (False, last), (True, result)):
        record = Evaluator(tmp_path / "run", "test", None, averaged).evaluate()
        kind = {"step": 3, "split": "test", "averaged": averaged}
        assert record == kind | {"digest": record["digest"]} | found.scalars()
    assert len((tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()) == 2
