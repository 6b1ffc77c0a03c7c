"""The tree is what it says it is: the packages, what the wheel and the sdist hold, and which way imports run."""

import ast
import importlib.metadata
import inspect
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copy, copytree

import pytest

import jaxtern

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("kernels", "configs")  # top-level folders, installed inside jaxtern

PARTS = {"kernels", "compression", "models", "data", "artifact", "training", "cluster", "hosts"}
ARROWS = {  # what a part of jaxtern may import, besides itself and the version
    "kernels": set(),
    "hosts": set(),
    "cluster": {"hosts"},
    "cluster_flags": {"cluster", "command_line"},
    "compression": {"kernels"},
    "planning": {"compression", "kernels"},
    "models": {"kernels"},
    "data": {"kernels"},
    "preparation": {"data"},
    "artifact": {"data"},
    "training": {*PARTS, "planning"},
    "configs": {"training"},
    "command_line": {"hosts"},
    "recipe_flags": {"training", "command_line", "configs"},
    "train": {*PARTS, "command_line", "recipe_flags", "cluster_flags"},
    "plan": {*PARTS, "planning", "command_line", "recipe_flags"},
    "predict": {"artifact", "data", "command_line"},
    "prepare": {"preparation", "data", "training", "command_line"},
    "run_flags": {"command_line"},
    "__main__": {"command_line"},
    **{door: {*PARTS, "command_line", "run_flags"} for door in ("evaluate", "export")},
    "launch": {*PARTS, "command_line"},
    "": PARTS,  # jaxtern/__init__.py, the public names
}


def list_modules() -> dict[str, Path]:
    """Every module of the tree: its name when installed, and its file."""
    modules = {}
    for package, folder in [("jaxtern", "jaxtern"), *((f"jaxtern.{name}", name) for name in LINKED)]:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if package != "jaxtern" or parts[0] not in LINKED:  # not a second time, through the links
                modules[".".join((package, *parts)).removesuffix(".__init__")] = path
    return modules


MODULES = list_modules()


def list_imports(module: str) -> Iterator[str]:
    """The full names of all that a module imports, wherever in the file."""
    path = MODULES[module]
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)


IMPORTS = [(module, name) for module in MODULES for name in list_imports(module)]


def lies_in(name: str, *packages: str) -> bool:
    """Whether a full name is one of these packages or lies inside it."""
    return any((name + ".").startswith(package + ".") for package in packages)


def part_of(name: str) -> str:
    """The first name below jaxtern: compression, for jaxtern.compression.codecs; nothing for jaxtern's own names."""
    part = (*name.split("."), "")[1]
    return part if f"jaxtern.{part}" in MODULES else ""


def read_setuptools() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_packages_listed_equal_packages_in_tree():
    assert sorted(read_setuptools()["packages"]) == sorted(n for n, path in MODULES.items() if path.stem == "__init__")


def test_packages_contain_every_module():
    assert {module.rpartition(".")[0] for module in MODULES} <= {"", *read_setuptools()["packages"]}


def test_links_and_mapping_lead_to_the_same_folders():
    assert read_setuptools()["package-dir"] == {f"jaxtern.{name}": name for name in LINKED}
    if (ROOT / ".git").exists():  # an sdist does without the links
        assert [(ROOT / "jaxtern" / name).readlink() for name in LINKED] == [Path("..", name) for name in LINKED]


def build(kind: str, tree: Path, folder: Path) -> Path:
    """The sdist or the wheel of `tree`, built offline into `folder`."""
    call = f"import setuptools.build_meta as b; b.build_{kind}({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", call], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    tree, built, unpacked = (tmp_path_factory.mktemp(name) for name in ("tree", "sdist", "unpacked"))
    for name in ("jaxtern", *LINKED):
        copytree(ROOT / name, tree / name, symlinks=True)
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        copy(ROOT / name, tree)
    with tarfile.open(build("sdist", tree, built)) as archive:
        archive.extractall(unpacked, filter="data")
    return next(unpacked.iterdir())


def test_dockerfile_takes_all_that_the_wheel_is_made_of(sdist, tmp_path):
    lines = (ROOT / "docs" / "Dockerfile").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = next(line for line in lines if line.startswith("FROM python:")).removeprefix("FROM python:")
    assert tuple(map(int, base.removesuffix("-slim").split("."))) >= (3, 11)
    assert "RUN pip install --no-cache-dir '.[cuda]'" in lines
    assert "cuda" in project["optional-dependencies"]
    tree = tmp_path / "tree"
    tree.mkdir()
    for *sources, target in (line.split()[1:] for line in lines if line.startswith("COPY ")):
        for source in sources:
            if (ROOT / source).is_file():
                copy(ROOT / source, tree / target)
            else:
                copytree(ROOT / source, tree / target, symlinks=True)
    wheels = [build("wheel", each, folder) for each, folder in ((tree, tmp_path / "a"), (sdist, tmp_path / "b"))]
    held = [{name: wheel.read(name) for name in wheel.namelist()} for wheel in map(zipfile.ZipFile, wheels)]
    assert held[0] == held[1]


def test_wheel_from_sdist_holds_every_module_and_recipe(sdist, tmp_path):
    with zipfile.ZipFile(build("wheel", sdist, tmp_path)) as wheel:
        held = wheel.namelist()
    modules = {
        f"{module.replace('.', '/')}{'/__init__' if path.stem == '__init__' else ''}.py"
        for module, path in MODULES.items()
    }
    sources = {f"jaxtern/kernels/native/{path.name}" for path in (ROOT / "kernels/native").glob("*.[ch]")}
    assert {name for name in held if ".dist-info/" not in name} == {*modules, *sources, "jaxtern/py.typed"}
    assert "jaxtern/kernels/native/native.h" in sources
    assert {"jaxtern/configs/digits.py", "jaxtern/configs/mnist.py"} <= modules


def test_installed_version_equals_the_packages():
    try:
        installed = importlib.metadata.version("jaxtern")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("jaxtern runs from the tree and is not installed")
    assert installed == jaxtern.__version__


def test_kernels_import_only_jax_numpy_and_each_other():
    allowed = ("jax", "numpy", "jaxtern.kernels", *sys.stdlib_module_names)
    assert not [found for found in IMPORTS if part_of(found[0]) == "kernels" and not lies_in(found[1], *allowed)]


def test_imports_follow_the_arrows():
    homeless = {module for module in MODULES if part_of(module) not in ARROWS}
    assert not homeless, "give it a place in ARROWS"
    inner = [(module, name) for module, name in IMPORTS if lies_in(name, "jaxtern") and name != "jaxtern.__version__"]
    assert not [
        (module, name) for module, name in inner if part_of(name) not in {part_of(module), *ARROWS[part_of(module)]}
    ]


def test_public_names_are_those_that_type_checkers_see():
    seen = {name.rpartition(".")[2] for name in list_imports("jaxtern") if lies_in(name, "jaxtern")}
    assert seen == set(dir(jaxtern)) & seen
    homes = {name: inspect.getmodule(getattr(jaxtern, name)) for name in seen - {"METHODS"}}  # a dict has none
    assert not [name for name, home in homes.items() if home is None or not lies_in(home.__name__, "jaxtern")]
    with pytest.raises(AttributeError, match="module 'jaxtern' has no attribute 'nothing'"):
        _ = jaxtern.nothing


def test_public_names_are_imported_when_they_are_asked_for():
    """In a process that has imported nothing else of jaxtern."""
    code = """
import sys, jaxtern
assert not {"jax", "optax", "jaxtern.cluster"} & set(sys.modules)
assert callable(jaxtern.cluster.join) and callable(jaxtern.cluster.create_mesh)
assert "optax" not in sys.modules and callable(jaxtern.ternary_mean)
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_configs_are_known_to_the_doors_alone():
    doors = {"recipe_flags", "configs"}
    assert {part_of(module) for module, name in IMPORTS if lies_in(name, "ml_collections")} <= doors


def test_compression_knows_optax_in_one_file():
    knowing = {module for module, name in IMPORTS if part_of(module) == "compression" and lies_in(name, "optax")}
    assert knowing == {"jaxtern.compression.transform"}


def test_imports_use_no_private_or_uninstalled_name():
    assert not [found for found in IMPORTS if lies_in(found[1], "jax._src", *LINKED)]
