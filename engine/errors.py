"""What the engine says when something is wrong: one tree, shown without a traceback.

    UserError                 the user's mistake: exit code 2, one screen
    ├── ConfigError           the YAML file or an override
    ├── SweepError            the design, its axes, a table
    ├── PipelineError         the graph: references, arguments, imports
    │   └── StageError        a stage that cannot be traced, with the user's own source line
    ├── PlanError             a plan that cannot run: memory, derivatives, devices
    └── StoreError            the store: another fingerprint, no permission, no space

A message starts with where (config key, stage, sample), then "must …, but …" with the value found, then the remedy and the
nearest valid name. Several problems found together are raised together.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UserError(ValueError):
    """Something the user can mend; `problems` holds one complete message for each thing found."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[UserError], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class ConfigError(UserError):
    """The configuration file or an override does not say something that can be run."""


class SweepError(UserError):
    """The sweep's design, axes, samples or table cannot be turned into points."""


class PipelineError(UserError):
    """The stages do not form a graph: a reference, an argument, an import or a cycle."""


class StageError(PipelineError):
    """A stage raised while JAX traced it; the message shows the user's own source line."""


class PlanError(UserError):
    """The pipeline is sound, but what is asked of it cannot be done."""


class StoreError(UserError):
    """The store cannot be written, or belongs to another question."""


def nearest(name: str, names: Iterable[str], prefix: str = " Did you mean ") -> str:
    """A sentence that names the nearest valid name, or nothing: `nearest("omgea", ["omega"])` -> " Did you mean 'omega'?"."""
    close = difflib.get_close_matches(str(name), [str(n) for n in names], n=1, cutoff=0.6)
    return f"{prefix}{close[0]!r}?" if close else ""


def listed(names: Iterable[object], limit: int = 12) -> str:
    """The names, quoted and comma separated, shortened past `limit`."""
    items = [str(name) for name in names]
    shown = ", ".join(repr(item) for item in items[:limit])
    return f"{shown}, … ({len(items)} in all)" if len(items) > limit else shown or "none"
