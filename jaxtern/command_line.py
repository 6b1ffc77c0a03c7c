"""What the doors share: flags in, one line out for a mistake, an exit status."""

import io
import logging
import sys
from collections.abc import Callable, Sequence

import absl.logging
from absl import flags

from jaxtern.hosts.settings import to_line
from jaxtern.hosts.watch import tell_failure

USAGE_ERROR = 2


class UsageError(Exception):
    """The user asked for something that cannot be done; the message is one line."""


def run(
    main: Callable[..., int],
    positionals: Sequence[str] = (),
    resolve: Callable[[list[str]], list[str]] = lambda arguments: arguments,
    more_help: Callable[[], str] = lambda: "",
) -> None:
    """Parses the flags, runs `main`, exits with its status; a UsageError is printed as one line, with status 2.

    Args:
      main: takes as many strings as there are positionals.
      positionals: names of the arguments that are no flags, all needed, as ("SOURCE", "OUT"); but a last one with dots,
        "IMAGE...", stands for any number, also none.
      resolve: what was typed behind the door's name to what is parsed.
      more_help: behind what --help says of the flags.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("jaxtern").setLevel(logging.INFO)
    # orbax tells of every option, and of what it raises too in many lines, in place of our one
    absl.logging.set_verbosity(absl.logging.FATAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr, for names of files that are no text
    try:
        if any(argument in ("--help", "-help", "-h") for argument in sys.argv):
            print(sys.modules["__main__"].__doc__, flags.FLAGS.main_module_help() + more_help(), sep="\n")
            sys.exit(0)
        status = main(*_parse([sys.argv[0], *resolve(sys.argv[1:])], positionals))
    except UsageError as error:
        line = to_line(str(error))
        tell_failure(line, USAGE_ERROR)
        print(f"error: {line}", file=sys.stderr)
        status = USAGE_ERROR
    sys.exit(status)


def _parse(argv: list[str], positionals: Sequence[str]) -> list[str]:
    """Parses the flags; what is left, one string a positional."""
    flags.FLAGS.set_gnu_getopt(bool(positionals))  # flags may follow what is none
    try:
        _, *rest = flags.FLAGS(argv)
    except flags.Error as error:
        raise UsageError(str(error)) from None
    needed = [name for name in positionals if not name.endswith("...")]
    if len(rest) < len(needed):
        raise UsageError(f"{needed[len(rest)]} is missing: give {' '.join(positionals)} (--help tells more)")
    if len(rest) > len(needed) == len(positionals):
        wanted = f"after {' '.join(positionals)} come flags alone, which" if positionals else "flags"
        example = "--workers=4" if positionals else "--config.run.batch_size=64"
        raise UsageError(f"argument {rest[len(positionals)]!r}: {wanted} start with --, as {example}")
    return rest
