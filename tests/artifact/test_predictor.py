"""An exported network predicts what evaluation finds, bit for bit."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image

from jaxtern.artifact.image_files import ImageFiles
from jaxtern.artifact.predictor import Predictor
from jaxtern.artifact.storage import write_artifact
from jaxtern.data.dataset import Record, Split
from jaxtern.data.images import decode
from jaxtern.data.synthetic import make_synthetic_text
from jaxtern.data.tasks import create_task
from jaxtern.models import create_model
from jaxtern.preparation.images import Rules, store_image
from jaxtern.training.recipe.recipe import Recipe
from jaxtern.training.run.evaluation import compute_logits, evaluate
from jaxtern.training.run.exporting import export_network
from jaxtern.training.run.inputs import facts_of

pytestmark = [pytest.mark.optimized, pytest.mark.slow]

NETWORKS = {
    "whole images": ("lenet", "mnist", (12, 8, 1), None, 23),
    "more than a batch": ("lenet", "mnist", (12, 8, 1), None, 501),
    "crops of whole images": ("cifarnet", "cifar10", (20, 22, 3), 16, 41),
    "views": ("lenet", "inception", (40, 30, 3), 16, 37),
    "views with a mean": ("lenet", "vgg", (30, 40, 3), 16, 9),
}


def fail(example: int, why: str) -> None:
    raise AssertionError(f"example {example}: {why}")


@pytest.mark.parametrize("case", NETWORKS)
def test_predictions_have_the_bits_of_evaluation(make_network: Callable, out: Path, case: str):
    network = make_network(*NETWORKS[case])
    write_artifact(out, network.artifact)
    expected = []
    evaluate(network.graph, network.variables, network.split, network.inputs.task, collect=expected.append)
    found = Predictor(out).predict_records(network.split, fail)
    assert found.dtype == np.float32
    assert found.shape == (network.split.size, 7)
    assert found.std() > 0.01
    np.testing.assert_array_equal(found, np.concatenate(expected))


@pytest.mark.parametrize("case", ["whole images", "views"])
def test_predictions_of_files_have_the_bits_of_those_of_a_dataset(
    make_network: Callable, out: Path, tmp_path: Path, case: str
):
    """The files come in another order, too."""
    network = make_network(*NETWORKS[case])
    write_artifact(out, network.artifact)
    (tmp_path / "images").mkdir()
    order = np.random.default_rng(0).permutation(network.split.size)
    for place, example in enumerate(order):
        cv2.imwrite(str(tmp_path / "images" / f"{place:03}.png"), network.split.images[example][..., ::-1])
    predictor = Predictor(out)
    of_files = predictor.predict_records(ImageFiles([str(tmp_path / "images")]), fail)
    np.testing.assert_array_equal(of_files, predictor.predict_records(network.split, fail)[order])


@pytest.mark.parametrize("batch_size", [1, 5, 23, 40])
def test_predictor_takes_any_batch_size(lenet, out: Path, batch_size: int):
    write_artifact(out, lenet.artifact)
    predictor = Predictor(out)
    together = predictor.predict(lenet.split.images)
    np.testing.assert_allclose(predictor.predict(lenet.split.images, batch_size), together, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(
        predictor.predict(lenet.split.images, min(batch_size, lenet.split.size)),
        predictor.predict_records(lenet.split, fail, batch_size),
    )
    predictor.predict_records(lenet.split, fail, 2**40)  # no more than there are images
    assert predictor.predict(lenet.split.images[:0]).shape == (0, 7)


def test_predictor_names_damaged_files_and_gives_the_others_their_bits(lenet, out: Path, tmp_path: Path):
    write_artifact(out, lenet.artifact)
    paths = [tmp_path / f"{number}.png" for number in range(5)]
    for path, image in zip(paths, lenet.split.images, strict=False):
        cv2.imwrite(str(path), image)
    predictor, files = Predictor(out), ImageFiles(list(map(str, paths)))
    whole = predictor.predict_records(files, fail)
    paths[1].write_bytes(paths[1].read_bytes()[:-20])
    cv2.imwrite(str(paths[2]), np.zeros((8, 12), np.uint8))
    paths[3].write_text("no image")
    told = {}
    damaged = predictor.predict_records(files, told.__setitem__)
    assert list(told) == [1, 2, 3]
    assert "cut short" in told[1]
    assert "(8, 12, 1)" in told[2]
    assert "(12, 8, 1)" in told[2]
    assert told[3] == "is no image"
    np.testing.assert_array_equal(damaged[[0, 4]], whole[[0, 4]])


def test_predictor_turns_images_upright(lenet, out: Path, tmp_path: Path):
    write_artifact(out, lenet.artifact)
    upright, exif = Image.fromarray(lenet.split.images[0][..., 0]), Image.Exif()
    exif[0x0112] = 3  # turned by 180 degrees
    upright.save(tmp_path / "upright.png")
    upright.transpose(Image.Transpose.ROTATE_180).save(tmp_path / "turned.png", exif=exif)
    predictor = Predictor(out)
    rendered = [predictor.render((tmp_path / name).read_bytes()) for name in ("upright.png", "turned.png")]
    np.testing.assert_array_equal(*rendered)


def test_predictor_does_not_turn_the_records_of_a_dataset_as_evaluation_does_not(lenet, out: Path):
    write_artifact(out, lenet.artifact)
    file, exif, pixels = io.BytesIO(), Image.Exif(), lenet.split.images[0]
    exif[0x0112] = 3  # turned by 180 degrees
    Image.fromarray(pixels[..., 0]).save(file, "PNG", exif=exif)
    records = SimpleNamespace(size=1, read=lambda _: Record(file.getvalue(), 0))
    predictor = Predictor(out)
    np.testing.assert_array_equal(predictor.predict_records(records, fail), predictor.predict(pixels[None]))


def test_weights_of_a_type_that_numpy_does_not_know_are_exported(lenet, out: Path):
    halves = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), lenet.variables)
    facts, expected = facts_of(lenet.inputs.task, lenet.inputs.dataset), []
    write_artifact(out, export_network(lenet.recipe, facts, lenet.graph, halves))
    evaluate(lenet.graph, halves, lenet.split, lenet.inputs.task, collect=expected.append)
    np.testing.assert_array_equal(Predictor(out).predict_records(lenet.split, fail), np.concatenate(expected))


def test_predictor_knows_the_labels(lenet, out: Path):
    write_artifact(out, lenet.artifact)
    assert Predictor(out).labels == ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")
    unnamed = dataclasses.replace(lenet.artifact.manifest, class_names=())
    write_artifact(out.with_name("unnamed"), lenet.artifact._replace(manifest=unnamed))
    assert Predictor(out.with_name("unnamed")).labels == ("0", "1", "2", "3", "4", "5", "6")


def test_predictor_refuses_a_program_that_jax_cannot_read(lenet, out: Path):
    write_artifact(out, lenet.artifact._replace(program=b"of another JAX"))
    with pytest.raises(ValueError, match=r"its program cannot be read \(was written by JAX"):
        Predictor(out)


def test_predictor_of_a_split_of_none_gives_none(lenet, out: Path):
    write_artifact(out, lenet.artifact)
    none = Split(lenet.split.images[:0], lenet.split.labels[:0])
    assert Predictor(out).predict_records(none, fail).shape == (0, 7)


@pytest.mark.parametrize("kind", ["cmyk.jpg", "turned.jpg", "a.gif", "a.webp", "a.tiff", "deep.png", "alpha.png"])
def test_predictor_takes_what_preparation_takes_with_the_same_pixels(tmp_path: Path, kind: str):
    smooth = np.add.outer(np.arange(30) * 4, np.arange(20) * 5)[..., None] // np.array([1, 2, 3])
    image, exif = Image.fromarray(smooth.astype(np.uint8)), Image.Exif()
    exif[0x0112] = 6
    changed = {
        "cmyk.jpg": lambda: image.convert("CMYK"),
        "deep.png": lambda: Image.fromarray(smooth[..., 0].astype(np.uint16) * 257),
        "alpha.png": lambda: image.convert("RGBA"),
    }.get(kind, lambda: image)()
    changed.save(tmp_path / kind, **({"exif": exif} if kind == "turned.jpg" else {}))
    raw = (tmp_path / kind).read_bytes()
    read = ImageFiles([str(tmp_path)]).read(0).image
    stored = store_image(raw, Rules("png", 3)).content  # without loss
    np.testing.assert_array_equal(read, decode(stored, 3))
    assert read.shape[:2] == ((20, 30) if kind == "turned.jpg" else (30, 20))


def test_predictor_of_a_text_gives_the_logits_of_evaluation(out: Path):
    task = create_task("text", sequence_length=64)
    data = make_synthetic_text(64, 20, 9)
    sections = {"model": {"name": "transformer"}, "data": {"preprocessing": "text", "sequence_length": 64}}
    recipe = Recipe.from_dict(sections)
    graph, variables = nnx.split(create_model("transformer", (64,), 20, seed=0))
    variables = nnx.to_pure_dict(variables)
    write_artifact(out, export_network(recipe, facts_of(task, data), graph, variables, 7))
    predictor, windows = Predictor(out), data.test.examples
    logits = predictor.predict(windows[:, :-1], len(windows))
    np.testing.assert_array_equal(logits, np.asarray(compute_logits(graph, task, variables, windows)))
    assert not predictor.of_images
    many = SimpleNamespace(size=700, examples=np.zeros((700, 65), np.uint8))
    taken, predictor._program = [], lambda _, inputs: taken.append(len(inputs)) or np.zeros((len(inputs), 64, 20))
    predictor.predict(many.examples[:, :-1])
    assert taken == [len(examples) for examples, _, _ in task.evaluation_batches(many)]
