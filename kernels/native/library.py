"""The native implementation's library: C, compiled at first use by the compiler that is there, and kept.

The sources are the C files beside this one. They need jaxlib's C header of XLA's foreign function interface, so what
is kept depends on both, and on the compiler and the processor: a library is found by a digest of them all, and another
machine that shares the folder compiles its own.
"""

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

OPS = ("moments", "ternary_encode", "ternary_decode", "shard_sum", "shard_mean", "concatenate", "follow", "rotate")
SOURCES = tuple(sorted(Path(__file__).parent.glob("*.[ch]")))
HEADER = Path("xla", "ffi", "api", "c_api.h")
FLAGS = [
    *("-std=c11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-fPIC", "-shared", "-pthread"),
    *("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
]
# Without it compilers take vectors of half the width on some processors that have AVX-512.
X86_FLAGS = ["-mprefer-vector-width=512"]
SECONDS = 120  # to compile; it takes about one

_lock = threading.Lock()


def why_not_native() -> str:
    """Why the library cannot be had, in a clause; nothing where it can."""
    with _lock:
        return _load()


@functools.cache
def target_of(op: str) -> str:
    """The name that XLA knows an op by. Programs that JAX keeps on disk hold it, so it changes with the sources."""
    return f"jaxtern_{op}_{_digest(path.read_bytes() for path in SOURCES)[:16]}"


@functools.cache
def _load() -> str:
    try:
        library = ctypes.CDLL(str(build()))
        for op in OPS:
            function = jax.ffi.pycapsule(getattr(library, f"jaxtern_{op}"))
            jax.ffi.register_ffi_target(target_of(op), function, platform="cpu")
    except CannotBuild as reason:
        return str(reason)
    except OSError as error:  # of a folder, or of the loader
        return f"its library cannot be used: {error}"
    return ""


class CannotBuild(Exception):
    """Why there is no library, in a clause."""


def build() -> Path:
    """The library: compiled now, or whole in the cache from before.

    Raises:
      CannotBuild: where it cannot be compiled.
      OSError: where it cannot be kept.
    """
    compiler, header = find_compiler(), Path(jax.ffi.include_dir()) / HEADER
    if not header.is_file():
        raise CannotBuild(f"jaxlib has no header {header}")
    flags = [*FLAGS, *(X86_FLAGS if platform.machine() == "x86_64" else [])]
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False, timeout=SECONDS).stdout
    files = [path.read_bytes() for path in (*SOURCES, header)]
    path = cache_folder() / f"native-{_digest([*files, repr((compiler, flags)).encode(), version, _processor()])}.so"
    if not is_whole(path):
        _compile([*compiler, *flags, *(str(each) for each in SOURCES if each.suffix == ".c"), "-lm"], path)
    return path


def find_compiler() -> list[str]:
    """The command of $CC, or the first of cc, gcc and clang."""
    for command in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        words = shlex.split(command)
        found = shutil.which(words[0]) if words else None
        if found:
            return [found, *words[1:]]
    raise CannotBuild("there is no C compiler: neither $CC nor cc, gcc or clang")


def cache_folder() -> Path:
    """The user's own, which nobody else can put a library into."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".cache") / "jaxtern"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise CannotBuild(f"others may write to {folder}")
    return folder


def is_whole(path: Path) -> bool:
    """Whether a file is there and ends with the digest of what is before it; a loader ends the process on less."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return content[-32:] == hashlib.sha256(content[:-32]).digest()


def _compile(command: list[str], path: Path) -> None:
    """Compiles beside `path` and renames, so that others find all of it or nothing."""
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
    os.close(handle)
    try:
        command = [*command, "-I", jax.ffi.include_dir(), "-o", partial]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"status {done.returncode}"]
            raise CannotBuild(f"{command[0]} fails: {lines[0].strip()}")
        with Path(partial).open("rb+") as file:
            file.write(hashlib.sha256(file.read()).digest())
        os.replace(partial, path)
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"{command[0]} took more than {SECONDS} seconds") from None
    finally:
        Path(partial).unlink(missing_ok=True)


def _processor() -> bytes:
    """What the compiler makes code for: the model and features as Linux lists them."""
    names = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    own = sorted({line for line in lines if line.startswith(names)})
    return "\n".join([platform.machine(), platform.processor(), *own]).encode()


def _digest(parts) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()
