"""Runs doors one after the other, each in a process forked from this one, which has imported what takes long.

Reads lines of JSON, [folder, environment, door, arguments, output], and answers each with a line, [status, seconds of
CPU, MiB of memory]; what the door prints goes to output.out and output.err. Every child is `python -m jaxtern.DOOR`
from its first line to the end of its process; one that takes too long is killed, and one that asks for too much memory
is refused it.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import signal
import sys
import time
import warnings
from pathlib import Path

PATIENCE = float(os.environ.get("DOOR_PATIENCE", "600"))  # seconds, on a machine that does other things too
CPU_SECONDS = 120
MEMORY = 6 << 30  # of addresses more than this process has; JAX alone takes some of them
PARTS = "artifact", "compression", "data", "hosts", "kernels", "models", "preparation", "training"
IMPORTED_LATE = (  # by functions that are called when they are needed
    "array_record.python.array_record_module", "jaxtern.configs.default", "matplotlib.backends.backend_agg",
    "ml_collections.config_flags", "scipy.io.matlab", "sklearn.datasets", "sklearn.model_selection",
    "tensorflow_datasets", "tensorflow_datasets.core.example_serializer", "tqdm",
)  # fmt: skip
FIRST_REGISTERED = contextlib.ExitStack()


def main() -> None:
    atexit.register(FIRST_REGISTERED.close)  # which runs last
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in PARTS:  # no door, which would define its flags here
            package = importlib.import_module(f"jaxtern.{part}")
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if "mgpu" not in module.name:
                    importlib.import_module(module.name)
        for module in IMPORTED_LATE:
            importlib.import_module(module)
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(serve(*json.loads(line))), flush=True)


def serve(folder: str, environment: dict[str, str], door: str, arguments: list[str], output: str) -> tuple:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of JAX, whose threads no child needs
        child = os.fork()
    if not child:
        run(folder, environment, door, arguments, output)
    deadline = time.monotonic() + PATIENCE
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)


def run(folder: str, environment: dict[str, str], door: str, arguments: list[str], output: str) -> None:
    """In the child, which ends as the door does."""
    os.setpgid(0, 0)
    os.chdir(folder)
    sys.path[0] = folder
    os.environ.update(environment)
    for stream, end in ((0, "in"), (1, "out"), (2, "err")):
        kind = os.O_RDONLY if end == "in" else os.O_WRONLY
        os.dup2(os.open(f"{output}.{end}", kind | os.O_CREAT, 0o600), stream)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    sys.argv = [f"jaxtern/{door}.py", *arguments]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    status = 1
    try:
        runpy.run_module(f"jaxtern.{door}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code or 0
    except BaseException:  # noqa: BLE001 - as Python ends
        sys.excepthook(*sys.exc_info())
    FIRST_REGISTERED.callback(leave, status if isinstance(status, int) else 1)
    sys.exit()


def leave(status: int) -> None:
    """After threads and what the door registered: Python would take a second to forget all imports."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
