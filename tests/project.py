"""A user's folder in a test: a model, a config, and the two doors to the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on standard output."""
        return json.loads(self.out)


@dataclass
class Project:
    """A folder with `model.py` and `case.yaml`."""

    folder: Path
    config: Path

    def model(self, source: str, name: str = "model") -> Project:
        """Write a module beside the config."""
        (self.folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        return self

    def yaml(self, text: str, name: str = "case") -> Project:
        """Write the config."""
        self.config = self.folder / f"{name}.yaml"
        self.config.write_text(textwrap.dedent(text), encoding="utf-8")
        return self

    def load(self, *overrides: str) -> Any:
        """`engine.load`, in this process."""
        import engine

        return engine.load(self.config, overrides)

    def run(self, *overrides: str, store: str = "store.zarr", **options: Any) -> Any:
        """`engine.run`, in this process, loaded into memory."""
        import engine

        return engine.run(self.config, [f"store.path={self.folder / store}", *overrides], **options).load()

    def summary(self, *overrides: str, store: str = "store.zarr", **options: Any) -> Any:
        """The summary of a run in this process."""
        from engine.config import read_config
        from engine.runs import carry_out

        return carry_out(read_config(self.config, [f"store.path={self.folder / store}", *overrides]), **options)

    def cli(self, *arguments: str, timeout: float = 120, **environment: str) -> Answer:
        """`python -m engine` in a process of its own, from the project's folder."""
        env = os.environ | {"PYTHONPATH": str(REPOSITORY)} | environment
        done = subprocess.run(
            [sys.executable, "-m", "engine", *arguments],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same, not waited for: the caller ends it."""
        return subprocess.Popen(
            [sys.executable, "-m", "engine", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
