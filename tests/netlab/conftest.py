"""The laboratory, or the reason why it cannot be built here."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def netlab() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        module = importlib.import_module("benchmarks.netlab")
        if reason := module.why_not():
            pytest.skip(f"netlab {reason}")
        try:
            with module.Lab(hosts=1, rate="1gbit"):
                pass
        except module.LabError as error:
            pytest.skip(f"netlab: {error}")
        yield module
