"""`optimize.method` → the method of a search.

In: auto, the name of an option of the group `optimizer`, or a node. Out: an object with `init` and `step`, or the marker of a method
outside JAX. What a method cannot honour is refused here, with the names of those that can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine import optax_methods, optimistix_methods
from engine.catalog import options_of
from engine.config import build, read_option
from engine.errors import PlanError, listed, nearest
from engine.evaluation import Box, Evaluation, Iterate
from engine.scipy_methods import NAMES, SciPyMethod

GROUP = "optimizer"
"""The config group of the methods."""

SMALL = 20
"""Variables below which a dense Hessian is cheap."""

MANY_SEARCHES = 16
"""Searches above which those that run side by side are preferred to one after the other."""

MANY_VARIABLES = 200
"""Variables above which SLSQP's dense matrices are slow."""

WORDS = {
    "bounds": ("honour bounds", "leave the bounds out"),
    "constraints": ("honour constraints", "leave the constraints out"),
    "residuals": ("do without residuals", "give `optimize.data`"),
}
"""What a problem asks of its method, and what else to do; the last where it has no data."""


@dataclass(frozen=True)
class Method:
    """A method by its name. Static."""

    name: str
    """As it is called in messages and reports."""

    inner: Any = field(compare=False, repr=False)
    """What takes the steps."""

    node: str
    """What it was built from, as JSON: equal for equal methods."""

    reason: str = field(default="", compare=False, repr=False)
    """Why it was chosen, where that was left to the engine."""

    @property
    def needs(self) -> str:
        """What a step works on: "gradient" or "residuals"."""
        return str(self.inner.needs)

    @property
    def bounded(self) -> bool:
        """Whether it honours bounds."""
        return bool(self.inner.bounded)

    @property
    def constrained(self) -> bool:
        """Whether it honours constraints."""
        return bool(self.inner.constrained)

    def init(self, z: Any, first: Evaluation, box: Box) -> Any:
        """The state before the first step."""
        return self.inner.init(z, first, box)

    def step(self, state: Any, evaluate: Callable[[Any], Evaluation], box: Box) -> tuple[Any, Iterate]:
        """One step: one evaluation."""
        stepped: tuple[Any, Iterate] = self.inner.step(state, evaluate, box)
        return stepped

    def multipliers(self, state: Any) -> Any:
        """The multipliers of the constraints, (k,), of a method that honours them."""
        return self.inner.multipliers(state)

    def __str__(self) -> str:
        return self.name


def read_method(
    node: object,
    *,
    bounds: bool,
    constraints: bool,
    residuals: bool,
    starts: int,
    sweep: bool,
    variables: int,
) -> Method | SciPyMethod:
    """The method for a problem.

    Args:
        node: auto, a name, or a mapping with a `_target_` (or with a `name`).
        bounds: whether any variable has one.
        constraints: whether there are any.
        residuals: whether the objective is a sum of squares whose terms are known.
        starts: searches, over all points of a batched design.
        sweep: whether the design is solved for each point of a sweep.
        variables: how many, elements of arrays counted.

    Raises:
        PlanError: there is no such method, or it cannot do what is asked.
    """
    if isinstance(node, Mapping) and "_target_" not in node and set(node) == {"name"}:
        node = node["name"]
    if node is None or node == "auto":
        name, reason = chosen(constraints, residuals, starts, sweep, variables)
        return replace(named(name, variables), reason=reason)
    method = named(node, variables) if isinstance(node, str) else built(node, variables)
    check(method, bounds, constraints, residuals)
    return method


def chosen(constraints: bool, residuals: bool, starts: int, sweep: bool, variables: int) -> tuple[str, str]:
    """The name of the method that fits, and why it does."""
    if constraints and starts > MANY_SEARCHES:
        return "augmented_lagrangian", f"there are constraints, and {starts} searches run side by side"
    if constraints and variables > MANY_VARIABLES:
        return "augmented_lagrangian", f"there are constraints, and {variables} variables are many for dense matrices"
    if constraints:
        return "slsqp", "there are constraints"
    if residuals:
        return "levenberg_marquardt", "data are fitted, by their residuals"
    if variables < SMALL:
        count = "variable is" if variables == 1 else "variables are"
        return "bfgs", f"the objective has a gradient, and {variables} {count} few"
    return "lbfgs", f"the objective has a gradient, and {variables} variables are many for a dense Hessian"


def named(name: str, variables: int = 1) -> Method | SciPyMethod:
    """The option of the group with this name."""
    options = [option for option in options_of(GROUP) if option != "auto"]
    if name not in options:
        raise PlanError(
            f"`optimize.method` must be auto, one of {listed(options, 40)} or a node with a _target_, but is {name!r}."
            f"{nearest(name, options)}"
        )
    return built(read_option(GROUP, name), variables, name)


def built(node: object, variables: int, name: str | None = None) -> Method | SciPyMethod:
    """The method that a node with a `_target_` stands for."""
    if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str):
        raise PlanError(
            "`optimize.method` must be auto, a name or a node with a _target_, such as {_target_: optax.adam, learning_rate: 0.05}, "
            f"but is {node!r}. `python -m engine list optimizers` shows the names."
        )
    target = node["_target_"]
    text = json.dumps(node, sort_keys=True, default=str)
    name = name or name_of(node)
    try:
        made = build(dict(node))
    except Exception as error:
        raise PlanError(f"`optimize.method` must be built, but {target} {refusal(error)}") from None
    if isinstance(made, SciPyMethod):
        if made.name not in NAMES:
            raise PlanError(f"`optimize.method.name` must be one of {listed(NAMES)}, but is {made.name!r}. Choose one.")
        return made
    if optax_methods.is_transformation(made):
        return Method(name, optax_methods.wrapped(made, name, max(variables, 1)), text)
    if optimistix_methods.is_solver(made):
        return Method(name, optimistix_methods.wrapped(made, name), text)
    missing = [part for part in ("init", "step", "needs", "bounded", "constrained") if not hasattr(made, part)]
    if missing:
        raise PlanError(
            "`optimize.method` must be an Optax transformation, an Optimistix minimiser or least-squares solver, or a method with init, "
            f"step, needs, bounded and constrained, but {target} makes a {type(made).__name__} without {listed(missing)}. "
            "`python -m engine list optimizers` shows those that there are."
        )
    return Method(name, made, text)


def name_of(node: Mapping[str, Any]) -> str:
    """The name of the option with the same target, else the target's own."""
    target = str(node["_target_"])
    own = {str(read_option(GROUP, name).get("_target_")): name for name in options_of(GROUP)}
    if "SciPyMethod" in target:
        return str(node.get("name"))
    return own.get(target, target.rpartition(".")[2])


def refusal(error: Exception) -> str:
    """What building said, as the end of a sentence: the innermost cause, without Hydra's frame around it."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line and not line.startswith("full_key")]
    said = (lines[-1] if lines else type(error).__name__).rstrip(".")
    return f"says: {said}. Check its name and arguments."


def check(method: Method | SciPyMethod, bounds: bool, constraints: bool, residuals: bool) -> None:
    """Refuse what the method would ignore."""

    def able(other: Method | SciPyMethod) -> bool:
        return (
            (other.bounded or not bounds)
            and (other.constrained or not constraints)
            and (residuals or other.needs == "gradient")
        )

    if able(method):
        return
    wrong = {
        "bounds": bounds and not method.bounded,
        "constraints": constraints and not method.constrained,
        "residuals": not residuals and method.needs == "residuals",
    }
    others = listed((name for name, other in all_methods().items() if able(other)), 40)
    raise PlanError(
        [
            f"`optimize.method` must {WORDS[what][0]}, but is {str(method)!r}, which does not. "
            f"Choose one of {others}, or {WORDS[what][1]}."
            for what, is_wrong in wrong.items()
            if is_wrong
        ]
    )


def all_methods() -> dict[str, Method | SciPyMethod]:
    """Every option of the group by its name."""
    return {name: named(name) for name in options_of(GROUP) if name != "auto"}
