"""Nothing public undocumented, nothing documented untested."""

from __future__ import annotations

import ast
import doctest
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.project import REPOSITORY, Project

MODULES = sorted(path for package in ("engine", "ops", "pipelines") for path in (REPOSITORY / package).rglob("*.py"))
WITH_EXAMPLES = [path for path in MODULES if ">>> " in path.read_text(encoding="utf-8")]
CONFIGS = sorted((REPOSITORY / "conf").glob("*.yaml"))


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def public_definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions and classes at the top level, and methods, whose names do not start with an underscore."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, f"{node.name}.")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_public_definitions_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = [name for name, node in public_definitions(tree) if not (ast.get_docstring(node) or "").strip()]  # type: ignore[arg-type]
    assert bare == []


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_examples_are_true(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    found = doctest.testmod(importlib.import_module(name_of(path)))
    assert found.attempted
    assert found.failed == 0


def test_the_python_api_has_an_example_each() -> None:
    import engine

    functions = [getattr(engine, name) for name in ("load", "run", "converge", "open_store")]
    assert [f.__name__ for f in functions if ">>> " not in f.__doc__] == []
    assert engine.Plan.__doc__
    assert ">>> " in engine.Plan.__doc__


def test_every_setting_is_in_the_default_config() -> None:
    from engine.schema import Settings

    text = (REPOSITORY / "conf" / "engine.yaml").read_text(encoding="utf-8")
    assert set(yaml.safe_load(text)) == set(Settings.model_fields)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_composes_and_plans(path: Path) -> None:
    if path.stem == "engine":
        pytest.skip("the defaults, not a config of their own")
    import engine

    assert engine.load(path).formula


def test_every_config_is_run_by_a_test() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in (REPOSITORY / "tests").rglob("test_*.py"))
    missing = [path.stem for path in CONFIGS if path.stem != "engine" and not re.search(rf'"{path.stem}["\.]', tests)]
    assert missing == []


@pytest.mark.parametrize("command", ["run", "plan", "show", "list", "doctor"])
def test_help_teaches(project: Project, command: str) -> None:
    answer = project.cli(command, "--help")
    assert answer.code == 0
    assert "python -m engine " + command in answer.out, "help shows an example"


def test_engine_runs_from_an_installed_package_of_any_folder(tmp_path: Path) -> None:
    """The config groups are found without the repository as working directory."""
    config = tmp_path / "case.yaml"
    config.write_text("defaults: [engine, {solver: kvaerno5}, _self_]\nname: case\nstages: {}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "engine", "plan", str(config)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "`stages` must" in done.stderr
