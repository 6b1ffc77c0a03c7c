"""What all tests share: eight fake CPU devices, workers laid out in every way, what a compiled program sends, NumPy's
word on noise and trits, and the doors without their seconds of imports.
"""

import dataclasses
import fnmatch
import importlib.metadata
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple


def _share_compiled_programs() -> None:
    """One compilation cache for this run, the commands it starts, and all later runs, which take half of the time."""
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        name = f"jaxtern-tests-{os.getuid()}-{importlib.metadata.version('jax')}"
        folder = Path(tempfile.gettempdir()) / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid == os.getuid():  # else somebody else's programs would run here
            os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)


def _heed_signals() -> None:
    """Also in a shell's background and under nohup: commands under test would inherit that they are ignored."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


_share_compiled_programs()
_heed_signals()

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from jax.sharding import AxisType, Mesh, PartitionSpec  # noqa: E402

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Every shape is compiled: that takes longer than any deadline, and shrinking takes minutes. The examples are the same
# in every run, so that a red run can be repeated; `--hypothesis-profile=explore` draws others, more, and shrinks.
hypothesis.settings.register_profile(
    "jaxtern",
    deadline=None,
    max_examples=20,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=200, print_blob=True)
hypothesis.settings.load_profile("jaxtern")


MOST_MEMORY = 2**32  # bytes of a process that runs tests, at the end of a module


EMITTERS = "--xla_cpu_use_fusion_emitters"  # of XLA, in JAX 0.10 alone; they take a third of the time to compile


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "have XLA compile as it does for a user, which takes twice as long; for modules with the mark optimized"
    parser.addoption("--optimize", action="store_true", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """XLA optimises little, as most programs run once; with --optimize, as for a user."""
    if not config.getoption("optimize"):
        jax.config.update("jax_disable_most_optimizations", True)
        flags = os.environ.get("XLA_FLAGS", "")
        if EMITTERS not in flags and jax.__version_info__ < (0, 11):  # a flag that XLA does not know ends the process
            os.environ["XLA_FLAGS"] = f"{flags} {EMITTERS}=false"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rows of a table that its mark `few` does not name are slow."""
    for item in items:
        few = item.get_closest_marker("few")
        if few and not any(fnmatch.fnmatchcase(item.name.partition("[")[2][:-1], row) for row in few.args):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def strict_promotion() -> Iterator[None]:
    """No implicit change of dtype. For our own code: optax's Adam, and so all training, needs the standard rules."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Compiled programs of earlier modules are dropped before they fill the memory."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        jax.clear_caches()


class Workers:
    """N workers laid out over the axes of a mesh, a pmap or a vmap, the outermost first, as in "mesh:4 vmap:2".

    The last may be "unrolled:V": a sequence of V gradients on each device, which is no axis.

    Attributes:
      names: of the axes, what `compressed_mean` takes as its `axis_name`.
      virtual_workers: V, or None.
      size: N.
    """

    def __init__(self, layout: str):
        parts = [part.split(":") for part in layout.split()]
        self._kinds, self._sizes = [kind for kind, _ in parts], [int(size) for _, size in parts]
        self.virtual_workers = self._sizes[-1] if "unrolled" in self._kinds else None
        self.names = tuple(f"axis{i}" for i, kind in enumerate(self._kinds) if kind != "unrolled")
        self.size = math.prod(self._sizes)

    def over(self, step: Callable, *, check_vma: bool = False) -> Callable:
        """`step(local, shared)` on every worker at once: leaves [N, ...] and shared ones to leaves [N, ...]."""
        if self.virtual_workers is not None:
            step = _unrolled(step, self.virtual_workers)
        for kind, name in reversed(list(zip(self._kinds, self.names, strict=False))):
            if kind == "vmap":
                step = jax.vmap(step, in_axes=(0, None), axis_name=name)
            elif kind == "pmap":
                step = jax.pmap(step, axis_name=name, in_axes=(0, None), devices=self._devices("pmap"))
        if "mesh" in self._kinds:
            step = self._over_mesh(step, check_vma)
        inner = step if "pmap" in self._kinds else jax.jit(step)

        def run(local: Any, shared: Any) -> Any:
            split = jax.tree.map(lambda x: x.reshape(*self._sizes, *x.shape[1:]), local)
            results = jax.device_get(inner(split, shared))
            return jax.tree.map(lambda x: x.reshape(self.size, *x.shape[len(self._sizes) :]), results)

        return run

    def replicated(self, step: Callable, *, check_vma: bool = True) -> Any:
        """`step` over mesh axes (and unrolled) as training runs it: leaves [N, ...] split among devices, one result.

        A jitted function, to be lowered or called.
        """

        def on_device(local: Any, shared: Any) -> Any:
            if self.virtual_workers is None:
                return step(jax.tree.map(lambda x: x[0], local), shared)
            return step(_trees(local, self.virtual_workers), shared)

        specs, mesh = (PartitionSpec(self.names), PartitionSpec()), self.mesh()
        return jax.jit(
            jax.shard_map(on_device, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=check_vma)
        )

    def mesh(self) -> Mesh:
        """The mesh of the axes that lie over devices."""
        axes = zip(self._kinds, self.names, self._sizes, strict=False)
        names, sizes = zip(*((name, size) for kind, name, size in axes if kind == "mesh"), strict=True)
        devices = np.array(self._devices("mesh")).reshape(sizes)
        return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))

    def _over_mesh(self, step: Callable, check_vma: bool) -> Callable:
        mesh = self.mesh()
        depth = len(mesh.axis_names)
        local, shared = PartitionSpec(*mesh.axis_names), PartitionSpec()

        def on_device(x: Any, y: Any) -> Any:
            result = step(jax.tree.map(lambda x: x.reshape(x.shape[depth:]), x), y)
            return jax.tree.map(lambda x: x.reshape((1,) * depth + x.shape), result)

        return jax.shard_map(on_device, mesh=mesh, in_specs=(local, shared), out_specs=local, check_vma=check_vma)

    def _devices(self, kind: str) -> list[Any]:
        sizes = (size for axis, size in zip(self._kinds, self._sizes, strict=True) if axis == kind)
        return jax.devices("cpu")[: math.prod(sizes)]


def _trees(stacked: Any, count: int) -> list[Any]:
    """One tree with leaves [V, ...] as V trees."""
    leaves, treedef = jax.tree.flatten(stacked)
    return [treedef.unflatten([leaf[i] for leaf in leaves]) for i in range(count)]


def _unrolled(step: Callable, virtual_workers: int) -> Callable:
    def run(local: Any, shared: Any) -> Any:
        result = step(_trees(local, virtual_workers), shared)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (virtual_workers, *x.shape)), result)

    return run


@pytest.fixture(scope="session")
def workers() -> type[Workers]:
    return Workers


@pytest.fixture(scope="session")
def updates_over() -> Callable:
    """A transformation on every worker of a layout, compiled once.

    `updates_over(make, layout)(gradients, count)` makes one update of gradients [N, ...] in step `count` and returns
    the mean [N, ...] and the state [N, ...]; `make(axis_name)` makes the transformation.
    """

    def place(make: Callable, layout: str, *, check_vma: bool = False) -> Callable:
        placed = Workers(layout)
        unrolled = {} if placed.virtual_workers is None else {"virtual_workers": placed.virtual_workers}
        transformation = make(placed.names, **unrolled)
        compiled = placed.over(transformation.update, check_vma=check_vma)

        def update(gradients: Any, count: int = 0) -> tuple[Any, Any]:
            state = transformation.init(None)
            return compiled(gradients, state._replace(count=state.count + count))

        return update

    return place


COLLECTIVES = (
    "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast|ragged-all-to-all"
)
OPERATION = re.compile(rf"= (?P<type>\(?[a-z].*?) (?P<name>{COLLECTIVES}|send|recv)(-start)?\((?P<rest>.*)")
ARRAY = re.compile(r"([a-z]+\d+)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      name: with the function of a reduction, as "all-gather" or "all-reduce maximum".
      dtype: of what it carries, as "u32".
      size: elements of its result.
    """

    name: str
    dtype: str
    size: int


def collectives(program: str) -> list[Collective]:
    """The collectives of an optimised HLO text, in its order."""
    found = []
    for line in program.splitlines():
        operation = OPERATION.search(line)
        if operation:
            arrays = ARRAY.findall(operation["type"])
            (dtype,) = {dtype for dtype, _ in arrays}
            size = sum(math.prod(int(n) for n in shape.split(",") if n) for _, shape in arrays)
            found.append(Collective((operation["name"] + _function(program, operation["rest"])).strip(), dtype, size))
    return found


def _function(program: str, operands: str) -> str:
    """The name of the operation at the root of the computation that a reduction applies."""
    applied = re.search(r"to_apply=(%[\w.-]+)", operands)
    if not applied:
        return ""
    body = program[program.index(f"\n{applied[1]} (") :]
    root = re.search(r"ROOT .*? = \w+\[\]\S* (\w+)\(", body)
    assert root is not None
    return " " + root[1]


@pytest.fixture(scope="session", name="collectives")
def _collectives() -> Callable[[str], list[Collective]]:
    return collectives


@pytest.fixture(scope="session")
def wire() -> Callable[..., list[Collective]]:
    """The collectives that a jitted function compiles to for these arguments; it is not run."""

    def read(jitted: Any, *arguments: Any) -> list[Collective]:
        return collectives(jitted.lower(*arguments).compile().as_text())

    return read


def _mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x21F0AAAD)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0xD35A2D97)
    return x ^ (x >> np.uint32(15))


def numpy_bits(seed: int, step: int, worker: int, position: np.ndarray) -> np.ndarray:
    """The stream of noise, written a second time: Feistel network for the key, then Philox 2x32 with seven rounds."""
    left, right = np.array([step], np.uint32), np.array([worker], np.uint32)
    for i in range(1, 5):
        round_key = _mix(np.array([(seed + i * 0x9E3779B9) % 2**32], np.uint32))
        left, right = right, left ^ _mix(right + round_key)
    position = position.astype(np.uint64)
    low, high = position // 512 * 128 + position % 128, np.uint64(left[0])
    for i in range(7):
        product = low * np.uint64(0xD256D193)
        low, high = product >> np.uint64(32) ^ np.uint64((int(right[0]) + i * 0x9E3779B9) % 2**32) ^ high, product
        high = high & np.uint64(2**32 - 1)
    both = low | high << np.uint64(32)
    return (both >> (position // 128 % 4 * 16) & np.uint64(0xFFFF)).astype(np.uint32)


@pytest.fixture(scope="session", name="numpy_bits")
def _numpy_bits() -> Callable:
    return numpy_bits


@pytest.fixture(scope="session")
def numpy_levels() -> Callable:
    """Stochastic rounding written a second time: floor(clip(g/s, -1, 1) L + u) as int64."""

    def levels(
        gradient: np.ndarray,
        scale: float,
        *,
        seed: int = 0,
        step: int = 0,
        worker: int = 0,
        levels: int = 1,
        offset: int = 0,
    ) -> np.ndarray:
        flat, limit = gradient.reshape(-1).astype(np.float32), np.float32(levels * 2**16)
        unit = limit / np.float32(scale) if scale else np.float32(0)
        fixed = np.rint(np.clip(flat * unit, -limit, limit)).astype(np.int64)
        noise = numpy_bits(seed, step, worker, np.arange(flat.size) + offset).astype(np.int64)
        return ((fixed + noise) >> 16).reshape(gradient.shape)

    return levels


@pytest.fixture(scope="session")
def assert_exact_mean() -> Callable:
    """Checks that a mean is an exact whole number of units s (1 / (N L)), its last bit cleared."""

    def check(mean: np.ndarray, total: np.ndarray, scale: np.ndarray | float, num_levels: int) -> None:
        unit = np.float32(scale) * (np.float32(1) / np.float32(num_levels))
        product = np.asarray(np.asarray(total, np.float32) * unit)
        assert mean.dtype == np.float32
        np.testing.assert_array_equal(mean, np.asarray(product.view(np.uint32) & np.uint32(2**32 - 2)).view(np.float32))

    return check


@pytest.fixture(scope="session")
def full_names() -> Callable[..., dict[str, Any]]:
    """Fields of a recipe by their whole names, told in short, num_workers=2, model="tiny" for its name, or in full."""
    from jaxtern.training.recipe.recipe import Recipe  # here, because most tests need none

    sections = {name.partition(".")[2]: name for name in Recipe().by_name()}
    sections |= {section: f"{section}.name" for section in ("data", "model", "optimizer")}
    return lambda **fields: {sections.get(name, name): value for name, value in fields.items()}


@pytest.fixture(scope="session")
def recipe_of(full_names: Callable) -> Callable[..., Any]:
    """A recipe of these fields, told as for `full_names`."""
    from jaxtern.training.recipe.recipe import Recipe

    def make(**fields: Any) -> Recipe:
        sections: dict[str, dict[str, Any]] = {}
        for name, value in full_names(**fields).items():
            section, _, field = name.partition(".")
            sections.setdefault(section, {})[field] = value
        return Recipe.from_dict(sections)

    return make


# What commands say of themselves on stderr while they work; how long that takes, and so whether it is said, may differ.
PROGRESS = (
    "loading JAX",
    "opening the data: ",
    "evaluating ",
    "following ",
    "images to predict: ",
    "exporting ",
    "drawing the sheet",
    "measuring this machine",
    "stopping once all is saved",
)


def without_progress(err: str) -> str:
    """The other lines, with their ends."""
    return "".join(line for line in err.splitlines(keepends=True) if not line.startswith(PROGRESS))


@pytest.fixture(scope="session", name="without_progress")
def _without_progress() -> Callable[[str], str]:
    return without_progress


class Answer(NamedTuple):
    """What a door has said.

    Attributes:
      status: of its process.
      out, err: what it printed.
      seconds: of CPU.
      memory: at most, in MiB.
    """

    status: int
    out: str
    err: str
    seconds: float
    memory: float


class Doors:
    """Commands, run by tests/door_server.py, which has imported what takes seconds."""

    def __init__(self, folder: Path):
        root = str(Path(__file__).parents[1])
        environment = os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
        for name in [name for name in environment if name.startswith(("JAXTERN_", "SLURM_", "OMPI_"))]:
            del environment[name]
        with (folder / "server.err").open("w") as errors:
            self._server = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("door_server.py"))],
                cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        self._folder, self._count = folder, 0

    def __call__(self, door: str, *arguments: object, cwd: Path, **environment: str) -> Answer:
        self._count += 1
        output = self._folder / str(self._count)
        typed = [argument.decode("utf-8", "surrogateescape") if isinstance(argument, bytes) else str(argument)
                 for argument in arguments]  # fmt: skip
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([str(cwd), environment, door, typed, str(output)]), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, (self._folder / "server.err").read_text()[-2000:]
        status, seconds, memory = json.loads(answer)
        out, err = (Path(f"{output}.{end}").read_text(errors="backslashreplace") for end in ("out", "err"))
        return Answer(status, out, without_progress(err), seconds, memory)

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(60)
        assert self._server.stdout is not None
        self._server.stdout.close()


@pytest.fixture(scope="session")
def run_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """`run_door("train", "--workdir=x", cwd=folder, RANK="1")` to its Answer."""
    doors = Doors(tmp_path_factory.mktemp("doors"))
    yield doors
    doors.close()
