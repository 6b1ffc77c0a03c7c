"""The benchmarks, which are not installed; and the laboratory, or the reason why it cannot be built here."""

from pathlib import Path
from types import ModuleType

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[2])
    import benchmarks.netlab  # from here on all tests of this folder can import them


@pytest.fixture(scope="session")
def netlab() -> ModuleType:
    module = benchmarks.netlab
    if reason := module.why_not():
        pytest.skip(f"netlab {reason}")
    try:
        with module.Lab(hosts=1, rate="1gbit"):
            pass
    except module.LabError as error:
        pytest.skip(f"netlab: {error}")
    return module
