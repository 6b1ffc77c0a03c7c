"""Compiling the native implementation: what is kept, and what happens where it cannot be."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from jaxtern.kernels import dispatch
from jaxtern.kernels.native import library as native_library

needs_native = pytest.mark.skipif(bool(dispatch.why_not_native()), reason=dispatch.why_not_native())

USE = """
import logging
logging.basicConfig(format="%(message)s")
logging.getLogger("jaxtern").setLevel("DEBUG")
import jax, jax.numpy as jnp
from jaxtern.kernels import Segments, moments
for _ in range(2):
    found = moments(jnp.ones(2**16), Segments((2**16,)))
print(float(found.mean[0]))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_library, "FLAGS", [flag for flag in native_library.FLAGS if flag != "-O3"])  # quickly
    return tmp_path / "jaxtern"


def _start() -> subprocess.Popen:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [sys.executable, "-c", USE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def _logged(process: subprocess.Popen) -> list[str]:
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "1.0\n"), err
    return [line for line in err.splitlines() if line.startswith("kernels:")]


@pytest.mark.slow
@needs_native
def test_two_processes_at_once_compile_and_keep_one_library(home: Path):
    for process in (_start(), _start()):
        assert _logged(process) == ["kernels: native"]
    (library,) = home.iterdir()
    assert native_library.is_whole(library)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.few("<lambda>0")
@needs_native
@pytest.mark.parametrize("damage", [lambda all_of_it: all_of_it[:5000], lambda _: b"", lambda x: b"\0" + x[1:]])
def test_a_damaged_library_is_replaced(home: Path, damage):
    library = native_library.build()
    whole = library.read_bytes()
    assert native_library.build() == library
    library.write_bytes(damage(whole))
    assert native_library.build() == library
    assert native_library.is_whole(library)
    assert list(home.iterdir()) == [library]


@pytest.mark.slow
@needs_native
def test_another_processor_compiler_or_source_has_a_library_of_its_own(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    first = native_library.build()
    with monkeypatch.context() as patch:
        patch.setattr(native_library, "_processor", lambda: b"another")
        second = native_library.build()
    monkeypatch.setenv("CC", "cc -DANOTHER")
    third = native_library.build()
    changed = tmp_path / "native_more.h"
    changed.write_text("/* more */")
    monkeypatch.setattr(native_library, "SOURCES", (*native_library.SOURCES, changed))
    assert len({first, second, third, native_library.build()}) == 4
    assert len(list(home.iterdir())) == 4


@pytest.mark.slow
def test_without_a_compiler_the_reference_runs_and_one_line_says_so(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    reason = "there is no C compiler: neither $CC nor cc, gcc or clang"
    with pytest.raises(native_library.CannotBuild) as error:
        native_library.build()
    assert str(error.value) == reason
    assert _logged(_start()) == [f"kernels: reference, as {reason}"]
    assert not home.exists()


def test_without_a_home_or_with_a_broken_command_the_reason_is_told(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "gcc 'x")
    with pytest.raises(native_library.CannotBuild, match=r"CC=.*: No closing quotation"):
        native_library.build()
    monkeypatch.delenv("CC")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", mock.Mock(side_effect=KeyError))
    with pytest.raises(native_library.CannotBuild, match="there is no home folder, nor XDG_CACHE_HOME"):
        native_library.build()
    assert not home.exists() or not list(home.iterdir())


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'native.c:1:2: error: bad luck' >&2; exit 1", "fails: native.c:1:2: error: bad luck"),
        ("exit 3", "fails: status 3"),
    ],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
):
    compiler = tmp_path / "bad-cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(native_library.CannotBuild) as error:
        native_library.build()
    assert str(error.value) == f"{compiler} {reason}"
    assert not list(home.iterdir())


def test_a_compiler_that_hangs_is_named(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiler = tmp_path / "slow-cc"
    compiler.write_text("#!/bin/sh\nexec sleep 60\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(native_library, "SECONDS", 0.1)
    with pytest.raises(native_library.CannotBuild, match=r"slow-cc took more than 0\.1 seconds"):
        native_library.build()
    assert not home.exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    monkeypatch.setenv("CC", "true")
    (line,) = _logged(_start())
    assert line.startswith("kernels: reference, as its library cannot be used: ")
    assert str(file) in line


def test_a_folder_that_others_may_write_to_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch):
    home.mkdir()
    home.chmod(0o777)
    monkeypatch.setenv("CC", "true")
    with pytest.raises(native_library.CannotBuild, match=f"others may write to {home}"):
        native_library.build()


@pytest.mark.parametrize(
    ("machine", "features", "level"),
    [
        ("x86_64", "sse2", "x86-64"),
        ("x86_64", "abm avx avx2 bmi1 bmi2 f16c fma movbe avx512f", "x86-64-v3"),
        ("x86_64", " ".join(sorted(native_library.LEVELS["x86_64"]["x86-64-v4"])), "x86-64-v4"),
        ("aarch64", "asimd", "armv8-a"),
        ("riscv64", "v", None),
    ],
)
def test_of_a_wheels_libraries_the_fastest_that_the_processor_runs_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, features: str, level: str | None
):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(native_library, "FOLDER", tmp_path)
    monkeypatch.setattr(native_library, "_processor", lambda: [machine, "model name: any", f"flags\t\t: {features}"])
    assert native_library.find_built_in() is None
    for each in ("x86-64", "x86-64-v3", "x86-64-v4", "armv8-a"):
        (tmp_path / f"native-{each}.so").write_bytes(b"")
    assert native_library.find_built_in() == (level and tmp_path / f"native-{level}.so")
