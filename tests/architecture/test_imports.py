"""What importing costs, and that what is public says what it is. Which module may import which: `lint-imports`."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import REPOSITORY

HEAVY = ("jax", "hydra", "zarr", "dask", "xarray")
PACKAGES = ("engine", "ops", "pipelines")
MODULES = sorted(path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))


@pytest.mark.parametrize(
    "code",
    [
        "import engine",
        "import engine.cli",
        "import runpy; sys.argv = ['engine', '--help']; runpy.run_module('engine', run_name='__main__')",
    ],
    ids=["engine", "engine.cli", "python -m engine --help"],
)
def test_starts_without_heavy_libraries(code: str, tmp_path: Path) -> None:
    """The import, or the command, loads none of the heavy libraries, nor anything inside them."""
    program = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
code = 0
try:
    {code}
except SystemExit as done:
    code = done.code or 0
assert code == 0, code
print("LOADED", *sorted(set({HEAVY!r}) & {{name.partition(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "LOADED"


def test_every_package_is_looked_at() -> None:
    """The list of modules that the next test goes through is not empty for any package."""
    assert {path.relative_to(REPOSITORY).parts[0] for path in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_module_has_a_docstring(path: Path) -> None:
    """Every module says what it is for."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.strip()


def test_public_names_have_docstrings() -> None:
    """Every function and class in `engine.__all__` has a docstring of its own."""
    import engine

    public = {name: getattr(engine, name) for name in engine.__all__}
    documented = {name: value for name, value in public.items() if inspect.isfunction(value) or inspect.isclass(value)}
    assert documented
    assert [name for name, value in documented.items() if not (value.__doc__ or "").strip()] == []
    generated = [
        name for name, value in documented.items() if inspect.isclass(value) and value.__doc__.startswith(f"{name}(")
    ]
    assert generated == []  # a dataclass without a docstring gets its signature as one


def test_no_module_bears_the_name_of_a_public_function() -> None:
    """`engine.run` is a function whatever was imported before it."""
    import engine

    assert {path.stem for path in (REPOSITORY / "engine").glob("*.py")} & set(engine.__all__) == set()
