"""One process of a cluster that adds numbers over and over, and may end in one of many ways. See test_watch.py."""

import re
import signal
import sys
import time

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from jaxtern import cluster, cluster_flags, command_line

WHO = flags.DEFINE_integer("who", -1, "process that does what is asked")
HOW = flags.DEFINE_string("how", "", "usage, exception, exit, words, late, stop, starve or hook")
STEPS = flags.DEFINE_integer("steps", 100_000, "how often to add")


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    process, count, *_ = cluster_flags.join()
    cluster.before_leaving(lambda: HOW.value == "hook" and print("hook ran"))
    for step in range(STEPS.value):
        total = multihost_utils.process_allgather(np.int32(process)).sum()
        assert total == count * (count - 1) // 2
        if step == 3:
            print("adds", flush=True)
        if step == 4 and process == WHO.value:
            misbehave(HOW.value)
        time.sleep(0.02)
    if HOW.value == "late" and process == WHO.value:
        time.sleep(4)
    print("done", flush=True)
    return 128 + signal.SIGTERM if HOW.value == "stop" else 0


def misbehave(how: str) -> None:
    match how:
        case "usage":
            raise command_line.UsageError("workdir='x': holds a run\nwith another config")
        case "exception":
            raise RuntimeError("a bug")
        case "exit":
            sys.exit(7)
        case "words":
            sys.exit("a reason in words")
        case "starve":
            re.match(r"(a+)+$", "a" * 24 + "b")  # holds on to the interpreter for some seconds


if __name__ == "__main__":
    with cluster.leaving_when_failed():
        command_line.run(main)
