"""A traced program → where each of its equations was written: stage, file and line of the user's.

In: a closed jaxpr and the stages' names. Out: a numbered `Site` for each equation, those in loops, branches and calls included.
The greater its number, the better a site explains a number that went wrong: a line of the user's, before the inside of a solver.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.diagnosis import ENGINE, definition, is_users, short_path
from engine.jaxprs import CALLS, expanded, inner_jaxprs, opened

Path_ = tuple[Any, ...]
"""Of an equation: the positions of the equations around it, outermost first, and its own."""

OPS = str(ENGINE.parent / "ops")
SOLVERS = ("diffrax", "optimistix", "lineax", "optax", "equinox/internal")
"""Packages whose own arithmetic is not the user's, though a line of the user's calls it."""

SOLVED = "solved "
"""How the names of scopes begin by which a library says in words how it solves."""

TRANSPARENT = ("jax", "jaxlib", "numpy", "equinox", "jaxtyping", "beartype")
"""Packages whose functions compute what the line says that calls them."""


@dataclass(frozen=True)
class Site:
    """An equation, or an input of the program. Static."""

    operation: str
    """The primitive; "input" for an input; "constant" for a literal that is handed to a function."""

    stage: str | None
    file: str | None = None
    line: int = 0
    direct: bool = False
    """Whether the user wrote the operation there, rather than a call of a solver inside which it happens."""

    input: int = -1
    """Which input."""

    exponent: int | None = None
    """Of an integer power."""

    made: str = ""
    """Of a call into Python: how its numbers are made, and by which function: "returned by slope (model.py:4)"."""

    @property
    def text(self) -> str:
        """The source line."""
        return linecache.getline(self.file, self.line).strip() if self.file else ""


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a program, by number and by path."""

    sites: tuple[Site, ...]
    numbers: Mapping[Path_, int]
    stages: tuple[str, ...]

    first_direct: int
    """The sites from this number on are direct."""

    def __getitem__(self, number: int) -> Site:
        return self.sites[number]

    def stage_of(self, number: int) -> int:
        """The position of a site's stage; that after the last for none."""
        stage = self.sites[number].stage
        return len(self.stages) if stage is None else self.stages.index(stage)


def find_sites(jaxpr: Any, stages: Sequence[str]) -> Sites:
    """Number the equations and the inputs of a closed jaxpr."""
    nowhere = Site("", None)
    found: list[tuple[Path_, Site]] = [
        (("input", i), replace(nowhere, operation="input", input=i, direct=True))
        for i in range(len(opened(jaxpr).invars))
    ]
    found += walk(opened(jaxpr), (), nowhere, frozenset(stages))
    order = sorted(range(len(found)), key=lambda i: (rank(found[i][1]), -i))
    numbers = {found[i][0]: number for number, i in enumerate(order)}
    ranked = tuple(found[i][1] for i in order)
    first = next((number for number, site in enumerate(ranked) if site.direct), len(ranked))
    return Sites(ranked, numbers, tuple(stages), first)


def rank(site: Site) -> tuple[bool, bool, bool]:
    """What explains more: an input, what the user wrote, what happens inside a line of the user's, the rest."""
    return site.input >= 0, site.direct, site.file is not None


def walk(jaxpr: Any, path: Path_, around: Site, stages: Collection[str]) -> Iterator[tuple[Path_, Site]]:
    """Every equation with its path, outer ones before those inside them."""
    for i, eqn in enumerate(jaxpr.eqns):
        here = (*path, i)
        site = locate(eqn, around, stages)
        yield here, site
        for tag, inner in inside(eqn):
            yield from walk(opened(inner), (*here, tag), site, stages)


def inside(eqn: Any) -> list[tuple[str, Any]]:
    """The jaxprs of an equation that are looked into, each with a tag: those of loops, branches and calls."""
    name = eqn.primitive.name
    if name == "while":
        return [("cond", eqn.params["cond_jaxpr"]), ("body", eqn.params["body_jaxpr"])]
    if name == "scan":
        return [("body", eqn.params["jaxpr"])]
    if name == "cond":
        return [(f"branch {i}", branch) for i, branch in enumerate(eqn.params["branches"])]
    if (program := expanded(eqn)) is not None:
        return [("call", program)]
    if name in (*CALLS, "eval_jaxpr"):
        return [("call", inner) for _, inner in inner_jaxprs(eqn) if fits(inner, eqn)][:1]
    return []


def fits(jaxpr: Any, eqn: Any) -> bool:
    """Whether a jaxpr takes and gives what an equation does."""
    inner = opened(jaxpr)
    return (len(inner.invars), len(inner.outvars)) == (len(eqn.invars), len(eqn.outvars))


def locate(eqn: Any, around: Site, stages: Collection[str]) -> Site:
    """The site of an equation; what its own stack does not tell is that of the equation around it."""
    stage = around.stage or stage_of(eqn, stages)
    frames = list(frames_of(eqn))
    users = next((i for i, (file, _) in enumerate(frames) if is_users(file)), None)
    if users is None:
        users = next((i for i, (file, _) in enumerate(frames) if kind_of(file) == "other"), None)
    solver = any(kind_of(file) == "solver" for file, _ in frames[:users])
    name = eqn.primitive.name
    exponent = eqn.params["y"] if name == "integer_pow" else None
    facts: dict[str, Any] = {"operation": name, "stage": stage, "exponent": exponent, "made": made_by(eqn)}
    if users is None:
        return replace(around, direct=around.direct and not solver, **facts)
    file, line = frames[users]
    return Site(file=file, line=line, direct=not solver, **facts)


def made_by(eqn: Any) -> str:
    """Of a call into Python: how its numbers are made, and by which function; empty for any other equation.

    What JAX calls may say itself which function answers (`answering`); it is the user's own function if it does not.
    """
    called = getattr(eqn.params.get("callback"), "callback_func", None)
    if called is None:
        return ""
    how, function = getattr(called, "answering", ("returned by", called))
    line = definition(function)
    while hasattr(function, "func"):  # a partial
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    return f"{how} {name}" + (f" ({short_path(line.file)}:{line.number})" if line else "")


def frames_of(eqn: Any) -> Iterator[tuple[str, int]]:
    """Files and lines on the stack when an equation was traced, innermost first, as far as the engine itself.

    Inside a function under `jit` JAX keeps the stack as far as that function.
    """
    trace = getattr(eqn.source_info, "traceback", None)
    for frame in trace.frames if trace is not None else ():
        if kind_of(frame.file_name) == "engine":
            return
        yield frame.file_name, frame.line_num


def scopes_of(eqn: Any) -> Iterator[str]:
    """The names of the `named_scope`s in which an equation was traced, outermost first; a derivative's equation keeps them."""
    stack = getattr(getattr(eqn.source_info, "name_stack", None), "stack", ())
    return (entry.name for entry in stack if type(entry).__name__ == "Scope")


def stage_of(eqn: Any, stages: Collection[str]) -> str | None:
    """The stage in which an equation was traced."""
    return next((name for name in scopes_of(eqn) if name in stages), None)


def solves(jaxpr: Any, stages: Collection[str], stage: str | None = None) -> Iterator[tuple[str | None, str]]:
    """How each stage is solved: what a library says by a `named_scope` that begins with "solved"."""
    for eqn in opened(jaxpr).eqns:
        here = stage_of(eqn, stages) or stage
        said = [name for name in scopes_of(eqn) if name.startswith(SOLVED)]
        if said:
            yield here, said[0].removeprefix(SOLVED)
            continue
        for _, inner in inner_jaxprs(eqn):
            yield from solves(inner, stages, here)


@functools.cache
def kind_of(file: str) -> str:
    """engine | solver | transparent | other: whose a file is."""
    if is_users(file):
        return "other"
    path = Path(file)
    if path.is_relative_to(ENGINE):
        return "engine"
    if path.is_relative_to(OPS):
        return "solver"
    package = file.replace("\\", "/").rpartition("-packages/")[2]
    if package == file.replace("\\", "/"):  # Python's own
        return "transparent"
    if package.startswith(tuple(f"{name}/" for name in SOLVERS)):
        return "solver"
    return "transparent" if package.partition("/")[0] in TRANSPARENT else "other"
