"""The native implementation's C library: from the wheel, or compiled at first use and cached.

The sources are the C files beside this one; they need jaxlib's C header of XLA's foreign function interface. The cache
finds a library by a digest of both, of the compiler and of the processor, so machines may share the folder.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import jax

OPS = ("moments", "ternary_encode", "ternary_decode", "shard_sum", "concatenate", "follow", "rotate")
FOLDER = Path(__file__).parent
SOURCES = tuple(sorted(FOLDER.glob("*.[ch]")))
HEADER = Path("xla", "ffi", "api", "c_api.h")
FLAGS = [
    *("-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-fPIC", "-shared", "-pthread"),
    *("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    # Without it, compilers use vectors of half the width on some processors that have AVX-512.
    *(["-mprefer-vector-width=512"] if platform.machine() == "x86_64" else []),
]
INPUTS = [*(str(path) for path in SOURCES if path.suffix == ".c"), "-lm", "-I", jax.ffi.include_dir()]
# By machine: the levels (-march) that a wheel may carry, the fastest first, and the processor features that they need.
_V3 = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4 = {*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
LEVELS = {"x86_64": {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64": set()}, "aarch64": {"armv8-a": set()}}
SECONDS = 120  # limit for compiling, which takes about one second

_lock = threading.Lock()


def why_not_native() -> str:
    """Why the library cannot be used, in a clause; "" if it can."""
    with _lock:
        return _load()


@functools.cache
def target_of(op: str) -> str:
    """XLA's name of an op. Programs in JAX's cache contain it, so it changes with the sources."""
    return f"jaxtern_{op}_{_digest(path.read_bytes() for path in SOURCES)[:16]}"


@functools.cache
def _load() -> str:
    built_in = find_built_in()
    with contextlib.suppress(OSError, jax.errors.JaxRuntimeError):  # made for another libc, or another interface of XLA
        if built_in is not None:
            _register(built_in)
            return ""
    try:
        _register(build())
    except CannotBuild as reason:
        return str(reason)
    except OSError as error:  # of a folder, or of the loader
        return f"its library cannot be used: {error}"
    return ""


def _register(path: Path) -> None:
    library = ctypes.CDLL(str(path))
    for op in OPS:
        function = jax.ffi.pycapsule(getattr(library, f"jaxtern_{op}"))
        jax.ffi.register_ffi_target(target_of(op), function, platform="cpu")


class CannotBuild(Exception):
    """The reason why there is no library, in a clause."""


def find_built_in() -> Path | None:
    """The wheel's fastest library that this processor can run; None if the wheel carries none."""
    features = {word for line in _processor() for word in line.split()}
    fitting = [level for level, needed in LEVELS.get(platform.machine(), {}).items() if needed <= features]
    return next((path for level in fitting if (path := FOLDER / f"native-{level}.so").is_file()), None)


def build() -> Path:
    """Compiles the library, unless it is in the cache; raises CannotBuild, or OSError if it cannot be kept."""
    compiler, header = find_compiler(), Path(jax.ffi.include_dir()) / HEADER
    if not header.is_file():
        raise CannotBuild(f"jaxlib has no header {header}")
    command = [*compiler, *FLAGS, "-march=native"]
    version = _run([*compiler, "--version"]).stdout
    files = [path.read_bytes() for path in (*SOURCES, header)]
    path = cache_folder() / f"native-{_digest([*files, repr((command, version, _processor())).encode()])}.so"
    if not is_whole(path):
        _compile([*command, *INPUTS, "-o"], path)
    return path


def find_compiler() -> list[str]:
    """The command of $CC, or the first of cc, gcc and clang."""
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise CannotBuild(f"CC={command!r}: {error}") from None
        found = shutil.which(words[0]) if words else None
        if found:
            return [found, *words[1:]]
    raise CannotBuild("there is no C compiler: neither $CC nor cc, gcc or clang")


def cache_folder() -> Path:
    """The cache folder of the user, to which nobody else may write."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (base if base.is_absolute() else Path.home() / ".cache") / "jaxtern"
    except RuntimeError:  # of a user without a name, as in containers
        raise CannotBuild("there is no home folder, nor XDG_CACHE_HOME") from None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise CannotBuild(f"others may write to {folder}")
    return folder


def programs_folder() -> Path:
    """The cache folder for programs that are compiled for this processor; raises CannotBuild or OSError."""
    folder = cache_folder() / f"programs-{_digest([repr(_processor()).encode()])[:16]}"
    folder.mkdir(exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise CannotBuild(f"{folder} cannot be written to")
    return folder


def is_whole(path: Path) -> bool:
    """Whether a file exists and ends with the digest of the rest; a loader crashes on a damaged library."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return content[-32:] == hashlib.sha256(content[:-32]).digest()


def _compile(command: list[str], path: Path) -> None:
    """Compiles to a file beside `path` and renames it, so that others find all of it or nothing."""
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(handle)
    try:
        done = _run([*command, partial])
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"status {done.returncode}"]
            raise CannotBuild(f"{command[0]} fails: {lines[0].strip()}")
        with Path(partial).open("rb+") as file:
            file.write(hashlib.sha256(file.read()).digest())
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a compiler to its end; raises CannotBuild if it takes too long."""
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{command[0]} took more than {SECONDS} seconds") from None


def _processor() -> list[str]:
    """The machine, and the processor's model and features as Linux lists them."""
    names = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return [platform.machine(), platform.processor(), *sorted({line for line in lines if line.startswith(names)})]


def _digest(parts) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()
