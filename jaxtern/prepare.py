"""python -m jaxtern.prepare SOURCE OUT: converts a source of images to a dataset that training reads from disk.

    python -m jaxtern.prepare photos.zip data/photos --resize_shortest=256
    python -m jaxtern.prepare imagenet_tars data/imagenet --max_bad=3

SOURCE is a folder, zip or tar with one folder of images a class; a folder of idx files, such as MNIST's; an archive of
CIFAR-10 or CIFAR-100; or a folder of ImageNet's original tars. OUT is a new folder. If a preparation was stopped, the
same command continues it, and gives the same bytes. A dataset of TensorFlow Datasets needs no preparation: train with
--config.data.name=NAME.
"""

import functools
import os
import shlex
from pathlib import Path

from absl import flags

from jaxtern import command_line

with command_line.loading(__name__):
    from jaxtern.data.durable import require_writable
    from jaxtern.data.preprocessing.families import PREPROCESSINGS
    from jaxtern.data.records import TEST_SPLITS
    from jaxtern.preparation import detection
    from jaxtern.preparation.pipeline import Report, prepare
    from jaxtern.preparation.plan import Options
    from jaxtern.training.run.sheet import draw_sheet, sheet_recipe

FORMAT = flags.DEFINE_enum("format", None, detection.FORMATS, "kind of SOURCE [detected]")
NAME = flags.DEFINE_string("name", None, "of the dataset [made from SOURCE]")
SHARDS = flags.DEFINE_integer("shards", None, "files of each split [one for about 128 MB]")
WORKERS = flags.DEFINE_integer("workers", len(os.sched_getaffinity(0)), "processes, each of which writes a shard")
RESIZE_SHORTEST = flags.DEFINE_integer("resize_shortest", None, "images with a longer shorter side are shrunk; pixels")
QUALITY = flags.DEFINE_integer("quality", 95, "of images encoded as JPEG, 1 to 100; others stay byte for byte")
SEED = flags.DEFINE_integer("seed", 0, "of the order of examples, and of the choice of validation images")
VALIDATION_FRACTION = flags.DEFINE_float("validation_fraction", None, "of each class, if there are no splits [0.1]")
MAX_BAD = flags.DEFINE_integer("max_bad", 0, "how many damaged images may be left out")
COARSE_LABELS = flags.DEFINE_bool("coarse_labels", False, "take the 20 coarse classes of CIFAR-100")
LABELS = flags.DEFINE_string(
    "labels", None, "labels of ImageNet's validation images: the devkit, or a file of a synset a line, by file name"
)

SHEET = flags.DEFINE_string("sheet", None, "file for a picture of a batch as a model sees it; OUT may exist already")
PREPROCESSING = flags.DEFINE_enum(
    "preprocessing", None, list(PREPROCESSINGS), "of the sheet [by the images: mnist, cifar10 or vgg_f]"
)

_MANY, _FEW = 256, 8  # images, enough for the recipes' batches, and for a batch of four workers beside a test split
_PICTURES = (".png", ".jpg", ".pdf", ".svg", ".webp")


def main(source: str, out: str) -> int:
    with command_line.refusing("stopped: finished shards are kept; run the same command again to continue"):
        if SHEET.value:
            require_writable("sheet", Path(SHEET.value), _PICTURES, new_folder=Path(out))
        report = run(source, Path(out))
        print(report)
        dataset = out if "/" in out else f"./{out}"  # a slash tells a path from a name
        test_split = "train" if set(TEST_SPLITS).isdisjoint(report.splits) else None
        recipe = sheet_recipe(dataset, PREPROCESSING.value, test_split)
        suits = recipe.data.preprocessing if recipe.data.preprocessing in ("mnist", "cifar10") else "photos"
        named = shlex.quote(dataset)
        named += " --config.data.train_split='train[:90%]' --config.data.test_split='train[90%:]'" if test_split else ""
        images = sum(shard.images for shard in report.splits["train"])
        if images < _MANY:
            named += f" --config.run.batch_size={images // 8 * 4}"
        if images >= _FEW:
            print(f"a first look: python -m jaxtern.train --config={suits} --config.data.name={named}", flush=True)
        if SHEET.value:
            command_line.tell("drawing the sheet")
            draw_sheet(recipe, Path(SHEET.value))
            print(f"sheet in {SHEET.value}")
    return 0


def run(source: str, out: Path) -> Report:
    """Prepares a source as the flags say."""
    labels = Path(LABELS.value) if LABELS.value else None
    reading = detection.Reading(FORMAT.value, VALIDATION_FRACTION.value, SEED.value, COARSE_LABELS.value, labels)
    options = Options(NAME.value, SHARDS.value, RESIZE_SHORTEST.value, QUALITY.value, SEED.value)
    say = functools.partial(print, flush=True)
    return prepare(Path(source), out, reading, options, WORKERS.value, MAX_BAD.value, say)


if __name__ == "__main__":
    command_line.run(main, ("SOURCE", "OUT"))
