"""Gives links latency: every frame passes this process, and waits in it. Kernels often lack netem, which does the same.

    python -m benchmarks.netlab.relay SECONDS BRIDGE HOST ...

makes one TAP device in each host's namespace and one in the bridge's, joins the two, and holds each frame for so many
seconds. It says "ready" once the devices are there, and ends when its standard input does.
"""

import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections.abc import Sequence

from benchmarks.netlab.system import INTERFACE, NAMESPACES, port

MTU = 16_000  # bytes; fewer frames for this process, and below every token bucket's size
_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_AT_ONCE = 64  # frames read before others are written


def main(seconds: str, bridge: str, *hosts: str) -> None:
    others: dict[int, int] = {}
    for number, host in enumerate(hosts):
        near, far = create_tap(host, INTERFACE), create_tap(bridge, port(number))
        others |= {near: far, far: near}
    print("ready", flush=True)
    relay(others, float(seconds))


def create_tap(namespace: str, name: str) -> int:
    """The descriptor of a new device in a namespace, in which this process then stays."""
    with (NAMESPACES / namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return tap


def relay(others: dict[int, int], seconds: float) -> None:
    """Passes frames from each device to its other one until standard input ends."""
    waiting: collections.deque[tuple[float, int, bytes]] = collections.deque()
    standard_input = sys.stdin.fileno()
    while True:
        timeout = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
        readable, _, _ = select.select([standard_input, *others], [], [], timeout)
        if standard_input in readable:
            return
        due = time.monotonic() + seconds
        for tap in readable:
            waiting.extend((due, others[tap], frame) for frame in read_frames(tap))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tap, frame = waiting.popleft()
            with contextlib.suppress(OSError):  # down: the frame is lost
                os.write(tap, frame)


def read_frames(tap: int) -> Sequence[bytes]:
    """The frames that a device holds, up to some number."""
    frames: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(frames) < _AT_ONCE:
            frames.append(os.read(tap, 2**16))
    return frames


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
