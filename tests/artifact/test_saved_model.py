"""A SavedModel predicts in a process that has TensorFlow and no JAX."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxtern.artifact import saved_model
from jaxtern.artifact.predictor import Predictor
from jaxtern.artifact.saved_model import write_saved_model
from jaxtern.artifact.storage import write_artifact

ROOT = Path(__file__).resolve().parents[2]
WRITE = """
import sys
from pathlib import Path
from jaxtern.artifact.saved_model import write_saved_model
from jaxtern.artifact.storage import read_artifact
write_saved_model(Path(sys.argv[2]), read_artifact(Path(sys.argv[1])))
"""
SERVE = """
import json, sys
sys.modules["jax"] = None  # importing it is an error
import numpy as np
import tensorflow as tf
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
images = np.load(sys.argv[2])
found = [serve(images=tf.constant(part)) for part in (images[:1], images[1:])]
joined = {name: np.concatenate([each[name].numpy() for each in found]) for name in found[0]}
print(json.dumps({name: array.astype(str if name == "labels" else float).tolist() for name, array in joined.items()}))
"""


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_saved_model_predicts_as_the_network_does(lenet, out: Path, tmp_path: Path):
    write_artifact(out, lenet.artifact)
    np.save(tmp_path / "images.npy", lenet.split.images)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}

    def run(script: str, *arguments: Path) -> str:
        command = [sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout

    run(WRITE, out, tmp_path / "saved")
    found = json.loads(run(SERVE, tmp_path / "saved", tmp_path / "images.npy"))
    logits = Predictor(out).predict(lenet.split.images).astype(np.float64)
    expected = np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)
    best = np.argsort(-expected, axis=1)[:, :5]
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-4)
    np.testing.assert_allclose(found["confidences"], np.take_along_axis(expected, best, axis=1), rtol=1e-4)
    assert found["labels"] == [[lenet.artifact.manifest.class_names[place] for place in row] for row in best]
    assert not list(tmp_path.glob(".*"))


def test_saved_model_without_tensorflow_is_refused(lenet, out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(saved_model.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="TensorFlow is not installed"):
        write_saved_model(out, lenet.artifact)
    assert not out.exists()
