"""Runs doors one after the other, each in a process forked from this one, which has imported what takes long.

Reads lines of JSON, [folder, environment, door, arguments, output], and answers each with a line, [status, seconds of
CPU, MiB of memory]; what the door prints goes to output.out and output.err. Every child is `python -m jaxtern.DOOR`
from its first line on; one that takes too long is killed, and one that asks for too much memory is refused it.
"""

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

PATIENCE = float(os.environ.get("DOOR_PATIENCE", "120"))  # seconds, on a machine that does other things too
CPU_SECONDS = 40
MEMORY = 6 << 30  # of addresses more than this process has; JAX alone takes some of them
PARTS = "artifact", "compression", "data", "hosts", "kernels", "models", "preparation", "training"


def main() -> None:
    warnings.simplefilter("ignore")
    for part in PARTS:  # no door, which would define its flags here
        package = importlib.import_module(f"jaxtern.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "mgpu" not in module.name:
                importlib.import_module(module.name)
    for line in sys.stdin:
        print(json.dumps(serve(*json.loads(line))), flush=True)


def serve(folder: str, environment: dict[str, str], door: str, arguments: list[str], output: str) -> tuple:
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
    """In the child: ends with the door's status."""
    os.setpgid(0, 0)
    os.chdir(folder)
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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    main()
