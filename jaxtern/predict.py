"""python -m jaxtern.predict ARTEFACT IMAGE_OR_FOLDER...: the best labels of images, and how sure the network is.

    python -m jaxtern.predict exported photo.jpg
    python -m jaxtern.predict exported photos --out=predictions.csv
    python -m jaxtern.predict exported --dataset=./data/photos --split=test --out=predictions.csv

ARTEFACT is a folder that jaxtern.export wrote. Images that cannot be read are named, and the status is 1 at the end.
"""

import sys
from pathlib import Path

from absl import flags

from jaxtern import command_line
from jaxtern.artifact.image_files import ImageFiles
from jaxtern.artifact.predictions import Predictions, format_table, rank, require_writable, write_predictions
from jaxtern.artifact.predictor import Predictor
from jaxtern.data.dataset import Records, Split
from jaxtern.data.sources import load_dataset

OUT = flags.DEFINE_string("out", None, "file for the predictions, .csv [a table is printed]")
TOP = flags.DEFINE_integer("top", 5, "labels of each image", lower_bound=1)
BATCH_SIZE = flags.DEFINE_integer("batch_size", None, "images at once [as evaluation has it]", lower_bound=1)
DATASET = flags.DEFINE_string("dataset", None, "in place of images: a prepared folder (with a slash), or a name")
DATA_DIR = flags.DEFINE_string("data_dir", None, "of the dataset, as training has it")
SPLIT = flags.DEFINE_string("split", "test", "of the dataset")


def main(artifact: str, *paths: str) -> int:
    try:
        if OUT.value is not None:
            require_writable(Path(OUT.value))
        if bool(paths) == (DATASET.value is not None):
            raise ValueError("give images or folders of them behind ARTEFACT, or --dataset, and not both")
        predictor = Predictor(artifact)
        split = ImageFiles(paths) if DATASET.value is None else _open_split(DATASET.value, DATA_DIR.value, SPLIT.value)
        predictions, bad = predict(predictor, split)
        if OUT.value is not None:
            write_predictions(Path(OUT.value), predictions)
            print(f"predictions of {len(predictions.keys):,} images in {OUT.value}")
        elif predictions.keys:
            print(format_table(predictions))
    except (ValueError, OSError) as error:
        raise command_line.UsageError(str(error)) from None
    except KeyboardInterrupt:
        return 130
    return 1 if bad else 0


def predict(predictor: Predictor, split: Split | Records) -> tuple[Predictions, int]:
    """Predictions of all examples but the damaged ones, which are named; and how many of these there are."""
    bad: set[int] = set()

    def tell(example: int, why: str) -> None:
        bad.add(example)
        place = split.describe(example)
        print(f"error: {why if why.startswith(place) else f'{place}: {why}'}", file=sys.stderr)

    logits = predictor.predict_records(split, tell, BATCH_SIZE.value)
    good = [example for example in range(split.size) if example not in bad]
    keys = [split.key(example) for example in good]
    return rank(keys, logits[good], predictor.labels, TOP.value), len(bad)


def _open_split(name: str, data_dir: str | None, split: str) -> Split | Records:
    """The dataset's training or test split as evaluation has it, or one by its own name."""
    if split in ("train", "test"):
        return getattr(load_dataset(name, data_dir), split)
    return load_dataset(name, data_dir, test_split=split).test


if __name__ == "__main__":
    command_line.run(main, ("ARTEFACT", "IMAGE_OR_FOLDER..."))
