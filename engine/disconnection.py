"""Derivatives that are zero at every sample, and the line that cuts the path.

In: the traced values, and what derivatives are asked of them. Out: a warning for each parameter that no derivative can reach. One
that only happens to be zero at some samples is none of these, nor is the second derivative of a linear output.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from engine.dataflow import Analysis
from engine.diagnosis import is_users, short_path
from engine.jaxprs import stack_of
from engine.sites import stage_of

if TYPE_CHECKING:
    from engine.derivatives import Request
    from engine.draft import Draft

STEPS = ("floor", "ceil", "round", "sign", "stop_gradient")
"""Primitives of real numbers whose derivative is zero."""

WORDS = {"convert_element_type": "a conversion to integers"}
WORDS |= dict.fromkeys(("lt", "le", "gt", "ge", "eq", "ne", "is_finite"), "a comparison")
"""What a message calls a primitive, where not by its name."""

CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
"""Calls whose derivative the user wrote, such as a straight-through estimate of a rounding."""


@dataclass(frozen=True, order=True)
class Cut:
    """An equation through which no derivative goes; the least of several tells a user most."""

    inside: bool
    """Whether it stands in a library rather than on the user's line."""

    order: int
    name: str
    line: str
    """The user's line, `model.py:12`; empty if there is none."""

    stage: str = ""

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"cut inside the call{at}, or it is not used there" if self.inside else f"cut by {self.name}{at}"


@dataclass(frozen=True)
class Path:
    """On which parameters a value depends, and how."""

    smooth: frozenset[str] = frozenset()
    """By a path that derivatives take."""

    cut: Mapping[str, Cut] = field(default_factory=dict)
    """By another path: parameter -> what cuts it."""


NOWHERE = Path()


class Paths(Analysis[Path]):
    """How values depend on the parameters."""

    def __init__(self, stages: Collection[str]) -> None:
        self.stages = stages
        self.stage = ""
        """Of the outermost equation: a function that several stages call is traced once, with the lines of the first."""

        self.cuts: dict[tuple[int, int, str], Cut] = {}

    def constant(self, value: Any) -> Path:
        """A constant does not."""
        return NOWHERE

    def join(self, a: Path, b: Path) -> Path:
        """Either way."""
        if a is b or b == NOWHERE:
            return a
        cut = {p: min(filter(None, (a.cut.get(p), b.cut.get(p)))) for p in {**a.cut, **b.cut}}
        return Path(a.smooth | b.smooth, cut)

    def enters(self, eqn: Any) -> bool:
        """A derivative that the user wrote is taken as smooth."""
        return eqn.primitive.name not in CUSTOM

    def decided(self, result: Path, by: Path) -> Path:
        """A condition moves a result, and hands on no derivative."""
        return self.join(result, Path(cut=by.cut))

    def apply(self, eqn: Any, operands: list[Path], site: Any) -> list[Path]:
        """Note the stage on the way in."""
        around, self.stage = self.stage, self.stage or stage_of(eqn, self.stages) or ""
        try:
            return super().apply(eqn, operands, site)
        finally:
            self.stage = around

    def step(self, eqn: Any, operands: list[Path], site: Any) -> list[Path]:
        """A primitive hands paths on, or cuts them."""
        path = self.joined([NOWHERE, *operands])
        if path.smooth and cuts(eqn):
            place = id(eqn), id(site), self.stage  # JAX's own functions are traced once, and called from several lines
            if place not in self.cuts:
                self.cuts[place] = read_cut(eqn, site, len(self.cuts), self.stage)
            path = self.join(Path(cut=path.cut), Path(cut=dict.fromkeys(path.smooth, self.cuts[place])))
        return [path] * len(eqn.outvars)


def cuts(eqn: Any) -> bool:
    """Whether no derivative goes through an equation: a step function, or one whose results are no real numbers."""
    if eqn.primitive.name in STEPS:
        return True
    dtypes = [getattr(v.aval, "dtype", None) for v in eqn.outvars]
    return bool(dtypes) and all(isinstance(d, np.dtype) and d.kind in "biu" for d in dtypes)


def read_cut(eqn: Any, site: Any, order: int, stage: str) -> Cut:
    """A cut with its place."""
    stack = [(file, n) for file, n in stack_of(site) if f"{os.sep}jax{os.sep}" not in file]
    line = next((f"{short_path(file)}:{n}" for file, n in stack if is_users(file)), "")
    primitive, function = str(eqn.primitive.name), str(site.params.get("name", "_"))
    name = WORDS.get(primitive, primitive) if function.startswith(("_", "<")) else function
    return Cut(not stack or not is_users(stack[0][0]), order, name, line, stage)


def paths_of(draft: Draft) -> dict[str, Path]:
    """How each output depends on the parameters; empty if what is differentiated is not what was traced."""
    if not draft.requests or draft.stack.of_values:
        return {}
    # The leaves of a dict, of parameters as of outputs, come in the order of its keys.
    given = [Path(frozenset([p])) for p in sorted(draft.nominal) for _ in jax.tree_util.tree_leaves(draft.shapes[p])]
    names = sorted({leaf.name for leaf in (*draft.outputs, *draft.coords)})
    return dict(zip(names, Paths(draft.pipeline.names).run(draft.jaxpr, [*given, NOWHERE]), strict=False))


def warn_of_zero_derivatives(draft: Draft) -> list[str]:
    """A warning for each parameter by which a derivative was asked for that is zero at every sample."""
    paths = paths_of(draft)
    return [
        message(request, p, path.cut.get(p))
        for request in draft.requests
        if (path := paths.get(request.of.name)) is not None
        for p in request.wrt
        if p not in path.smooth and moves(request, p)
    ]


def moves(request: Request, parameter: str) -> bool:
    """Whether the direction of a product, if there is one, has a part along a parameter."""
    return request.kind != "jvp" or any(map(np.any, jax.tree_util.tree_leaves(request.direction[parameter])))


def message(request: Request, parameter: str, cut: Cut | None) -> str:
    """The warning, with the reason."""
    key = f"{request.key}.wrt.{request.wrt.index(parameter)}"
    why = "it is not used" if cut is None else f"the path is {cut}"
    remedy = "Remove it from wrt"
    if cut is not None:
        smooth = (
            "`python -m engine check-grad` names the stage" if cut.inside else "Write that step with a smooth function"
        )
        remedy = f"{smooth}, or remove it from wrt"
    return (
        f"`{key}` should be a parameter that moves {request.of.name!r}, but the derivative by {parameter!r} is 0 at every sample: "
        f"{why}. {remedy}."
    )
