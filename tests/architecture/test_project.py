"""What the repository itself must not hold: traces of one machine, and of one package index."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project import REPOSITORY

# Written in two halves, so that this file passes its own test.
TRACES = [
    first + second for first, second in [("/wo", "rk/"), ("/ro", "ot/"), ("pypi", ".org"), ("files.python", "hosted")]
]
INDEX = re.compile("|".join(["--(?:extra-)?index" + "-url", "--find" + "-links", r"\[\[tool\.uv\." + r"index\]\]"]))
PIN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.!+]*( ; python_version (<|>=|==|!=) \"3\.1[123]\")?")


def tracked_texts() -> dict[str, str]:
    """The text files that git tracks, by name."""
    if shutil.which("git") is None or not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: nothing says which files belong to the project")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True, timeout=60)
    texts = {}
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = REPOSITORY / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts[name] = content.decode("utf-8")
    return texts


def test_no_file_knows_a_machine_or_a_package_index() -> None:
    """No path of a developer's machine, no registry host and no option that names one, in any tracked file."""
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked_texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if any(trace in line for trace in TRACES) or INDEX.search(line)
    ]
    assert found == []


def test_constraints_are_pins_only() -> None:
    """Each line of the constraints is a comment or `name==version`, with a marker where Pythons differ."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not PIN.fullmatch(line)] == []
    assert [line for line in lines if re.search(r"://|--hash| @ ", line)] == []
    assert pins == sorted(pins, key=lambda line: line.partition("==")[0])
    assert len(pins) == len(set(pins))


def test_scripts_can_be_executed() -> None:
    """The commands that the documentation names can be started as they are written there."""
    scripts = [Path("scripts", name) for name in ("setup", "run", "test", "readme_commands")] + [Path(".ci/run")]
    assert [str(path) for path in scripts if not (REPOSITORY / path).stat().st_mode & 0o100] == []


def test_every_test_that_is_listed_as_slow_exists() -> None:
    lines = (REPOSITORY / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))
    for line in lines:
        file, _, name = line.partition("::")
        text = (REPOSITORY / file).read_text(encoding="utf-8")
        assert f"def {name.partition('[')[0]}(" in text, line


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports a file of tests by its bare name: of two with one name it collects one, or neither."""
    names = [path.name for path in (REPOSITORY / "tests").glob("*/test_*.py")]
    assert sorted(names) == sorted(set(names))
