"""What workers on hosts share, of whatever library: clock, counters, orders. Imports neither JAX nor torch.

The parent writes an order a line to a worker's standard input, {"do": NAME, ...}, and reads an answer a line from its
standard output. Whatever else libraries print goes to standard error.
"""

import hashlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.netlab.lab import interface_bytes

BARRIERS = 5  # whose bytes are measured
HEADER = 14 + 20 + 32  # bytes of Ethernet, IP, and TCP with time stamps, of every packet that the interface counts


def measure(run: Callable[[], Any], refill: Callable[[], Any], barrier: Callable[[], Any], repeats: int) -> dict:
    """Seconds and interface bytes of `run`, in every one of `repeats`, after one that warms up connections.

    `refill` comes before, outside of the clock. The barriers on either side are subtracted from the bytes.
    """
    own = [_count(lambda: None, barrier)[1:] for _ in range(BARRIERS)]
    overhead = [sorted(each)[BARRIERS // 2] for each in zip(*own, strict=True)]
    found = []
    for _ in range(repeats + 1):
        refill()
        seconds, *counted = _count(run, barrier)
        found.append((seconds, *(count - own for count, own in zip(counted, overhead, strict=True))))
    seconds, sent, received, payload = zip(*found[1:], strict=True)
    return {"seconds": seconds, "sent": sent, "received": received, "payload": payload, "barrier_bytes": overhead}


def _count(run: Callable[[], Any], barrier: Callable[[], Any]) -> tuple[float, int, int, int]:
    """Seconds; bytes sent, received, and sent without headers."""
    barrier()
    before = interface_bytes()
    barrier()
    start = time.perf_counter()
    run()
    seconds = time.perf_counter() - start
    barrier()
    after = interface_bytes()
    sent, packets = after.sent - before.sent, after.sent_packets - before.sent_packets
    return seconds, sent, after.received - before.received, sent - HEADER * packets


def digest(arrays: Iterable[Any]) -> str:
    """Of the bits of NumPy arrays."""
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(array.reshape(-1).view("uint8"))
    return made.hexdigest()


def serve(create: Callable[[], Any], names: Iterable[str]) -> None:
    """Creates a worker, whose methods of these names answer orders until there are no more.

    A failure is an answer too, and the end.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo reports connections on standard output
    worker = create()
    handlers = {name: getattr(worker, name) for name in names}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer: dict[str, Any] = handlers[order.pop("do")](**order)
        except Exception as error:  # noqa: BLE001 it becomes the row of a table
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        answer["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(answer), file=answers, flush=True)
        if "error" in answer:
            break
    answers.close()
    os._exit(0)  # the shutdown of a library waits for the others, which the parent ends
