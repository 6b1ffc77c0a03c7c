"""One process of a cluster: joins, adds the numbers of all, prints what it is. See test_join.py."""

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from jaxtern import cluster, cluster_flags, command_line

FAIL = flags.DEFINE_integer("fail", None, "process that ends with status 3 once all have joined")


def main() -> int:
    jax.config.update("jax_platforms", "cpu")
    found = cluster_flags.join()
    if found.num_processes > 1 and FAIL.value is None:
        total = multihost_utils.process_allgather(np.int32(1 + found.process_id)).sum()
        assert (jax.process_index(), jax.process_count()) == found[:2]
    else:
        total = 1
    print(*found[:3], total, jax.distributed.is_initialized(), flush=True)
    return 3 if FAIL.value == found.process_id else 0


if __name__ == "__main__":
    with cluster.leaving_when_failed():
        command_line.run(main)
