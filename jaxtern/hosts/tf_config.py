"""Reads TF_CONFIG, which tells the processes of a TensorFlow cluster who they are.

Format: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable
"""

import json
import logging
from typing import Any

from jaxtern.hosts.settings import ALONE, Cluster, parse_address, parse_count, shorten

logger = logging.getLogger(__name__)

_TRAINING = "chief", "master", "worker"  # in the order of their processes
_TYPES = (*_TRAINING, "ps", "evaluator")


class Evaluates(Exception):
    """This process should not train, but evaluate the run's checkpoints as they come."""


class Unneeded(Exception):
    """This process is a parameter server, which training here does not need."""


def read_tf_config(text: str) -> Cluster:
    """Reads the process that TF_CONFIG describes: the chief or master is process 0, the workers follow in order.

    The coordinator is the address of process 0, where no TensorFlow server runs.

    Raises:
      ValueError: for anything but {"cluster": {TYPE: [HOST:PORT, ...], ...}, "task": {"type": TYPE, "index": INDEX}}.
      Evaluates: for an evaluator.
      Unneeded: for a parameter server.
    """
    cluster, task = _parse(text)
    addresses = {kind: _read_addresses(kind, entries) for kind, entries in cluster.items()}
    processes = [address for kind in _TRAINING for address in addresses.get(kind, [])]
    chiefs = len(processes) - len(addresses.get("worker", []))
    if chiefs > 1:
        raise ValueError(f"TF_CONFIG: cluster has {chiefs} chiefs and masters; there must be one, or none")
    if not processes:
        raise ValueError(f"TF_CONFIG: cluster={shorten(cluster)}: must have a 'chief' or a 'worker'")
    twice = next((each for each in processes if processes.count(each) > 1), None)
    if twice is not None:
        raise ValueError(f"TF_CONFIG: cluster: two processes have the address {shorten(twice)}")
    kind, index = _read_task(task, addresses)
    if addresses.get("ps"):
        logger.info("TF_CONFIG: parameter servers are not needed: workers exchange gradients among themselves")
    process = index + (chiefs if kind == "worker" else 0)
    return Cluster(process, len(processes), processes[0]) if len(processes) > 1 else ALONE


def _parse(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parses cluster and task, whose contents are not checked here."""
    try:
        config = json.loads(text, object_pairs_hook=_object_of)
    except (ValueError, RecursionError) as error:  # also for a number with too many digits for Python
        raise ValueError(f"TF_CONFIG={shorten(text)}: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG={shorten(text)}: must be an object with 'cluster' and 'task'")
    for name in ("cluster", "task"):
        if not isinstance(config.get(name), dict):
            raise ValueError(f"TF_CONFIG: {name}={shorten(config.get(name))}: must be an object")
    return config["cluster"], config["task"]


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dict of a JSON object; refuses a name that stands in it twice."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{shorten(twice)} stands twice in an object")
    return dict(pairs)


def _read_addresses(kind: str, entries: Any) -> list[str]:
    if kind not in _TYPES:
        raise ValueError(f"TF_CONFIG: cluster: {shorten(kind)} must be one of {', '.join(_TYPES)}")
    if not isinstance(entries, list):
        raise ValueError(f"TF_CONFIG: cluster: {kind}={shorten(entries)}: must be a list of HOST:PORT")
    for index, entry in enumerate(entries):
        parse_address(f"TF_CONFIG: cluster: {kind}[{index}]", entry)
    return entries


def _read_task(task: dict[str, Any], addresses: dict[str, list[str]]) -> tuple[str, int]:
    """Reads type and index of a process that trains."""
    kind = task.get("type")
    if kind == "ps":
        raise Unneeded("TF_CONFIG: parameter servers are not needed: this ps task has nothing to do and ends")
    if kind == "evaluator":
        raise Evaluates(
            "TF_CONFIG: task: type='evaluator': evaluates beside training, as jaxtern.evaluate --follow does"
        )
    if kind not in _TRAINING:
        raise ValueError(f"TF_CONFIG: task: type={shorten(kind)}: must be one of {', '.join(_TYPES)}")
    count = len(addresses.get(kind, []))
    if not count:
        raise ValueError(f"TF_CONFIG: task: type={shorten(kind)}: cluster has none of that type")
    index = parse_count("TF_CONFIG: task: index", task.get("index"))
    if not 0 <= index < count:
        raise ValueError(
            f"TF_CONFIG: task: index={shorten(index)}: must be from 0 to {count - 1}, as cluster has {count} {kind}s"
        )
    return kind, index
