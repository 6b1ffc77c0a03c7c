"""Real processes of which one holds another state: all of them say which."""

from collections.abc import Callable

import pytest


@pytest.mark.slow
def test_processes_all_name_the_one_that_differs(open_script: Callable, end_of: Callable, free_port: int):
    arguments = f"--coordinator=127.0.0.1:{free_port}", "--num_processes=3"
    processes = [open_script("compare_process.py", *arguments, f"--process_id={i}") for i in range(3)]
    for process in processes:
        status, lines, errors = end_of(process)
        assert status == 0, "\n".join(errors)
        same, different = lines
        assert same == "None"
        assert different == "device 0 of process 1 (host host-1) differs from the other 2 devices in weights"
