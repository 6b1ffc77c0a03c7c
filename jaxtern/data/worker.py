"""How processes that work for this one begin, and end."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

# That a terminal or a scheduler sends to a whole group of processes, but is for the parent to answer.
_SIGNALS = {signal.SIGINT, signal.SIGTERM}


@contextlib.contextmanager
def deaf_to_signals() -> Iterator[None]:
    """Processes started inside never hear Ctrl-C or SIGTERM; for this one such a signal waits until the end."""
    resource_tracker.ensure_running()  # not later: starting it unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # children inherit what is blocked
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """Makes a worker end with its parent, however that ends: also when it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
