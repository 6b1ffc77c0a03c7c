"""python tied.py PARENT COMMAND...: becomes COMMAND, which is killed when its parent ends, however that ends.

PARENT is the parent's process number. By exec, not between fork and exec in the parent, where Python is not safe.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # kept over exec; man 2 prctl


def main(parent: str, *command: str) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != int(parent):  # it ended before this was said
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
