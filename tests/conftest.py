"""What every test shares: precision and caches, set before JAX is first imported, and a user's folder."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile

if "PYTEST_XDIST_WORKER" in os.environ:  # inside the folder of the process that started it, and removed with it
    CACHE = tempfile.mkdtemp(dir=os.environ["XDG_CACHE_HOME"])
else:
    CACHE = tempfile.mkdtemp(prefix="diffsim-tests-")
    atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
os.environ["XDG_CACHE_HOME"] = CACHE  # compile caches of the tests' own; processes that tests start inherit it
os.environ["JAX_ENABLE_X64"] = "true"

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.project import Project

settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    max_examples=30,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


gc.set_threshold(
    300_000, 20, 100
)  # tracing makes many objects that live for long: looking through them takes a tenth of the time

SLOW = Path(__file__).parent / "slow.txt"
"""Tests that take more than some five seconds of a core, beside those that are marked where they stand; `--durations` tells."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow."""
    listed = set(SLOW.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid in listed:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A user's folder, empty."""
    return Project(tmp_path, tmp_path / "case.yaml")
