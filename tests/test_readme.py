"""The code of the README runs."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

README = Path(__file__).parents[1] / "README.md"


def test_readme_training_loop_runs_and_learns():
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    scope = {"mesh": mesh, "loss": lambda params, batch: jnp.mean((batch @ params - 1.0) ** 2)}
    exec(snippet, scope)
    batch = jax.random.normal(jax.random.key(0), (32, 3)) + 1.0
    params = jnp.zeros((3,))
    state, losses = scope["optimizer"].init(params), []
    for _ in range(300):
        losses.append(float(scope["loss"](params, batch)))
        params, state = scope["step"](params, state, batch)
    assert losses[-1] < 0.8 * losses[0]
