"""The folder of a dataset: claims it for a plan, reads its finished shards, and writes the metadata."""

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from jaxtern.data.durable import replace_durably, sync_path
from jaxtern.data.json_files import read_json
from jaxtern.preparation.plan import Plan
from jaxtern.preparation.shards import WORK, ShardResult, group_by_split, make_features
from jaxtern.preparation.source import Source

PLAN = "preparation.json"
INFO = "dataset_info.json"  # written last; a folder without it is not a dataset
_VERSION = "1.0.0"


def claim_folder(out: Path, identity: dict[str, Any]) -> IO[str] | None:
    """Claims a folder for a plan; returns a file that holds the claim while it is open, None if the plan is finished.

    Raises ValueError if the folder holds anything but this plan's work, or another process prepares there.
    """
    known = _read_identity(out)
    if known is not None and known != identity:
        raise ValueError(
            f"OUT={str(out)!r}: holds another preparation ({_tell_apart(known, identity)});"
            " choose another folder, or delete this one"
        )
    if (out / INFO).exists():
        shutil.rmtree(out / WORK, ignore_errors=True)  # left if the process was killed at the very end
        return None
    try:
        (out / WORK).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"OUT={str(out)!r}: cannot be made: {error.strerror}") from None
    with contextlib.ExitStack() as held:
        lock = held.enter_context((out / WORK / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"OUT={str(out)!r}: another process is preparing there") from None
        for left in (out / WORK).glob("*.tmp"):  # left by a killed process
            left.unlink()
        if known is None:
            _write_identity(out, identity, {})
        held.pop_all()  # keeps the file open
    return lock


def _tell_apart(known: dict[str, Any], identity: dict[str, Any]) -> str:
    differing = [name for name in {**known, **identity} if known.get(name) != identity.get(name)]
    if "source" in differing:
        return "the source's list of images and labels is not the same"
    return "; ".join(f"{name} is {known.get(name)} there and {identity.get(name)} here" for name in differing)


def _read_identity(out: Path) -> dict[str, Any] | None:
    """Reads the identity of the folder's plan; None if the folder is new or empty."""
    if not out.exists():
        return None
    if not out.is_dir():
        raise ValueError(f"OUT={str(out)!r}: is no folder")
    try:
        return read_json(out / PLAN)["plan"]
    except FileNotFoundError:
        others = sorted(path.name for path in out.iterdir() if path.name not in (WORK, "preparation.tmp"))
        if others:
            raise ValueError(
                f"OUT={str(out)!r}: holds something else ({others[0]}, …); choose another folder"
            ) from None
        return None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"OUT={str(out)!r}: its {PLAN} cannot be read; choose another folder") from None


def _write_identity(out: Path, identity: dict[str, Any], results: dict[str, Any]) -> None:
    replace_durably(out / PLAN, json.dumps({"plan": identity, "shards": results}, indent=1) + "\n")


def read_finished(out: Path, plan: Plan) -> dict[str, ShardResult]:
    """Results of all shards of a finished dataset; raises ValueError if a shard is missing or has changed size."""
    listed = json.loads((out / PLAN).read_text())["shards"]
    results = {name: ShardResult(**result) for name, result in listed.items()}
    for shard in plan.shards:
        path = out / shard.file_name
        if not path.is_file() or path.stat().st_size != results[shard.file_name].file_bytes:
            raise ValueError(
                f"OUT={str(out)!r}: {path.name} is missing or cut short; delete the folder and run this again"
            )
    return results


def finish_folder(out: Path, source: Source, plan: Plan, results: dict[str, ShardResult]) -> None:
    """Writes the metadata that make the shards a dataset, dataset_info.json last."""
    _write_identity(out, plan.identity, {shard.file_name: asdict(results[shard.file_name]) for shard in plan.shards})
    prepared = out / WORK / "metadata"
    shutil.rmtree(prepared, ignore_errors=True)
    prepared.mkdir()
    _write_metadata(prepared, source, plan, results)
    for path in sorted(prepared.iterdir(), key=lambda path: (path.name == INFO, path.name)):
        sync_path(path)
        os.replace(path, out / path.name)
    shutil.rmtree(out / WORK)


def _write_metadata(folder: Path, source: Source, plan: Plan, results: dict[str, ShardResult]) -> None:
    """Writes features.json, the class names and dataset_info.json, none of which depend on place or time."""
    import tensorflow_datasets as tfds
    from etils import epath
    from tensorflow_datasets.core.dataset_info import DatasetIdentity
    from tensorflow_datasets.core.splits import SplitDict

    splits = [
        tfds.core.SplitInfo(
            name=split,
            shard_lengths=[shard.images for shard in shards],
            num_bytes=sum(shard.file_bytes for shard in shards),
            filename_template=tfds.core.ShardedFileTemplate(
                data_dir=epath.Path(folder), dataset_name=plan.name, split=split, filetype_suffix="array_record"
            ),
        )
        for split, shards in group_by_split(plan.shards, results).items()
    ]
    identity = DatasetIdentity(plan.name, tfds.core.Version(_VERSION), str(folder), module_name="")
    heights, widths = ({side for result in results.values() for side in result.shapes[i : i + 2]} for i in (0, 2))
    same = [sides.pop() if len(sides) == 1 else None for sides in (heights, widths)]
    features = make_features(source.class_names, plan.rules, *same)
    info = tfds.core.DatasetInfo(builder=identity, features=features)
    info.set_file_format("array_record")
    info.set_splits(SplitDict(splits))
    info.write_to_directory(folder)
