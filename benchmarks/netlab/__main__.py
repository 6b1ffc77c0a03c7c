"""The command that runs another on every host of a laboratory; its --help is the package's docstring."""

import argparse
import sys

from benchmarks import netlab
from benchmarks.commands import create_parser
from benchmarks.netlab import Lab, LabError, clean, why_not


def main() -> None:
    arguments = parse()
    try:
        if arguments.clean:
            if reason := why_not():
                raise LabError(reason)
            print(f"removed {clean()} laboratories")
            return
        with Lab(arguments.hosts, arguments.rate, arguments.latency) as lab:
            results = lab.run([arguments.command] * lab.hosts, arguments.timeout, on_line=_print)
    except (LabError, TimeoutError) as error:
        print(f"netlab: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(124 if isinstance(error, TimeoutError) else 2)
    except KeyboardInterrupt:
        sys.exit(130)
    failed = [result.returncode for result in results if result.returncode and not result.ended]
    sys.exit((failed[0] if failed[0] > 0 else 128 - failed[0]) if failed else 0)


def parse() -> argparse.Namespace:
    parser = create_parser(netlab.__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate", help="of every link, both ways, such as 1gbit; left out: as fast as the machine is")
    parser.add_argument("--latency", help="from host to host, such as 20ms; left out: as short as the machine has it")
    parser.add_argument("--timeout", type=float, help="seconds, after which all are ended, with status 124")
    parser.add_argument("--clean", action="store_true", help="only remove what laboratories left whose owner is gone")
    parser.add_argument("command", nargs="*", help="after --, what every host runs; the first failure's status is ours")
    arguments = parser.parse_args()
    if not arguments.clean and not arguments.command:
        parser.error("COMMAND: must be given, after --")
    try:
        Lab(arguments.hosts, arguments.rate, arguments.latency)
    except ValueError as error:
        parser.error(f"--{error}")
    return arguments


def _print(host: int, line: str) -> None:
    print(f"{host}: {line}", end="" if line.endswith("\n") else "\n", flush=True)


if __name__ == "__main__":
    main()
