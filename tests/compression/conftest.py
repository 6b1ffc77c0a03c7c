"""Strict dtypes for every test here."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _strict(strict_promotion: None) -> None:
    del strict_promotion
