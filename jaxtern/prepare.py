"""python -m jaxtern.prepare SOURCE OUT: a source of images to a dataset that training reads at random from disk.

    python -m jaxtern.prepare photos.zip data/photos --resize_shortest=256
    python -m jaxtern.prepare imagenet_tars data/imagenet --boxes=ILSVRC2012_bbox_train_v2.tar.gz --max_bad=3

SOURCE is a folder, zip or tar of images in one folder a class; the idx files of MNIST and its like; an archive of
CIFAR-10 or CIFAR-100; or a folder of ImageNet's original tars. OUT is a folder to be made. The same command again
continues one that was stopped, and gives the same bytes. What TensorFlow Datasets knows by name needs no preparation:
train with --config.data.name=NAME.
"""

import functools
import os
from pathlib import Path

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    from jaxtern.data.preprocessing.families import PREPROCESSINGS
    from jaxtern.preparation import detection
    from jaxtern.preparation.pipeline import Report, prepare
    from jaxtern.preparation.plan import Options
    from jaxtern.training.run.sheet import draw_sheet, sheet_recipe

FORMAT = flags.DEFINE_enum("format", None, detection.FORMATS, "what SOURCE is [seen from what lies there]")
NAME = flags.DEFINE_string("name", None, "of the dataset [SOURCE's]")
SHARDS = flags.DEFINE_integer("shards", None, "files of each split [one for about 128 MB]")
WORKERS = flags.DEFINE_integer("workers", len(os.sched_getaffinity(0)), "processes, each with a shard at a time")
RESIZE_SHORTEST = flags.DEFINE_integer(
    "resize_shortest", None, "pixels; images whose shorter side is longer are shrunk to it, none is enlarged"
)
QUALITY = flags.DEFINE_integer("quality", 95, "of images encoded as JPEG, 1 to 100; others stay byte for byte")
SEED = flags.DEFINE_integer("seed", 0, "of the order of examples, and of the choice of validation images")
VALIDATION_FRACTION = flags.DEFINE_float(
    "validation_fraction", None, "of each class, where the source has no splits [0.1]"
)
MAX_BAD = flags.DEFINE_integer("max_bad", 0, "damaged images that may be left out")
COARSE_LABELS = flags.DEFINE_bool("coarse_labels", False, "the 20 classes of CIFAR-100")
LABELS = flags.DEFINE_string(
    "labels", None, "of ImageNet's validation images: the devkit's tar, or a synset a line, in files' order"
)
BOXES = flags.DEFINE_multi_string("boxes", [], "folder or tar of ImageNet's XML annotations; may be given twice")

SHEET = flags.DEFINE_string("sheet", None, "picture of a batch as a model is shown it, .png; the dataset may be there")
PREPROCESSING = flags.DEFINE_enum(
    "preprocessing", None, list(PREPROCESSINGS), "of the sheet [by the images: mnist, cifar10 or inception]"
)

_PICTURES = (".png", ".jpg", ".pdf", ".svg", ".webp")


def main(source: str, out: str) -> int:
    with command_line.refusing("stopped: whole shards stay, the same command continues"):
        if SHEET.value:
            _require_writable_sheet(Path(SHEET.value), Path(out))
        report = run(source, Path(out))
        print(report)
        print(f"to train: python -m jaxtern.train --config=RECIPE --config.data.name={as_path(out)}", flush=True)
        if SHEET.value:
            test_split = None if report.has_test_split else "train"
            command_line.tell("drawing the sheet")
            draw_sheet(sheet_recipe(as_path(out), PREPROCESSING.value, test_split), Path(SHEET.value))
            print(f"sheet in {SHEET.value}")
    return 0


def as_path(folder: str) -> str:
    """As a recipe's dataset has it, which a slash tells from a name."""
    return folder if "/" in folder else f"./{folder}"


def run(source: str, out: Path) -> Report:
    """Prepares a path by the flags."""
    labels, boxes = Path(LABELS.value) if LABELS.value else None, tuple(map(Path, BOXES.value))
    reading = detection.Reading(FORMAT.value, VALIDATION_FRACTION.value, SEED.value, COARSE_LABELS.value, labels, boxes)
    options = Options(NAME.value, SHARDS.value, RESIZE_SHORTEST.value, QUALITY.value, SEED.value)
    say = functools.partial(print, flush=True)
    return prepare(Path(source), out, reading, options, WORKERS.value, MAX_BAD.value, say)


def _require_writable_sheet(sheet: Path, out: Path) -> None:
    """Refuses a sheet that could not be written once all else is done."""
    if sheet.suffix.lower() not in _PICTURES:
        raise ValueError(f"--sheet={str(sheet)!r}: must end in {', '.join(_PICTURES[:-1])} or {_PICTURES[-1]}")
    if not sheet.parent.is_dir() and sheet.parent.resolve() != out.resolve():
        raise ValueError(f"--sheet={str(sheet)!r}: there is no folder {sheet.parent}")


if __name__ == "__main__":
    command_line.run(main, ("SOURCE", "OUT"))
