"""An exported network as a TensorFlow SavedModel, which TensorFlow and its servers run without JAX."""

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.export

from jaxtern.artifact.storage import Artifact, require_new

_TOP = 5


def require_tensorflow() -> None:
    """Refuses to go on without TensorFlow."""
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError("saved_model: TensorFlow is not installed: pip install 'jaxtern[prepare]'")


def write_saved_model(out: Path, artifact: Artifact) -> None:
    """Writes a SavedModel that is whole or not there; its signature serving_default is, for any number b of images,

        images uint8[b, H, W, C] -> scores float32[b, K], labels string[b, 5], confidences float32[b, 5]

    where scores are the softmax of the logits, and the labels those of the five best classes, the best one first.
    Images must have been cropped and resized already. Its weights are variables; its bits are those of TensorFlow's
    compiler, which need not be JAX's.

    Raises:
      ValueError: if it is already there or cannot be made, or if TensorFlow is missing.
    """
    require_tensorflow()
    require_new(out)
    import tensorflow as tf

    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        module = _create_module(tf, artifact)
        tf.saved_model.save(module, str(temporary), signatures={"serving_default": module.serve})
        temporary.rename(out)
    except OSError as error:
        raise ValueError(f"saved_model={str(out)!r}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _create_module(tf: Any, artifact: Artifact) -> Any:
    """A tf.Module with the weights, and `serve` of the signature."""
    from jax.experimental import jax2tf

    manifest, exported = artifact.manifest, jax.export.deserialize(bytearray(artifact.program))
    predict = jax2tf.convert(
        exported.call,
        polymorphic_shapes=[None, "(b, ...)"],
        native_serialization_platforms=manifest.platforms,
        with_gradient=False,
    )
    module = tf.Module()
    module.weights = {name: tf.Variable(array, trainable=False) for name, array in artifact.weights.items()}
    module.names = tf.constant(manifest.class_names or list(map(str, range(manifest.num_classes))))

    signature = [tf.TensorSpec([None, *manifest.input_shape], tf.uint8, "images")]

    @tf.function(input_signature=signature, autograph=False)
    def serve(images: Any) -> dict[str, Any]:
        scores = tf.nn.softmax(predict(dict(module.weights), images))
        confidences, best = tf.math.top_k(scores, min(_TOP, manifest.num_classes))
        return {"scores": scores, "labels": tf.gather(module.names, best), "confidences": confidences}

    module.serve = serve
    return module
