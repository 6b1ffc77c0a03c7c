"""Strict dtypes for every test here, and the reducers written a second time."""

import runpy
import types
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="module")
def _strict(strict_promotion: None) -> None:
    del strict_promotion


@pytest.fixture(scope="session")
def models() -> Any:
    """The NumPy models of models.py, which tests cannot import: pytest's importlib mode puts no folder on the path."""
    return types.SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("models.py"))))
