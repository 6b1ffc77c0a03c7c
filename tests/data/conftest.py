"""Small prepared datasets, written with TFDS and array_record themselves."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordWriter

Example = tuple[Any, int, Sequence[Sequence[float]]]  # encoded image or pixels, label, boxes
Write = Callable[..., Path]


@pytest.fixture(scope="session")
def make_photo() -> Callable[[int, int, int], bytes]:
    """(seed, height, width) to a JPEG, smooth as photographs are."""

    def make(seed: int, height: int, width: int) -> bytes:
        small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
        return cv2.imencode(".jpg", cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC))[1].tobytes()

    return make


@pytest.fixture(scope="session")
def write_folder() -> Write:
    """Writes a prepared dataset: splits of examples, each in so many shards."""

    def write(path: Path, splits: dict[str, list[Example]], image: Any, num_classes: int = 3, shards: int = 2) -> Path:
        path.mkdir(parents=True)
        features = tfds.features.FeaturesDict({
            "image": image,
            "label": tfds.features.ClassLabel(num_classes=num_classes),
            "boxes": tfds.features.Sequence(tfds.features.BBoxFeature()),
            "file_name": tfds.features.Text(),
        })  # fmt: skip
        infos = [_write_split(path, name, examples, features, shards) for name, examples in splits.items()]
        tfds.folder_dataset.write_metadata(
            data_dir=str(path), features=features, split_infos=infos, version="1.0.0", check_data=False
        )
        return path

    return write


def _write_split(path: Path, name: str, examples: list[Example], features: Any, shards: int) -> Any:
    template = tfds.core.ShardedFileTemplate(
        data_dir=path, dataset_name="made", split=name, filetype_suffix="array_record"
    )
    rows = [_serialize(features, *example, f"{name}/{number}.jpg") for number, example in enumerate(examples)]
    parts = np.array_split(np.arange(len(rows)), shards)
    for shard, part in enumerate(parts):
        writer = ArrayRecordWriter(str(template.sharded_filepath(shard_index=shard, num_shards=shards)), "group_size:1")
        for number in part:
            writer.write(rows[number])
        writer.close()
    return tfds.core.SplitInfo(
        name=name, shard_lengths=[*map(len, parts)], num_bytes=sum(map(len, rows)), filename_template=template
    )


def _serialize(features: Any, image: Any, label: int, boxes: Sequence[Sequence[float]], file_name: str) -> bytes:
    values = {
        "image": io.BytesIO(image) if isinstance(image, bytes) else image,
        "label": label,
        "boxes": [tfds.features.BBox(*box) for box in boxes],
        "file_name": file_name,
    }
    return features.serialize_example(features.encode_example(values))


@pytest.fixture(scope="session")
def jpeg() -> Any:
    """The feature of JPEGs of any size."""
    return tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")


@pytest.fixture(scope="session")
def photos(write_folder: Write, make_photo: Callable, jpeg: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 training and 7 validation JPEGs of many sizes, some with boxes."""

    def make(number: int) -> Example:
        boxes = [(0.2, 0.1, 0.7, 0.6), (0.0, 0.5, 1.0, 1.0)][: number % 3]
        return make_photo(number, 40 + 3 * number, 90 - 2 * number), number % 3, boxes

    splits = {"train": [make(n) for n in range(23)], "validation": [make(n) for n in range(30, 37)]}
    return write_folder(tmp_path_factory.mktemp("prepared") / "photos", splits, jpeg)


@pytest.fixture(scope="session")
def stamps(write_folder: Write, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """19 training and 6 test PNGs of 9x7 grey pixels: their folder, pixels and labels, those of training first."""
    images = np.random.default_rng(3).integers(0, 256, (25, 9, 7, 1), np.uint8)
    examples = [(cv2.imencode(".png", image)[1].tobytes(), number % 3, ()) for number, image in enumerate(images)]
    feature = tfds.features.Image(shape=(None, None, 1), encoding_format="png")
    folder = tmp_path_factory.mktemp("prepared") / "stamps"
    write_folder(folder, {"train": examples[:19], "test": examples[19:]}, feature)
    return folder, images, np.arange(25, dtype=np.int32) % 3
