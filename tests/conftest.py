"""What every test shares: precision and caches, set before JAX is first imported, and a user's folder."""

from __future__ import annotations

import atexit
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


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A user's folder, empty."""
    return Project(tmp_path, tmp_path / "case.yaml")
