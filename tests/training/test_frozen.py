"""What is frozen: not moved by a bit, not exchanged, but evaluated and saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxtern.training.run import loop
from jaxtern.training.run.calls import Call
from jaxtern.training.run.saved_run import open_run
from jaxtern.training.step.state import variables_of

FREEZE = ("norm/.*", "fc1/kernel[:, 3]", "fc2/kernel[::2]")
OPTIMIZERS = {
    "momentum": {"optimizer": "momentum", "weight_decay": 0.1},
    "adam": {"optimizer": "adam", "weight_decay": 0.1, "weight_decay_mode": "decoupled"},
    "lamb": {"optimizer": "lamb", "weight_decay": 0.1},
    "lars": {"optimizer": "lars", "weight_decay": 0.1},
    "muon": {"optimizer": "muon", "weight_decay": 0.1},
    "half": {"optimizer": "adam", "precision": "float16", "loss_scale": 256.0},
}
FIELDS = {"model": "tiny_norm", "num_workers": 2, "num_devices": 2, "batch_size": 16, "learning_rate": 0.1}


@pytest.mark.few("half*")
@pytest.mark.parametrize(
    ("optimizer", "method"),
    [(optimizer, method) for optimizer in OPTIMIZERS for method in ("ternary", "float")],
)
def test_frozen_tensors_and_slices_do_not_move_by_a_bit(take_steps: Callable, optimizer: str, method: str):
    run = take_steps(3, freeze=FREEZE, method=method, average_decay=0.5, **FIELDS | OPTIMIZERS[optimizer])
    first, last = run.states[0], run.states[3]
    assert set(first.frozen) == {"norm"}
    assert set(first.params) == {"fc1", "fc2"}
    jax.tree.map(np.testing.assert_array_equal, first.frozen, last.frozen)
    for name, index in (("fc1", (slice(None), 3)), ("fc2", slice(None, None, 2))):
        before, after = (state.params[name]["kernel"] for state in (first, last))
        assert before[index].tobytes() == after[index].tobytes()
        moved = before != after
        assert not moved[index].any()
        moved[index] = True
        assert np.mean(moved) > 0.5


@pytest.mark.slow
def test_negative_zeros_stay_negative(prepare: Callable):
    """As pruning leaves them: x * 0."""
    run = prepare(freeze=("fc1/kernel[:, 3]",), **FIELDS, optimizer="adam")
    kernel = run.state.params["fc1"]["kernel"]
    pruned = jax.device_put(kernel.at[:, 3].set(-0.0), kernel.sharding)
    run.state = run.state._replace(params={**run.state.params, "fc1": {"kernel": pruned}})
    loop.train(run)
    after = np.asarray(run.state.params["fc1"]["kernel"])[:, 3]
    np.testing.assert_array_equal(after, 0)
    assert np.all(np.signbit(after))


def test_train_only_is_to_freeze_the_others(take_steps: Callable):
    only = take_steps(3, train_only=("fc2/.*",), **FIELDS)
    frozen = take_steps(3, freeze=("fc1/.*", "norm/.*"), **FIELDS)
    assert set(only.states[3].frozen) == {"fc1", "norm"}
    jax.tree.map(np.testing.assert_array_equal, only.states[3], frozen.states[3])


def test_moments_of_frozen_layers_move_on(take_steps: Callable):
    states = take_steps(3, train_only=("fc2/.*",), **FIELDS).states
    assert np.all(states[3].moments["norm"]["mean"] != states[0].moments["norm"]["mean"])


def test_gradients_of_slices_do_not_enter_the_scale(prepare: Callable, tmp_path: Path):
    """Were they in it, it would be thousands of times as large, and with it the steps of SGD."""
    moved = []
    for freeze in (("fc2/kernel[0]",), ()):
        fields = FIELDS | {
            "clip_sigmas": 0.0,
            "optimizer": "sgd",
            "model": "tiny",
            "exclude": ("fc1/.*", "fc2/bias"),
        }
        run = prepare(tmp_path / str(len(freeze)), freeze=freeze, **fields)
        layer = run.state.params["fc1"]
        bias = jax.device_put(layer["bias"].at[0].set(1e4), layer["bias"].sharding)  # the input of fc2/kernel[0]
        params = {**run.state.params, "fc1": {**layer, "bias": bias}}
        batch = next(run.feed.batches(0))
        call = Call(1, 1)
        before = np.array(params["fc2"]["kernel"])
        state, _ = run.train_step(run.state._replace(params=params), run.feed.examples, batch, call)
        moved.append(np.abs(state.params["fc2"]["kernel"] - before).max())
    assert 0 < 1000 * moved[0] < moved[1]


@pytest.mark.slow
def test_frozen_tensors_are_not_sent_but_evaluated_and_saved(prepare: Callable, tmp_path: Path):
    run = prepare(freeze=("fc1/.*", "fc2/kernel[0]"), num_steps=2, **FIELDS)
    assert [tensor.path for tensor in run.wires[1].tensors] == ["fc2/bias", "fc2/kernel", "norm/bias", "norm/scale"]
    assert run.wires[1].elements == 10 + 120 + 12 + 12
    result = loop.train(run)
    variables: Any = variables_of(run.state)
    np.testing.assert_array_equal(variables["fc1"]["kernel"], run.state.frozen["fc1"]["kernel"])
    run.close()
    state = open_run(tmp_path / "run")[0].restore(2)
    assert set(state.frozen) == {"fc1"}
    jax.tree.map(np.testing.assert_array_equal, variables_of(state), variables)
    again = prepare(freeze=("fc1/.*", "fc2/kernel[0]"), num_steps=2, **FIELDS)
    assert again.evaluate() == result
