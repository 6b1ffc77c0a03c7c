"""Exported networks that are none, whose digests are right all the same."""

import hashlib
import io
import json
import math
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

OPTIONS = hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
MANIFESTS = {
    "nothing": b"",
    "a list": b"[]",
    "brackets": b"[" * 100_000,
    "no text": b"\xff\xfe",
    "an empty object": b"{}",
    "a version alone": b'{"format_version": 1}',
    "another version": b'{"format_version": 2}',
    "a version of code": b'{"format_version": "__import__"}',
    "a recipe": b'{"seed": 1, "num_steps": 2}',
}
FIELDS = {
    "num_classes": [0, -1, 1.5, "3", True, None, [], 10**12, 4, math.nan],
    "input_shape": [[], [8, 8], [8, 8, 1, 1], [8, 8, -1], [8.0, 8, 1], "881", None, [10**6, 10**6, 3], [9, 8, 1], 8],
    "image_size": [0, -1, "8", 1.5, True, [], 10**12],
    "class_names": ["abc", ["a"], [1, 2, 3], {"a": 1}, None, 3],
    "platforms": ["cpu", [1], None, {}],
    "preprocessing": ["none", [], {}, None, 3, "../mnist"],
    "jax_version": [1, None, []],
    "digests": [[], None, {}, "x", 3],
    "colour": ["red"],
}


def objects() -> bytes:
    file = io.BytesIO()
    np.savez(file, **{"fc1/bias": np.array([print], dtype=object)})
    return file.getvalue()


def npz(header: str, content: bytes = b"", name: str = "fc1/bias.npy") -> bytes:
    """One array, of which this is the header."""
    text = header.encode().ljust(117) + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + content)
    return file.getvalue()


HEADER = "{'descr': %s, 'fortran_order': False, 'shape': %s}"
WEIGHTS = {
    "nothing": b"",
    "no zip": b"weights",
    "a zip of nothing": b"PK\5\6" + bytes(18),
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "objects": objects(),
    "an object by its header": npz(HEADER % ("'|O'", "(1,)"), b"\x80\x04N."),
    "more than there is": npz(HEADER % ("'<f4'", "(1000000000000000,)")),
    "less than nothing": npz(HEADER % ("'<f4'", "(-1,)")),
    "a shape of words": npz(HEADER % ("'<f4'", "'x'")),
    "code for a header": npz("__import__('os').getpid()"),
    "half a header": npz("{'descr': "),
    "brackets for a header": npz("(" * 100),
    "no such type": npz(HEADER % ("'<q99'", "(1,)")),
    "a type of fields": npz(HEADER % ("[('a', '<f4')]", "(1,)"), bytes(4)),
    "one array alone": npz(HEADER % ("'<f4'", "(1,)"), bytes(4)),
    "a name outside": npz(HEADER % ("'<f4'", "(1,)"), bytes(4), "../../fc1.npy"),
    "no array": npz("x", name="fc1/bias.txt"),
}


@pytest.fixture(scope="module")
def exported(run_folder: Path, run_door: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    answer = run_door("export", f"--workdir={run_folder}", "--out=net", cwd=folder)
    assert answer.status == 0, answer.err
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "image.png")
    assert run_door("predict", "net", "image.png", cwd=folder).status == 0
    return folder


@pytest.fixture
def predict(exported: Path, tmp_path: Path, refuses: Callable) -> Callable[..., str]:
    """Predicts by the network with other files in it, whose digests its manifest knows, and other fields of that."""

    def run(files: dict[str, bytes | None] | None = None, **fields: Any) -> str:
        shutil.copytree(exported, tmp_path, dirs_exist_ok=True)
        manifest = json.loads((tmp_path / "net" / "manifest.json").read_text())
        for name, content in (files or {}).items():
            if content is None:
                (tmp_path / "net" / name).unlink()
            else:
                (tmp_path / "net" / name).write_bytes(content)
                manifest["digests"][name] = hashlib.sha256(content).hexdigest()
        if not files or "manifest.json" not in files:
            (tmp_path / "net" / "manifest.json").write_text(json.dumps(manifest | fields))
        return refuses(
            "predict", "net", "image.png", cwd=tmp_path, names=["net"] if "preprocessing" not in fields else []
        )

    return run


@pytest.mark.parametrize("case", MANIFESTS)
def test_predict_refuses_a_manifest(predict: Callable, case: str):
    predict({"manifest.json": MANIFESTS[case]})


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in FIELDS.items() for value in values])
def test_predict_refuses_a_field_of_the_manifest(predict: Callable, field: str, value: Any):
    predict(**{field: value})


@pytest.mark.parametrize("case", WEIGHTS)
def test_predict_refuses_weights(predict: Callable, case: str):
    predict({"weights.npz": WEIGHTS[case]})


@pytest.mark.parametrize("name", ["manifest.json", "program.stablehlo", "weights.npz"])
def test_predict_refuses_a_network_that_lacks_a_file(predict: Callable, name: str):
    predict({name: None})


def test_predict_refuses_files_that_are_swapped(predict: Callable, exported: Path):
    names = ("program.stablehlo", "weights.npz")
    program, weights = ((exported / "net" / name).read_bytes() for name in names)
    predict(dict(zip(names, (weights, program), strict=True)))


@OPTIONS
@hypothesis.given(share=st.floats(0, 0.99))
def test_predict_refuses_a_program_that_is_cut_short(predict: Callable, exported: Path, share: float):
    program = (exported / "net" / "program.stablehlo").read_bytes()
    predict({"program.stablehlo": program[: int(share * len(program))]})
