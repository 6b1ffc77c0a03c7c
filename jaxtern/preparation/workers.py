"""Shards written by several processes, each a shard at a time, with a bar that counts images."""

import multiprocessing
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any

import cv2
import tqdm

from jaxtern.data.worker import deaf_to_signals, follow_parent
from jaxtern.preparation.shards import ShardResult, Task, write_shard

_stop: Any = None  # whether workers shall end; in a worker, set by _start_worker


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
    with deaf_to_signals():
        forkserver.ensure_running()
    stop = context.RawValue("b", 0)  # without a lock, which a worker that is killed may hold
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _start_worker, (stop,)) as pool:
        try:
            writing = {pool.submit(_write_until_stopped, task): task for task in tasks}
            for future in as_completed(writing):
                result, task = future.result(), writing[future]
                bar.update(len(task.shard.items))
                yield task, result
        except BrokenProcessPool:
            raise OSError(
                "a worker process was killed, perhaps for want of memory; the same command goes on where it stopped,"
                " with fewer --workers if need be"
            ) from None
        finally:  # also when the caller is interrupted
            stop.value = 1
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(stop: Any) -> None:
    """Runs first in a worker."""
    global _stop  # noqa: PLW0603
    _stop = stop
    cv2.setNumThreads(1)  # the cores are taken
    follow_parent()


def _write_until_stopped(task: Task) -> ShardResult:
    def require_going_on() -> None:
        if _stop.value:
            raise CancelledError

    return write_shard(task, require_going_on)
