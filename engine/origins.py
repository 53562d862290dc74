"""`Plan` and a sample that failed → where its trouble began, in the user's words.

In: a plan, a sample, and how it ended. Out: `Trouble`s: the operation, the stage and the source line, and what they spoilt.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from engine import values
from engine.diagnosis import Line, clip, is_users, short_path, user_line
from engine.jaxprs import CALLS
from engine.lowering import STATUS_FIELD
from engine.nonfinite import derivatives
from engine.plan import Plan, split
from engine.provenance import Origin, Provenance, trace_origins
from engine.sites import Site, find_sites
from engine.status import STATUS

FRAME = re.compile(r'^ *File "([^"]+)", line (\d+)(?:, in (\S+))?$')
WORDS = {"custom_linear_solve": "a linear solve", "dot_general": "a product of matrices", "reduce_sum": "a sum"}
SINGULAR = (
    "the value of this line is finite, and its derivative is not, as at sqrt(0): use norm, sqrt, log or divide of ops.safe, "
    "or try mode: reverse"
)
INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "add_any": "+", "rem": "%"}


@dataclass(frozen=True)
class Trouble:
    """Where a sample went wrong. Static."""

    kind: str
    """born: a number that is not finite, of finite ones; given: it came in; decided: a stage reported failure, having decided on
    such a number; raised: an exception."""

    variables: tuple[str, ...]
    """Outputs and derivatives that are not finite because of it; empty where a stage reported failure, or raised."""

    stage: str | None
    operation: str
    """The primitive or the exception."""

    said: str
    """The operation with its values: `log(-0.25) = nan`; or what the exception says."""

    file: str | None
    line: int
    text: str
    """The source line."""

    in_derivative: bool = False
    """Whether it happens in the derivative of that line: the values that the line computes are finite."""

    inside: bool = False
    """Whether it happens inside a solver that the line calls."""

    @property
    def place(self) -> str:
        """Stage and source line."""
        of = "derivative of " if self.in_derivative else "inside a solver called at " if self.inside else ""
        at = f"{of}{self.file}:{self.line}: {clip(self.text)}" if self.file else ""
        return ", ".join(filter(None, (f"stage {self.stage!r}" if self.stage else "", at)))

    def __str__(self) -> str:
        return f"{self.said} in {self.place}" if self.place else self.said


def hunt(plan: Plan, sample: int, status: int) -> list[Trouble]:
    """Find where a sample that did not raise went wrong; empty if all is finite.

    Args:
        plan: the plan.
        sample: global flat index.
        status: what became of the sample.
    """
    jaxpr, arguments, names = program_of(plan, sample)
    found = trace_origins(jaxpr, arguments, plan.draft.pipeline.names)
    spoilt = {name: origin for name, origin in zip(plan.labels, found.outputs, strict=False) if origin is not None}
    if status not in (STATUS["ok"], STATUS["nonfinite"]):
        return [trouble("decided", (), origin, names) for origin in deciding(plan, found)]
    groups: dict[Origin, list[str]] = {}
    for name, origin in spoilt.items():
        better = explained(origin, found)
        groups.setdefault(better, []).append(name)
    derived = derivatives(plan.draft)
    pairs = zip(plan.labels, found.sites, strict=False)
    in_values = frozenset[Site]().union(*(sites for name, sites in pairs if name not in derived))
    troubles = []
    for origin, variables in groups.items():
        late = origin.site not in in_values and all(name in derived for name in variables)
        kind = "given" if origin.site.input >= 0 else "born"
        troubles.append(trouble(kind, tuple(variables), origin, names, late))
    return troubles


def explained(origin: Origin, found: Provenance) -> Origin:
    """A solver that failed gives NaN of its own making: what led it there says more."""
    if origin.site.direct or origin.site.stage not in found.decided:
        return origin
    return found.decided[origin.site.stage]


def deciding(plan: Plan, found: Provenance) -> Iterable[Origin]:
    """Of the stages that can report failure, the first that decided on a number that is not finite; of any, if none did."""
    reporting = [name for name in plan.draft.pipeline.names if reports_status(plan, name)]
    first = [found.decided[name] for name in reporting if name in found.decided]
    return (first or list(found.decided.values()))[:1]


def reports_status(plan: Plan, stage: str) -> bool:
    """Whether a stage returns a `status`."""
    return any(path and path[-1] == STATUS_FIELD for path, _ in values.leaves(plan.draft.shapes[stage]))


def program_of(plan: Plan, sample: int) -> tuple[Any, list[Any], list[str]]:
    """The program of one sample, the stages that all samples share among it; its arguments; and their names."""
    draft = plan.draft
    fixed, swept = split(draft)
    hoisted, rest = jaxpr_as_fun(plan.hoisted_jaxpr), jaxpr_as_fun(plan.sample_jaxpr)

    def whole(*arguments: Any) -> Any:
        given = hoisted(*jax.tree_util.tree_leaves(arguments[0]))[:-1] if plan.hoisted else []
        return rest(*given, *jax.tree_util.tree_leaves(arguments))

    seed = draft.config.settings.seed
    taken = draft.design.take(np.array([sample], np.int64))
    arguments = (
        {name: draft.nominal[name] for name in fixed},
        {name: np.asarray(taken[name][0], draft.nominal[name].dtype) for name in swept},
        np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32),
        np.asarray(sample, np.uint32),
    )
    names = [*sorted(fixed), *sorted(swept), "seed", "index"]
    return jax.make_jaxpr(whole)(*arguments), jax.tree_util.tree_leaves(arguments), names


def trouble(
    kind: str, variables: tuple[str, ...], origin: Origin, inputs: Sequence[str], late: bool = False
) -> Trouble:
    """An origin in words."""
    site = origin.site
    file = short_path(site.file) if site.file else None
    said = f"parameter {inputs[site.input]} = {number(origin.result)}" if kind == "given" else formula(origin)
    return Trouble(
        kind,
        variables,
        site.stage,
        site.operation,
        said,
        file,
        site.line,
        site.text,
        late and kind == "born",
        not site.direct,
    )


def formula(origin: Origin) -> str:
    """An operation with its values, as people write it."""
    name, shown = origin.site.operation, [number(v) for v in origin.operands]
    if name in CALLS:
        return "a constant that is not finite"
    if origin.site.made:
        return f"a number that is not finite, {origin.site.made}"
    if not shown:
        return f"a number that is not finite, made by {WORDS.get(name, name)}"
    if name in INFIX and len(shown) == 2:
        return f"{shown[0]} {INFIX[name]} {shown[1]} = {number(origin.result)}"
    if name == "integer_pow":
        return f"{shown[0]} ** {origin.site.exponent} = {number(origin.result)}"
    if name in ("convert_element_type", "select_n"):
        return f"the number {number(origin.result)}"
    return f"{name}({', '.join(shown)}) = {number(origin.result)}"


def number(value: Any) -> str:
    """A number in a few digits."""
    return f"{value:.6g}" if isinstance(value, float | complex | np.inexact) else str(value)


def raised(jaxpr: Any, stages: Sequence[str], error: BaseException) -> Trouble:
    """The trouble of a sample that raised: the exception, and the user's line that raised it.

    Args:
        jaxpr: the program that raised.
        stages: the names of its stages.
        error: the exception.
    """
    kind, said, line = read_exception(error)
    sites = find_sites(jaxpr, stages).sites
    calls = {(site.stage, site.file, site.line): site for site in sites if "callback" in site.operation}
    calling = {site.stage for site in calls.values()}
    stage = next(iter(calling)) if len(calling) == 1 else None
    if line is None and len(calls) == 1:
        (site,) = calls.values()
        line = Line(site.file, site.line, site.text) if site.file else None
    file, at, text = (short_path(line.file), line.number, line.text) if line else (None, 0, "")
    return Trouble("raised", (), stage, kind, f"{kind}: {said}" if said else kind, file, at, text)


def read_exception(error: BaseException) -> tuple[str, str, Line | None]:
    """Class, message and the user's line of an exception; of one inside a callback, which JAX hands on as the text of a traceback."""
    lines = str(error).splitlines()
    frames = [(i, found) for i, line in enumerate(lines) if (found := FRAME.match(line))]
    if not frames:
        return type(error).__name__, str(error).strip(), user_line(error)
    rest = [line for line in lines[frames[-1][0] + 1 :] if not line.startswith("    ")]
    end = next((i for i, line in enumerate(rest) if line.startswith("-----")), len(rest))  # what Equinox adds
    kind, _, said = "\n".join(rest[:end]).partition(": ")
    users = [found for _, found in frames if is_users(found[1])]
    made = Line(users[-1][1], int(users[-1][2]), source(users[-1][1], int(users[-1][2]))) if users else None
    return kind.rpartition(".")[2].strip().lstrip("_") or type(error).__name__, said.strip(), made


def source(file: str, line: int) -> str:
    """A line of a file."""
    return linecache.getline(file, line).strip()


def describe(troubles: Iterable[Trouble]) -> list[str]:
    """Lines for people: two for each trouble, and a third where there is a remedy."""
    lines = []
    for one in troubles:
        spoilt = f"{', '.join(one.variables)}: " if one.variables else ""
        within = "a stage reported failure; within it, first non-finite: " if one.kind == "decided" else ""
        lines.append(f"{spoilt}{within}{one.said}")
        lines += [f"  {one.place}"] if one.place else []
        lines += [f"  {SINGULAR}"] if one.in_derivative else []
    return lines
