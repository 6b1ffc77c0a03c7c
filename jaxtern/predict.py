"""python -m jaxtern.predict ARTEFACT IMAGE_OR_FOLDER...: predicts the best labels of images, with confidences.

    python -m jaxtern.predict exported photo.jpg
    python -m jaxtern.predict exported photos --out=predictions.csv
    python -m jaxtern.predict exported --dataset=./data/photos --split=test --out=predictions.csv

ARTEFACT is a folder written by jaxtern.export. Images that cannot be read are named, and the exit status is then 1.
"""

import sys
from pathlib import Path

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    from jaxtern.artifact.image_files import ImageFiles
    from jaxtern.artifact.predictions import Predictions, format_table, rank, write_predictions
    from jaxtern.artifact.predictor import Predictor
    from jaxtern.data.dataset import Records, Split
    from jaxtern.data.durable import require_writable
    from jaxtern.data.sources import load_dataset

OUT = flags.DEFINE_string("out", None, "file for the predictions, .csv [a table is printed]")
TOP = flags.DEFINE_integer("top", 5, "number of labels of each image", lower_bound=1)
BATCH_SIZE = flags.DEFINE_integer("batch_size", None, "images at once [as in evaluation]", lower_bound=1)
DATASET = flags.DEFINE_string("dataset", None, "instead of images: a prepared folder (with a slash) or a name")
DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the dataset, as in training")
SPLIT = flags.DEFINE_string("split", "test", "split of the dataset")


def main(artifact: str, *paths: str) -> int:
    with command_line.refusing():
        if OUT.value is not None:
            require_writable("out", Path(OUT.value), [".csv"])
        if bool(paths) == (DATASET.value is not None):
            raise ValueError("give either images or folders of images after ARTEFACT, or --dataset")
        predictor = Predictor(artifact)
        if not predictor.of_images:
            raise ValueError(f"ARTEFACT={artifact!r}: is a network for text; use Predictor.predict in Python instead")
        named = DATASET.value
        if named is None:
            split, classes = ImageFiles(paths), None
            if count := len(split.left_out):
                command_line.tell(f"left out, as no images by their names, or links to folders: {count:,}")
        else:
            own = None if SPLIT.value in ("train", "test") else SPLIT.value  # any other, by its own name
            dataset = load_dataset(named, DATA_DIR.value, test_split=own)
            split = dataset.train if SPLIT.value == "train" else dataset.test
            classes = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
            if classes != predictor.labels:
                command_line.tell(f"--dataset={named}: has other classes than the network; its labels are not compared")
        command_line.tell(f"images to predict: {split.size:,}")
        predictions, bad = predict(predictor, split, classes == predictor.labels)
        if OUT.value is not None:
            write_predictions(Path(OUT.value), predictions)
            print(f"predictions in {OUT.value}, of images: {len(predictions.keys):,}")
        elif predictions.keys:
            print(format_table(predictions))
    if predictions.precision_at_1 is not None:
        print(f"precision@1 {predictions.precision_at_1:.2%}")
    return 1 if bad else 0


def predict(predictor: Predictor, split: Split | Records, has_labels: bool) -> tuple[Predictions, int]:
    """Predicts all images but the damaged ones, which it names; also returns their number.

    `has_labels` says whether the split knows the images' classes, and they are the network's.
    """
    bad: set[int] = set()

    def tell(example: int, why: str) -> None:
        bad.add(example)
        place = split.describe(example)
        print(f"error: {why if why.startswith(place) else f'{place}: {why}'}", file=sys.stderr)

    logits = predictor.predict_records(split, tell, BATCH_SIZE.value)
    good = [example for example in range(split.size) if example not in bad]
    keys = [split.key(example) for example in good]
    true = [split.read(example).label for example in good] if has_labels else None
    return rank(keys, logits[good], predictor.labels, TOP.value, true), len(bad)


if __name__ == "__main__":
    command_line.run(main, ("ARTEFACT", "IMAGE_OR_FOLDER..."))
