"""Datasets that TensorFlow Datasets knows by name: it downloads and writes them, which needs TensorFlow."""

import contextlib
import fcntl
import importlib.util
import io
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from jaxtern.data.durable import replace_durably
from jaxtern.preparation.folder import INFO, PLAN, claim_folder
from jaxtern.preparation.plan import SHARD_BYTES
from jaxtern.preparation.shards import WORK
from jaxtern.preparation.table import SplitSummary

_NAME = re.compile(r"([a-z]\w*)(/[\w.+-]+)?(:[\w.*]+)?")


def is_tfds_name(source: str) -> bool:
    """Whether TensorFlow Datasets has a dataset of this name (with /config and :version or without)."""
    match = _NAME.fullmatch(source)
    if match is None:
        return False
    import tensorflow_datasets as tfds

    return match[1] in tfds.list_builders(with_community_datasets=False)


def prepare_by_name(source: str, out: Path) -> list[SplitSummary]:
    """Downloads a dataset, has it written as ArrayRecord, and moves it to `out` when it is whole.

    What is downloaded stays in $TFDS_DATA_DIR/downloads (~/tensorflow_datasets/downloads), where files that must be
    fetched by hand lie too, in manual/.

    Raises:
      ValueError: if TensorFlow is not installed, the dataset cannot be had, or has no images or no labels.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ValueError(
            f"SOURCE={source!r}: a dataset of TensorFlow Datasets needs TensorFlow to be prepared:"
            " pip install 'jaxtern[prepare]'"
        )
    import tensorflow_datasets as tfds

    identity = {"tfds": source}
    claim = claim_folder(out, identity)
    if claim is None:
        return _summarize(tfds.builder_from_directory(out))
    with claim:
        found = _build(tfds, source, out / WORK / "tfds")
        replace_durably(out / PLAN, f'{{"plan": {{"tfds": "{source}"}}, "shards": {{}}}}\n')
        for path in sorted(found.iterdir(), key=lambda path: path.name == INFO):
            os.replace(path, out / path.name)
        shutil.rmtree(out / WORK)
        fcntl.flock(claim, fcntl.LOCK_UN)
    return _summarize(tfds.builder_from_directory(out))


def _build(tfds: Any, source: str, staging: Path) -> Path:
    """Where the dataset lies when it is whole."""
    downloads = Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser() / "downloads"
    try:
        builder = tfds.builder(source, data_dir=staging, file_format="array_record")
        _require_labelled_images(tfds, dict(builder.info.features.items()))
        config = tfds.download.DownloadConfig(num_shards=None, max_shard_size=SHARD_BYTES)
        with contextlib.redirect_stdout(io.StringIO()):
            builder.download_and_prepare(download_dir=downloads, download_config=config)
    # the builders are other people's programs, and their downloads fail in any way
    except Exception as error:  # noqa: BLE001
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"SOURCE={source!r}: TensorFlow Datasets cannot prepare it: {first}") from None
    return Path(builder.data_dir)


def _require_labelled_images(tfds: Any, features: dict[str, Any]) -> None:
    image, label = features.get("image"), features.get("label")
    shape = getattr(image, "shape", None)
    if isinstance(shape, tuple) and len(shape) == 3 and isinstance(label, tfds.features.ClassLabel):
        return
    found = ", ".join(f"{name} ({type(feature).__name__} {feature.shape})" for name, feature in features.items())
    raise ValueError(
        f"it must have an image with height, width and channels, and a label that is a class; it has {found}"
    )


def _summarize(builder: Any) -> list[SplitSummary]:
    """The table's lines; labels are counted without decoding the images."""
    import tensorflow_datasets as tfds

    summaries = []
    for name, split in builder.info.splits.items():
        records = builder.as_data_source(name, decoders={"image": tfds.decode.SkipDecoding()})
        counts = Counter(int(example["label"]) for example in records)
        least, most = min(counts.values(), default=0), max(counts.values(), default=0)
        file_bytes = sum(Path(path).stat().st_size for path in split.filepaths)
        summaries.append(
            SplitSummary(name, split.num_shards, split.num_examples, len(counts), least, most, file_bytes, 0, 0)
        )
    return summaries
