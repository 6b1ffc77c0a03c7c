"""Writes shards in several processes, with a progress bar that counts images."""

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

_stop: Any = None  # in a worker process: a shared flag that tells it to end


def write_shards(tasks: list[Task], workers: int) -> Generator[tuple[Task, ShardResult], None, None]:
    """Writes shards, and yields each as soon as it is finished; draws the bar on terminals only.

    Closing the generator, or the ValueError or OSError of a shard that fails, stops all workers.
    """
    total = sum(len(task.shard.items) for task in tasks)
    with tqdm.tqdm(total=total, unit=" images", disable=None) as bar:
        if min(workers, len(tasks)) > 1:
            yield from _write_in_processes(tasks, workers, bar)
            return
        for task in tasks:
            yield task, write_shard(task, bar.update)


def _write_in_processes(tasks: list[Task], workers: int, bar: tqdm.tqdm) -> Iterator[tuple[Task, ShardResult]]:
    # A fork server, as JAX may have threads here; it imports the slow modules once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["jaxtern.preparation.workers", "tensorflow_datasets.core.features"])
    with deaf_to_signals():
        forkserver.ensure_running()
    stop = context.RawValue("b", 0)  # without a lock, which a killed worker might hold
    with ProcessPoolExecutor(min(workers, len(tasks)), context, _start_worker, (stop,)) as pool:
        try:
            writing = {pool.submit(_write_until_stopped, task): task for task in tasks}
            for future in as_completed(writing):
                result, task = future.result(), writing[future]
                bar.update(len(task.shard.items))
                yield task, result
        except BrokenProcessPool:
            for child in multiprocessing.active_children():  # from Python 3.12 on, the pool ends them by SIGTERM
                child.kill()
            raise OSError(
                "a worker process was killed, perhaps for lack of memory; run the same command again to continue,"
                " with fewer --workers if need be"
            ) from None
        finally:  # also if the caller is interrupted
            stop.value = 1
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(stop: Any) -> None:
    global _stop  # noqa: PLW0603
    _stop = stop
    cv2.setNumThreads(1)  # the other processes use the other cores
    follow_parent()


def _write_until_stopped(task: Task) -> ShardResult:
    def require_going_on() -> None:
        if _stop.value:
            raise CancelledError

    return write_shard(task, require_going_on)
