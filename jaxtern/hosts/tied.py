"""python tied.py PARENT CORES COMMAND...: becomes COMMAND, which is killed when its parent ends, however that ends.

PARENT is the parent's process number; CORES is a list like 0,1 of those that may be used, or empty. By exec, not
between fork and exec in the parent, where Python is not safe.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # kept over exec; man 2 prctl


def main(parent: str, cores: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != int(parent):  # it ended before this was said
        sys.exit(1)
    if cores:
        os.sched_setaffinity(0, map(int, cores.split(",")))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
