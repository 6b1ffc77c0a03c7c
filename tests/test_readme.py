"""The code of README.md and docs/api.md runs as it stands."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def read_snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def start(code: str, folder: Path, *arguments: object, devices: int | None = None, **variables: object):
    """A process that runs code, as another that does not know of this one's devices."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)} | {k: str(v) for k, v in variables.items()}
    if devices is not None:
        environment["JAX_NUM_CPU_DEVICES"] = str(devices)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(*processes: subprocess.Popen) -> list[str]:
    """What each has printed, when all have ended well."""
    try:
        said = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), [errors for _, errors in said]
    return [output for output, _ in said]


def test_readme_training_loop_runs_and_learns(tmp_path):
    (snippet,) = read_snippets("README.md")
    (output,) = finish(start(snippet + "\nprint(jax.device_count())", tmp_path))
    last_loss, devices = output.split()
    assert float(last_loss) < 0.01
    assert devices == "4"


def test_readme_tells_the_loss_before_the_first_step(tmp_path):
    (snippet,) = read_snippets("README.md")
    (output,) = finish(start(re.sub(r"range\(\d+\)", "range(0)", snippet), tmp_path))
    assert f"{float(output):.2f} before the first step" in snippet


def test_api_page_names_what_is_public():
    import jaxtern

    section = (ROOT / "docs/api.md").read_text().partition("## In a loop")[0]
    listed = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    names = {name for cell in listed for name in re.findall(r"`(\w+)`", cell)}
    assert names == {*jaxtern._HOMES, "cluster"}


@pytest.mark.slow
def test_api_pages_recipe_trains(tmp_path):
    snippet, *_ = read_snippets("docs/api.md")
    (output,) = finish(start(snippet, tmp_path))
    assert float(output.split()[-1]) > 0.5
    assert (tmp_path / "runs/python/checkpoints/100").is_dir()


@pytest.mark.slow
def test_api_pages_loop_continues_to_the_same_bits_in_two_processes(tmp_path):
    _, snippet, _ = read_snippets("docs/api.md")

    def run(folder: str, num_steps: int) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        cluster = {"JAXTERN_COORDINATOR": coordinator, "JAXTERN_NUM_PROCESSES": 2}
        both = [
            start(snippet, tmp_path, folder, num_steps, devices=2, JAXTERN_PROCESS_ID=process, **cluster)
            for process in range(2)
        ]
        return finish(*both)[0].partition("from step ")[2]

    assert run("halves", 7).startswith("0 to")
    continued, whole = run("halves", 30), run("whole", 30)
    assert (continued[:4], whole[:4]) == ("7 to", "0 to")
    assert continued[4:] == whole[4:]
