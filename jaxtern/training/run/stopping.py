"""Stops a run after a signal to any of its processes; all of them stop after the same step."""

import contextlib
import os
import signal
import time
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxtern.hosts.messages import to_devices
from jaxtern.training.step.mesh import DEVICE_AXIS

_ONE_SIGNAL_SECONDS = 0.5  # a supervisor may send a signal to a launcher, which passes it on, and to its processes


class Stopped(Exception):
    """A signal asked the run to stop; its state is saved."""

    def __init__(self, signal_number: int | None, step: int):
        """Takes the signal that this process received, None if another process did."""
        cause = f"by {signal.Signals(signal_number).name}" if signal_number else "by a signal to another process"
        super().__init__(f"stopped {cause} at step {step}; the same command continues")
        self.signal_number = signal_number or signal.SIGTERM


class StopSignals:
    """Notes the first SIGTERM, SIGINT or SIGHUP; another one, half a second later or more, acts at once.

    A single process stops after the current call. One of several tells the next call, whose metrics tell all others, so
    that they save the same step.
    """

    def __init__(self, mesh: Mesh):
        """Prepares what to tell the devices of a run's mesh."""
        self.received, self._received_at = None, 0.0  # the signal that this process received, and when
        self.agreed = False  # whether all processes know that they are to stop; if several, the metrics' reader sets it
        self._before: dict[int, Any] = {}
        self._flags: list[jax.Array] = []
        if jax.process_count() > 1:
            places = NamedSharding(mesh, PartitionSpec(DEVICE_AXIS))
            values = (np.full(mesh.shape[DEVICE_AXIS], value, np.float32) for value in (0, 1))
            self._flags = [to_devices(value, places) for value in values]

    def tell(self) -> jax.Array | None:
        """What to pass to the next call, so that all processes learn of a signal; None for a single process."""
        received = self.received is not None  # read once, as a signal may come in between
        if self._flags:
            return self._flags[received]
        self.agreed = received
        return None

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # shells make a script's background jobs ignore Ctrl-C
                self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        if self.received is None:
            self.received, self._received_at = number, time.monotonic()
            line = b"stopping once all is saved; a second signal stops at once\n"
            with contextlib.suppress(OSError):  # print is not for handlers; on a terminal the bar stands there
                os.write(2, b"\n" * os.isatty(2) + line)
        elif time.monotonic() - self._received_at > _ONE_SIGNAL_SECONDS:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __exit__(self, *exception: Any) -> None:
        self._restore()
