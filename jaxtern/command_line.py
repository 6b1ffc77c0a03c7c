"""Shared by all commands: parses flags, prints one line for a mistake, and exits with a status."""

import contextlib
import errno
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
WRONG_PATH = {  # mistakes of the user; other errors are the system's, and starting again may help
    None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL,
    errno.ENAMETOOLONG, errno.EROFS,
}  # fmt: skip
HELP = flags.DEFINE_bool("help", False, "tell what there is to give", short_name="h")

_OF_IMAGES = "array_record", "cv2", "dm_pix", "grain", "safetensors", "simplejpeg", "tensorflow_datasets"
EXTRAS = {"matplotlib": "plots", "tensorflow": "tfds"} | dict.fromkeys(_OF_IMAGES, "images")  # by package


class Failure(Exception):
    """Ends a command with one line and status 1."""

    status = 1


class UsageError(Failure):
    """A mistake of the user; the message is one line."""

    status = USAGE_ERROR


@contextlib.contextmanager
def loading(name: str) -> Iterator[None]:
    """Wraps a command's imports, which take seconds; says so first if the command (`__name__`) is being run."""
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # closed, and the next file would get its number
            setattr(sys, stream, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
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
    """Exits after Ctrl-C during imports, as callbacks of some modules would swallow an exception."""
    tell("stopped by Ctrl-C")
    os._exit(130)


def run(main: Callable[..., int], positionals: Sequence[str] = (), more_help: Callable[[], str] = lambda: "") -> None:
    """Parses the flags, runs `main` and exits with its status; prints a UsageError as one line, with status 2.

    Args:
      main: takes as many strings as there are positionals.
      positionals: names of the required arguments without flags, such as ("SOURCE", "OUT"); a last name with dots,
        "IMAGE...", means any number, even none.
      more_help: returns text to print after the help on flags.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jaxtern").setLevel(logging.INFO)
    # orbax logs every option, and many lines for an error that we print in one
    absl.logging.set_verbosity(absl.logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # like stderr, for file names that are not text
    with _ending_in_a_line():
        rest = _parse(positionals)
        if HELP.value:
            told = flags.text_wrap(flags.doc_to_help(sys.modules["__main__"].__doc__ or ""))
            print(told, flags.FLAGS.main_module_help() + more_help(), sep="\n", flush=True)
            sys.exit(0)
        _require_positionals(rest, positionals)
        status = main(*rest)
        sys.stdout.flush()
        sys.exit(status)


@contextlib.contextmanager
def refusing(interrupted: str = "", place: object = "") -> Iterator[None]:
    """Ends after a ValueError or OSError, at a path or `place`, by its status; after Ctrl-C, prints `interrupted`."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(interrupted) from None
    except (ValueError, OSError) as error:
        if isinstance(error, ValueError) or error.errno in WRONG_PATH:
            raise UsageError(str(error)) from None
        raise Failure(describe(error, place)) from None


def tell(line: str) -> None:
    """Says what takes time now, on standard error, as standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def describe(error: Exception, place: object = "") -> str:
    """The message of an error; the system's with the path or `place`, a missing package's with the remedy."""
    package = str(getattr(error, "name", "")).partition(".")[0]
    if package in EXTRAS:
        return f"{package} is missing: pip install 'jaxtern[{EXTRAS[package]}]'"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or place}: {error.strerror}"
    return str(error)


@contextlib.contextmanager
def _ending_in_a_line() -> Iterator[None]:
    """Exits with one line after a Failure, a missing package, or Ctrl-C; quietly once nobody reads its output."""
    try:
        yield
    except (Failure, ModuleNotFoundError) as error:
        line, status = to_line(describe(error)), error.status if isinstance(error, Failure) else USAGE_ERROR
        tell_failure(line, status)
        print(f"error: {line}", file=sys.stderr)
        sys.exit(status)
    except BrokenPipeError:
        tell_failure("standard output: Broken pipe", 128 + signal.SIGPIPE)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt as stopped:
        if is_kept():  # the other processes must be told
            raise
        print(str(stopped) or "stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)


def _parse(positionals: Sequence[str]) -> list[str]:
    """Parses the flags; returns the other arguments."""
    flags.FLAGS.set_gnu_getopt(bool(positionals))  # so that flags may follow other arguments
    try:
        return flags.FLAGS(sys.argv)[1:]
    except flags.Error as error:
        hint = "; flags of the trainer come after --" if "-- FLAG..." in positionals else ""
        raise UsageError(f"{error}{hint}") from None
    except RecursionError:  # from absl's search for flags like a long one
        raise UsageError(f"unknown flag {max(sys.argv, key=len)[:80]}...") from None


def _require_positionals(rest: Sequence[str], positionals: Sequence[str]) -> None:
    """Raises UsageError unless there is one argument for each positional."""
    needed = [name for name in positionals if not name.endswith("...")]
    if len(rest) < len(needed):
        raise UsageError(f"{needed[len(rest)]} is missing: give {' '.join(positionals)} (--help tells more)")
    if len(rest) > len(needed) == len(positionals):
        raise UsageError(f"argument {rest[len(positionals)]!r}: is one too many; flags start with --, as --help does")
