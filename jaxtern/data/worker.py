"""Start and end of worker processes."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker

# A terminal or a scheduler sends these to a whole group of processes, but only the parent answers them.
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def deaf_to_signals() -> Iterator[None]:
    """Processes started inside ignore SIGINT, SIGTERM and SIGHUP; this process handles them after the block."""
    resource_tracker.ensure_running()  # now, because starting it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # child processes inherit the mask
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent(*_: int) -> None:
    """Ends this worker process when its parent ends, even if the parent is killed; ignores its arguments."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
