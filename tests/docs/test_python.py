"""The Python of README.md and docs/ runs as it stands there."""

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NUM_DEVICES = 4


def test_blocks_of_a_page_run_in_their_order(
    python_page: str, read_blocks: Callable, start: Callable, finish: Callable, tmp_path: Path
):
    """In one namespace, in a process of its own; a block of text behind one is among what is printed."""
    blocks = [block for block in read_blocks(python_page) if not block.reason]
    code, told = "", []
    for block, behind in zip(blocks, [*blocks[1:], None], strict=True):
        if block.kind == "python":
            code += "\n" * (block.line - code.count("\n")) + block.code  # errors name the lines of the page
            told += [behind.code] if behind is not None and behind.kind == "text" else []
    (tmp_path / "page.py").write_text(code)
    run = "import runpy; runpy.run_path('page.py', run_name='__main__')"
    (output,) = finish(start(run, tmp_path, JAX_NUM_CPU_DEVICES=NUM_DEVICES))
    assert [each for each in told if each not in output] == []


def test_readmes_loop_learns_and_tells_the_loss_before_the_first_step(
    read_blocks: Callable, start: Callable, finish: Callable, tmp_path: Path
):
    (block,) = (block for block in read_blocks("README.md") if block.kind == "python")
    more = "print(jax.device_count(), loss(jax.tree.map(jnp.zeros_like, params), batch))"
    (output,) = finish(start(f"{block.code}\n{more}", tmp_path))
    last, devices, first = output.split()
    assert float(last) < 0.01
    assert devices == "4"
    assert f"{float(first):.2f} before the first step" in block.code


@pytest.mark.slow
def test_loop_on_many_hosts_continues_to_the_same_bits_in_two_processes(
    start: Callable, finish: Callable, tmp_path: Path
):
    code = (Path(__file__).parents[2] / "docs/examples/many_hosts.py").read_text()

    def run(folder: str, num_steps: int) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        cluster = {"JAXTERN_COORDINATOR": coordinator, "JAXTERN_NUM_PROCESSES": 2, "JAX_NUM_CPU_DEVICES": 2}
        both = [start(code, tmp_path, folder, num_steps, JAXTERN_PROCESS_ID=each, **cluster) for each in range(2)]
        return finish(*both)[0].partition("from step ")[2]

    assert run("halves", 7).startswith("0 to")
    continued, whole = run("halves", 30), run("whole", 30)
    assert (continued[:4], whole[:4]) == ("7 to", "0 to")
    assert continued[4:] == whole[4:]


def test_api_page_documents_what_is_public():
    import jaxtern

    page = Path(__file__).parents[2] / "docs/api.md"
    documented = re.findall(r"^\.\. \w+:: (?:jaxtern\.)?(\w+)(?:\(\))?$", page.read_text(), re.MULTILINE)
    assert {*jaxtern._HOMES, "cluster"} <= set(documented)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_loop", "digits_to_export"])
def test_notebooks_run(name: str, start: Callable, finish: Callable, tmp_path: Path):
    """As Jupyter does, in a folder that is empty; needs what `.[docs]` installs."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = Path(__file__).parents[2] / f"docs/notebooks/{name}.ipynb"
    run = "import sys, nbclient, nbformat as f; nbclient.NotebookClient(f.read(sys.argv[1], 4), timeout=900).execute()"
    where = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    finish(start(run, tmp_path, notebook, **where))
