"""Shards written by several processes, each a shard at a time, with a bar that counts images."""

import multiprocessing
import time
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Any

import cv2
import tqdm

from jaxtern.data.worker import deaf_to_interrupts, follow_parent
from jaxtern.preparation.shards import ShardResult, Task, write_shard

_POLL_SECONDS = 0.2
_REPORT_SECONDS = 0.1
_counter: Any = None  # images done by all workers; in a worker, set by _start_worker
_stop: Any = None  # set when workers shall not go on


class _Stopped(Exception):
    """The worker was told to end."""


def write_shards(tasks: list[Task], workers: int) -> Generator[tuple[Task, ShardResult], None, None]:
    """Writes shards, each finished one as soon as it is; the bar is drawn on a terminal alone.

    Raises:
      ValueError, OSError: of the first shard that fails; the others are stopped, as they are when this is closed.
    """
    total = sum(len(task.shard.items) for task in tasks)
    with tqdm.tqdm(total=total, unit=" images", disable=None) as bar:
        if min(workers, len(tasks)) > 1:
            yield from _write_in_processes(tasks, workers, bar)
            return
        for task in tasks:
            yield task, write_shard(task, bar.update)


def _write_in_processes(tasks: list[Task], workers: int, bar: tqdm.tqdm) -> Iterator[tuple[Task, ShardResult]]:
    # Not forked from here, where JAX may have threads; the server of forks imports what takes long once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxtern.preparation.workers", "tensorflow_datasets.core.features"])
    resource_tracker.ensure_running()  # starting it unblocks interrupts, so before they are blocked
    with deaf_to_interrupts():
        forkserver.ensure_running()
    counter, stop = context.Value("q", 0), context.Event()
    shared = (counter, stop)
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _start_worker, shared) as pool:
        try:
            pending = {pool.submit(_write_counted, task): task for task in tasks}
            while pending:
                done, _ = wait(pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                bar.update(counter.value - bar.n)
                yield from _collect(done, pending)
        except BrokenProcessPool:
            raise OSError(
                "a worker process was killed, perhaps for want of memory; the same command goes on where it stopped,"
                " with fewer --workers if need be"
            ) from None
        finally:  # also when the caller is interrupted
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)


def _collect(done: set[Future], pending: dict[Future, Task]) -> Iterator[tuple[Task, ShardResult]]:
    for future in done:
        yield pending.pop(future), future.result()


def _start_worker(counter: Any, stop: Any) -> None:
    """The first that a worker does."""
    global _counter, _stop
    _counter, _stop = counter, stop
    cv2.setNumThreads(1)  # the cores are taken
    follow_parent()


def _write_counted(task: Task) -> ShardResult:
    count, last = 0, time.monotonic()

    def count_image() -> None:
        nonlocal count, last
        count += 1
        if time.monotonic() - last > _REPORT_SECONDS:  # both below take locks
            _report(count)
            count, last = 0, time.monotonic()
            if _stop.is_set():
                raise _Stopped

    result = write_shard(task, count_image)
    _report(count)
    return result


def _report(count: int) -> None:
    with _counter.get_lock():
        _counter.value += count
