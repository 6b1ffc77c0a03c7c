"""The tree is what it says it is: the packages, what the wheel and the sdist hold, and which way imports run."""

import ast
import importlib.metadata
import inspect
import os
import platform
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copy, copytree, which

import pytest

import jaxtern
from jaxtern import command_line
from jaxtern.kernels.native.library import LEVELS

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("kernels", "configs")  # top-level folders, installed inside jaxtern

PARTS = {"kernels", "compression", "local", "models", "data", "artifact", "training", "cluster", "hosts"}
ARROWS = {  # what a part of jaxtern may import, besides itself and the version
    "kernels": set(),
    "hosts": set(),
    "cluster": {"hosts"},
    "cluster_flags": {"cluster", "command_line"},
    "compression": {"kernels"},
    "local": {"compression"},
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


def build(kind: str, tree: Path, folder: Path, **variables: str) -> Path:
    """The sdist or the wheel of `tree`, built offline into `folder`."""
    call = f"import setuptools.build_meta as b; b.build_{kind}({str(folder)!r})"
    environment = os.environ | variables
    command = [sys.executable, "-c", call]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.iterdir())


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked."""
    tree, built, unpacked = (tmp_path_factory.mktemp(name) for name in ("tree", "sdist", "unpacked"))
    for name in ("jaxtern", *LINKED):
        copytree(ROOT / name, tree / name, symlinks=True)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        copy(ROOT / name, tree)
    with tarfile.open(build("sdist", tree, built)) as archive:
        archive.extractall(unpacked, filter="data")
    return next(unpacked.iterdir())


def test_dockerfile_takes_all_that_the_wheel_is_made_of(sdist, tmp_path):
    lines = (ROOT / "docs" / "Dockerfile").read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = next(line for line in lines if line.startswith("FROM python:")).removeprefix("FROM python:")
    assert tuple(map(int, base.removesuffix("-slim").split("."))) >= (3, 11)
    assert "RUN pip install --no-cache-dir '.[cuda,images,plots]'" in lines
    assert {"cuda", "images", "plots"} <= set(project["optional-dependencies"])
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


@pytest.mark.slow
@pytest.mark.skipif(not which("cc") or platform.machine() not in LEVELS, reason="compiles the kernels with cc")
def test_native_wheel_carries_the_kernels_and_needs_no_compiler(sdist, tmp_path):
    (tmp_path / "wheel").mkdir()
    path = build("wheel", sdist, tmp_path / "wheel", JAXTERN_NATIVE="1", CC="cc")
    assert path.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(path) as wheel:
        wheel.extractall(tmp_path / "installed")
        held = {Path(name).name for name in wheel.namelist() if name.endswith(".so")}
    assert held == {f"native-{level}.so" for level in LEVELS[platform.machine()]}
    code = "from jaxtern.kernels import dispatch; print(dispatch.why_not_native())"
    environment = os.environ | {"PATH": "/nowhere", "PYTHONPATH": str(tmp_path / "installed"), "JAX_PLATFORMS": "cpu"}
    environment |= {"CC": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def why_not_native(**variables: str) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.check_output(command, cwd=tmp_path, env=environment | variables, text=True).strip()

    assert why_not_native() == ""
    assert not (tmp_path / "cache").exists()
    for library in (tmp_path / "installed").rglob("native-*.so"):
        library.write_bytes(b"of another machine")
    assert why_not_native() == "there is no C compiler: neither $CC nor cc, gcc or clang"
    assert why_not_native(PATH=os.environ["PATH"]) == ""
    assert (tmp_path / "cache").exists()


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


ALLOWED = "jax", "scipy", "_cyutility"  # the last is SciPy's, and so is Cython's own module


def test_public_names_are_imported_when_they_are_asked_for():
    """In a process that has imported nothing else of jaxtern; the mean needs JAX and optax, and no more."""
    code = """
import sys, jaxtern
assert not {"jax", "optax", "jaxtern.cluster"} & set(sys.modules)
assert callable(jaxtern.cluster.join) and callable(jaxtern.cluster.create_mesh)
assert "optax" not in sys.modules
import optax
before = set(sys.modules)
assert callable(jaxtern.ternary_mean)
print(*{name for name in set(sys.modules) - before if not name.startswith("jaxtern.")})
"""
    new = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    known = (*sys.stdlib_module_names, *ALLOWED)
    assert not {name for name in new if name.partition(".")[0] not in known and not name.startswith("_cython")}
    assert "scipy.special" not in new  # which takes longer than all the others


def read_project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names_of(requirements: list[str]) -> set[str]:
    """The names of packages, as they are imported where that is another."""
    names = {re.split(r"[\[>=;]", each)[0].lower().replace("-", "_") for each in requirements}
    return {IMPORTED_AS.get(name, name) for name in names}


IMPORTED_AS = {
    "absl_py": "absl", "orbax_checkpoint": "orbax", "pillow": "pil", "scikit_learn": "sklearn",
    "opencv_python_headless": "cv2",
}  # fmt: skip
THIRD_PARTY = {name.partition(".")[0] for _, name in IMPORTS} - set(sys.stdlib_module_names) - {"jaxtern"}


def test_every_import_is_a_dependency_or_of_an_extra_that_messages_name():
    extras = read_project()["optional-dependencies"]
    needed = names_of(read_project()["dependencies"])
    assert needed - {"flatbuffers"} <= {name.lower() for name in THIRD_PARTY}  # which jax.export imports
    assert {name for name in THIRD_PARTY if name.lower() not in needed} == {*command_line.EXTRAS, "etils"} - {
        "tensorflow"
    }
    assert "etils" not in extras  # which tensorflow-datasets and orbax need
    for name, extra in command_line.EXTRAS.items():
        assert name in names_of(extras[extra])


def test_configs_are_known_to_the_doors_alone():
    doors = {"recipe_flags", "configs"}
    assert {part_of(module) for module, name in IMPORTS if lies_in(name, "ml_collections")} <= doors


def test_compression_knows_optax_in_one_file():
    knowing = {module for module, name in IMPORTS if part_of(module) == "compression" and lies_in(name, "optax")}
    assert knowing == {"jaxtern.compression.transform"}


def test_imports_use_no_private_or_uninstalled_name():
    assert not [found for found in IMPORTS if lies_in(found[1], "jax._src", *LINKED)]
