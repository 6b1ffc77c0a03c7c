"""A process that trains, but of which process 1 is slow before, or after, all is prepared. See test_slow.py."""

import os
import time
from typing import Any

from absl import flags

from jaxtern import cluster, command_line, train
from jaxtern.hosts import messages
from jaxtern.training.run import run

SLOW = flags.DEFINE_enum("slow", None, ["data", "start"], "what takes long in process 1")
SECONDS = 35.0  # longer than the 30 in which gloo wants a connection made


def slowly(function: Any) -> Any:
    """The same, after a while, in process 1."""

    def wait(*arguments: Any) -> Any:
        if os.environ["JAXTERN_PROCESS_ID"] == "1":
            time.sleep(SECONDS)
        return function(*arguments)

    return wait


def main() -> int:
    if SLOW.value == "data":
        run.open_inputs = slowly(run.open_inputs)
    else:
        train.prepare_run = prepare_with_slow_start
    return train.main()


def prepare_with_slow_start(*arguments: Any) -> run.Run:
    prepared = run.prepare_run(*arguments)
    messages.meet()  # from here on one is late
    slowly(lambda: None)()
    return prepared


if __name__ == "__main__":
    with cluster.leaving_when_failed():
        command_line.run(main)
