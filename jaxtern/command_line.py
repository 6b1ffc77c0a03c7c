"""What the doors share: flags in, one line out for a mistake, an exit status."""

import contextlib
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import absl.logging
from absl import flags

from jaxtern.hosts.settings import to_line
from jaxtern.hosts.watch import is_kept, tell_failure

USAGE_ERROR = 2
HELP = flags.DEFINE_bool("help", False, "tell what there is to give", short_name="h")


_OF_IMAGES = "array_record", "cv2", "dm_pix", "grain", "safetensors", "simplejpeg", "tensorflow_datasets"
EXTRAS = {"matplotlib": "plots", "tensorflow": "tfds"} | dict.fromkeys(_OF_IMAGES, "images")  # that bring a package


class UsageError(Exception):
    """The user asked for something that cannot be done; the message is one line."""


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """Around the imports of a door, which take seconds: says so before, where the door, by its __name__, is run."""
    if name == "__main__" and "jax" not in sys.modules and os.environ.get("JAXTERN_PROCESS_ID", "0") == "0":
        tell("loading JAX")
    before = signal.getsignal(signal.SIGINT)
    if name == "__main__" and before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    with _ending_in_a_line():
        yield
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, before)


def _stop(*_: object) -> None:
    """After Ctrl-C while modules are imported, some of whose callbacks would swallow an exception."""
    tell("stopped by Ctrl-C")
    os._exit(130)


def run(main: Callable[..., int], positionals: Sequence[str] = (), more_help: Callable[[], str] = lambda: "") -> None:
    """Parses the flags, runs `main`, exits with its status; a UsageError is printed as one line, with status 2.

    Args:
      main: takes as many strings as there are positionals.
      positionals: names of the arguments that are no flags, all needed, as ("SOURCE", "OUT"); but a last one with dots,
        "IMAGE...", stands for any number, also none.
      more_help: behind what --help says of the flags.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jaxtern").setLevel(logging.INFO)
    # orbax tells of every option, and of what it raises too in many lines, in place of our one
    absl.logging.set_verbosity(absl.logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr, for names of files that are no text
    with _ending_in_a_line():
        rest = _parse(positionals)
        if HELP.value:
            print(sys.modules["__main__"].__doc__, flags.FLAGS.main_module_help() + more_help(), sep="\n")
            sys.exit(0)
        _require_positionals(rest, positionals)
        sys.exit(main(*rest))


@contextlib.contextmanager
def refusing(interrupted: str = "") -> Iterator[None]:
    """Makes a UsageError of what refuses input, a ValueError or an OSError; tells after Ctrl-C what is left."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(interrupted) from None
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from None


def tell(line: str) -> None:
    """Says what now takes its time; not on standard output, which has results."""
    print(line, file=sys.stderr, flush=True)


def describe(error: Exception) -> str:
    """Its message; of a missing package that an extra has, the command that installs it."""
    package = str(getattr(error, "name", "")).partition(".")[0]
    return f"{package} is missing: pip install 'jaxtern[{EXTRAS[package]}]'" if package in EXTRAS else str(error)


@contextlib.contextmanager
def _ending_in_a_line() -> Iterator[None]:
    """Exits with one line after a UsageError, a missing package, and Ctrl-C."""
    try:
        yield
    except (UsageError, ModuleNotFoundError) as error:
        line = to_line(describe(error))
        tell_failure(line, USAGE_ERROR)
        print(f"error: {line}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except KeyboardInterrupt as stopped:
        if is_kept():  # the others are to be told
            raise
        print(str(stopped) or "stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)


def _parse(positionals: Sequence[str]) -> list[str]:
    """Parses the flags; what is left."""
    flags.FLAGS.set_gnu_getopt(bool(positionals))  # flags may follow what is none
    try:
        return flags.FLAGS(sys.argv)[1:]
    except flags.Error as error:
        raise UsageError(str(error)) from None
    except RecursionError:  # where absl looks for a flag that is like a long one
        raise UsageError(f"unknown flag {max(sys.argv, key=len)[:80]}...") from None


def _require_positionals(rest: Sequence[str], positionals: Sequence[str]) -> None:
    """Refuses what is left of the flags, unless it is one string a positional."""
    needed = [name for name in positionals if not name.endswith("...")]
    if len(rest) < len(needed):
        raise UsageError(f"{needed[len(rest)]} is missing: give {' '.join(positionals)} (--help tells more)")
    if len(rest) > len(needed) == len(positionals):
        wanted = f"after {' '.join(positionals)} come flags alone, which" if positionals else "flags"
        example = "--workers=4" if positionals else "--config.run.batch_size=64"
        raise UsageError(f"argument {rest[len(positionals)]!r}: {wanted} start with --, as {example}")
