"""What is to be differentiated → which pass computes it, in which mode, through which adjoint, and why.

In: the config's `derivatives` and the traced shapes. Out: `Differentiation`s, each of which turns `f` into values and derivatives from
one evaluation of the pipeline.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from engine import jaxprs
from engine.config import Config
from engine.diagnosis import Line, line_of, user_line
from engine.errors import PlanError, StageError, listed, nearest
from engine.outputs import Leaf, find_output
from engine.parameters import Parameters
from engine.pipeline import Pipeline
from engine.references import flat, repeated, under

Mode = Literal["forward", "reverse"]
FORWARD_LIMIT = 16
"""Tangents up to which forward mode is taken: about the number at which a reverse pass with its recomputation costs the same."""

HESSIAN_LIMIT = 8
"""Inputs up to which a Hessian is taken forward over forward: it carries their square in tangents."""

FIRST = ("gradient", "jacobian")
ALLOWED = {
    "forward": {"forward"},
    "checkpointed": {"reverse"},
    "backsolve": {"reverse"},
    "direct": {"forward", "reverse", "mixed"},
}
"""What can go through a solve with an adjoint chosen by hand."""

CLASSES = {
    "ForwardMode": "forward",
    "RecursiveCheckpointAdjoint": "checkpointed",
    "BacksolveAdjoint": "backsolve",
    "DirectAdjoint": "direct",
}
"""The adjoints as diffrax calls them."""

Moved = dict[str, Any]
Function = Callable[[Moved], tuple[dict[str, Any], Any]]
"""Of the parameters that move: the leaves to be differentiated by name, and all else that one evaluation gives."""


@dataclass(frozen=True, eq=False)
class Request:
    """A derivative of one leaf with respect to parameters. Static."""

    name: str
    of: Leaf
    wrt: tuple[str, ...]
    kind: str
    mode: str
    order: int = 1
    direction: Any = None
    """jvp, hvp: parameter -> tangent; vjp: a cotangent of the output's shape."""

    @property
    def key(self) -> str:
        """Where the config asks for it."""
        return f"derivatives.{self.name}"

    def leaves(self, shapes: Mapping[str, Any]) -> list[Leaf]:
        """The variables that are stored: the output's dimensions and then those of each parameter."""
        if self.kind == "jvp":
            return [self.leaf(self.name, self.of.shape, self.of.dims, f"of {self.of.name} along a direction")]
        found = []
        for p in self.wrt:
            shape, dims = dimensions(p, shapes)
            if self.kind == "hessian":
                for q in self.wrt:
                    more, names = dimensions(q, shapes, taken=dims)
                    text = f"second, of {self.of.name} with respect to {p} and {q}"
                    found.append(
                        self.leaf(
                            f"{self.name}.{p}.{q}",
                            (*self.of.shape, *shape, *more),
                            (*self.of.dims, *dims, *names),
                            text,
                        )
                    )
            elif self.kind in ("vjp", "hvp"):
                text = {"vjp": f"of {self.of.name}, weighted, with respect to {p}"}.get(
                    self.kind, f"second, of {self.of.name} along a direction and with respect to {p}"
                )
                found.append(self.leaf(f"{self.name}.{p}", shape, dims, text))
            else:
                text = f"of {self.of.name} with respect to {p}" + (f", order {self.order}" if self.order > 1 else "")
                found.append(self.leaf(f"{self.name}.{p}", (*self.of.shape, *shape), (*self.of.dims, *dims), text))
        return found

    def leaf(self, name: str, shape: tuple[int, ...], dims: tuple[str, ...], text: str) -> Leaf:
        """One variable."""
        units = self.of.attributes.get("units")
        attributes = {"long_name": f"derivative {text}"} | ({"units_of_output": units} if units else {})
        return Leaf(name, self.of.reference, shape, self.of.dtype, dims, attributes)


def grouped(names: Sequence[str]) -> list[str]:
    """Names for a formula: those inside one parameter as `net.*` where there are more than two."""
    roots = [name.partition(".")[0] for name in names]
    shown = (f"{root}.*" if roots.count(root) > 2 else name for name, root in zip(names, roots, strict=True))
    return list(dict.fromkeys(shown))


def dimensions(
    parameter: str, shapes: Mapping[str, Any], taken: Sequence[str] = ()
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Shape and dimension names of a parameter; a second time, with a mark of their own."""
    shape = tuple(shapes[parameter].shape)
    names = [f"{parameter}_{i}" for i in range(len(shape))]
    return shape, tuple(f"{name}_" if name in taken else name for name in names)


@dataclass(frozen=True, eq=False)
class Differentiation:
    """Derivatives that one pass computes, together with the values. Static."""

    kind: str
    """first | order | jvp | vjp | hessian | hvp."""

    mode: Mode
    """Of the inner derivative; the outer one of a second derivative is always forward."""

    requests: tuple[Request, ...]
    reason: str
    served: tuple[Request, ...] = field(default=())
    """First derivatives that a Hessian's pass has at hand."""

    @property
    def wrt(self) -> tuple[str, ...]:
        """The parameters, each once."""
        return tuple(dict.fromkeys(name for request in self.requests for name in request.wrt))

    @property
    def of(self) -> tuple[Leaf, ...]:
        """The leaves, each once."""
        return tuple({request.of.name: request.of for request in self.requests}.values())

    @property
    def needs(self) -> str:
        """What must go through the stages: forward, reverse, or both mixed."""
        return "mixed" if self.kind in ("hessian", "hvp") and self.mode == "reverse" else self.mode

    @property
    def adjoint(self) -> str:
        """What `adjoint: auto` means to the ODE solves inside."""
        return {"forward": "forward", "reverse": "checkpointed", "mixed": "direct"}[self.needs]

    @property
    def mode_in_words(self) -> str:
        """`forward`, or `forward over reverse` for a second derivative."""
        return f"forward over {self.mode}" if self.kind in ("hessian", "hvp", "order") else self.mode

    def __str__(self) -> str:
        first = {"forward": "jacfwd", "reverse": "jacrev"}[self.mode]
        if self.mode == "reverse" and not any(leaf.shape for leaf in self.of):
            first = "grad"
        name = {
            "first": f"value_and_{first}",
            "order": f"value_and_jacfwd^{self.requests[0].order}",
            "hessian": f"value_and_hessian[jacfwd∘{first}]",
            "hvp": "value_and_hvp[jvp∘grad]" if self.mode == "reverse" else "value_and_hvp[jacfwd∘jvp]",
        }.get(self.kind, self.kind)
        return f"{name}({', '.join(leaf.name for leaf in self.of)}; {', '.join(grouped(self.wrt))})"

    def __call__(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """What else the evaluation gives, and the derivatives by variable.

        Raises:
            RefusedModeError: a tangent needs the forward derivative of a function that has only a reverse one, which JAX lets pass
                until the program is compiled.
        """
        derivatives = getattr(self, f"{self.kind}_derivatives")
        traced, shape = jax.make_jaxpr(lambda moved: derivatives(function, moved), return_shape=True)(moved)
        needed, _ = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))
        for eqn, site in jaxprs.equations(needed):
            if eqn.primitive.name == "custom_lin":
                raise refused(self, "forward", line_of(jaxprs.stack_of(site)))
        found = jaxpr_as_fun(traced)(*jax.tree_util.tree_leaves(moved))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), found)  # type: ignore[no-any-return]

    def first_derivatives(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """Gradients and Jacobians."""
        found, rest = jacobian(self.mode)(function, has_aux=True)(moved)
        return rest, {f"{r.name}.{p}": found[r.of.name][p] for r in self.requests for p in r.wrt}

    def hessian_derivatives(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """Second derivatives, and the first ones on the way."""
        inner = jacobian(self.mode)(function, has_aux=True)

        def gradient(moved: Moved) -> tuple[Any, Any]:
            found, rest = inner(moved)
            return found, (found, rest)

        second, (first, rest) = jax.jacfwd(gradient, has_aux=True)(moved)
        found = {f"{r.name}.{p}.{q}": second[r.of.name][p][q] for r in self.requests for p in r.wrt for q in r.wrt}
        return rest, found | {f"{r.name}.{p}": first[r.of.name][p] for r in self.served for p in r.wrt}

    def order_derivatives(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """The n-th derivative along each parameter."""
        (request,) = self.requests
        found: dict[str, jax.Array] = {}
        rest: Any = None
        for p in request.wrt:

            def along(value: Any, p: str = p) -> tuple[Any, Any]:
                leaves, rest = function({**moved, p: value})
                return leaves[request.of.name], rest

            for _ in range(request.order):
                along = jax.jacfwd(along, has_aux=True)
            found[f"{request.name}.{p}"], rest = along(moved[p])
        return rest, found

    def jvp_derivatives(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """The Jacobian times a direction."""
        (request,) = self.requests
        _, tangent, rest = jax.jvp(function, (moved,), (along(request, moved),), has_aux=True)
        return rest, {request.name: tangent[request.of.name]}

    def vjp_derivatives(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """A direction times the Jacobian."""
        (request,) = self.requests
        leaves, pullback, rest = jax.vjp(function, moved, has_aux=True)
        name = request.of.name
        (found,) = pullback({name: jnp.asarray(request.direction, leaves[name].dtype)})
        return rest, {f"{request.name}.{p}": found[p] for p in request.wrt}

    def hvp_derivatives(self, function: Function, moved: Moved) -> tuple[Any, dict[str, jax.Array]]:
        """The Hessian times a direction, without the Hessian."""
        (request,) = self.requests
        name, direction = request.of.name, along(request, moved)
        if self.mode == "reverse":
            gradient = jax.jacrev(function, has_aux=True)
            _, found, rest = jax.jvp(gradient, (moved,), (direction,), has_aux=True)
        else:

            def slope(moved: Moved) -> tuple[Any, Any]:
                _, tangent, rest = jax.jvp(function, (moved,), (direction,), has_aux=True)
                return tangent, rest

            found, rest = jax.jacfwd(slope, has_aux=True)(moved)
        return rest, {f"{request.name}.{p}": found[name][p] for p in request.wrt}


def jacobian(mode: Mode) -> Callable[..., Any]:
    """JAX's Jacobian of a mode."""
    return jax.jacfwd if mode == "forward" else jax.jacrev


def along(request: Request, moved: Moved) -> Moved:
    """The direction of a jvp or hvp as tangents."""
    return {p: jnp.asarray(request.direction[p], jnp.result_type(moved[p])) for p in request.wrt}


# ---- what is asked


def resolve_derivatives(
    config: Config, outputs: tuple[Leaf, ...], pipeline: Pipeline, shapes: Mapping[str, Any]
) -> tuple[Request, ...]:
    """Every derivative asked for, checked against the shapes.

    Raises:
        PlanError: an unknown output or parameter, an output that is not scalar or not real, a direction of another shape.
    """
    requests: list[Request] = []
    problems: list[str] = []
    for name, node in config.settings.derivatives.items():
        key = f"derivatives.{name}"
        of = find_output(key, node.of, outputs, pipeline, shapes, problems)
        parameters = pipeline.parameters
        wrt = [p for name in node.wrt for p in parameters.continuous(name)]
        unknown = [
            not_continuous(f"{key}.wrt.{i}", p, parameters)
            for i, p in enumerate(node.wrt)
            if not parameters.continuous(p)
        ]
        problems += unknown
        twice = [
            f"`{key}.wrt` must name each parameter once, but names {p!r} twice. Remove one."
            for p in dict.fromkeys(wrt)
            if wrt.count(p) > 1
        ]
        problems += twice
        if of is None or unknown or twice:
            continue
        node = node.model_copy(update={"wrt": wrt})
        problems += output_problems(key, node, of)
        direction, found = read_direction(key, node, of, shapes)
        problems += found + order_problems(key, node, shapes)
        requests.append(Request(name, of, tuple(node.wrt), node.kind, node.mode, node.order or 1, direction))
    if problems:
        raise PlanError(problems)
    return tuple(requests)


def not_continuous(key: str, name: str, parameters: Parameters) -> str:
    """Why no derivative can be taken by what has this name."""
    if not (inside := under(name, parameters.nominal)):
        named = {**parameters.trees, **parameters.nominal}
        return f"`{key}` must be a parameter, but {name!r} is none.{nearest(name, named)} There are {listed(named)}."
    dtypes = {other: np.asarray(parameters.nominal[other]).dtype for other in inside}
    found = " and ".join(f"{other!r} is {dtype}" for other, dtype in dtypes.items())
    remedies = []
    if any(dtype.kind == "c" for dtype in dtypes.values()):
        remedies.append("Take the real and the imaginary part as two parameters.")
    if any(dtype.kind != "c" for dtype in dtypes.values()):
        remedies.append("Let its `_target_` make floats of what is no index and no choice.")
    return f"`{key}` must be a real floating-point parameter, but {found}. {' '.join(remedies)}"


def output_problems(key: str, node: Any, of: Leaf) -> list[str]:
    """What is wrong with the output of a derivative."""
    problems = []
    if node.kind in ("gradient", "hvp") and of.shape:
        other = {"gradient": "jacobian", "hvp": "hessian"}[node.kind]
        problems.append(
            f"`{key}.of` must be a scalar for a {node.kind}, but {node.of!r} ({of.reference}) has the shape {of.shape}. "
            f"Write kind: {other}, or reduce the output to a scalar in a stage (jnp.sum, jnp.mean, its last entry)."
        )
    if of.dtype.kind != "f":
        problems.append(
            f"`{key}.of` must be a real floating-point output, but {node.of!r} ({of.reference}) is {of.dtype}. "
            "A derivative of it means nothing; take a real output."
        )
    return problems


def order_problems(key: str, node: Any, shapes: Mapping[str, Any]) -> list[str]:
    """What is wrong with the order of a derivative."""
    if node.order in (None, 1):
        return []
    if node.kind not in FIRST:
        return [
            f"`{key}.order` must be left out for a {node.kind}, but is {node.order}. It counts derivatives along each parameter of "
            "a gradient or a jacobian."
        ]
    if node.mode == "reverse":
        return [f"`{key}.mode` must be forward for order {node.order}, but is reverse. Leave mode out."]
    return [
        f"`{key}.wrt.{i}` must be a scalar parameter for order {node.order}, but {p!r} has the shape {tuple(shapes[p].shape)}. "
        "Write kind: hessian for second derivatives of arrays."
        for i, p in enumerate(node.wrt)
        if shapes[p].shape
    ]


def read_direction(key: str, node: Any, of: Leaf, shapes: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The direction of a jvp, vjp or hvp as arrays, and what is wrong with it."""
    asked = node.direction
    if node.kind not in ("jvp", "vjp", "hvp"):
        if asked is None:
            return None, []
        return None, [
            f"`{key}.direction` must be left out for a {node.kind}, but is given. Write kind: jvp, vjp or hvp."
        ]
    if node.kind == "vjp":
        example = "a number" if not of.shape else f"numbers of the shape {of.shape}"
        if asked is None:
            return None, [
                f"`{key}.direction` must be given for a vjp, but is missing. Write {example}: the output's weights."
            ]
        return read_tangent(f"{key}.direction", asked, of.shape, f"the output {of.name!r}")
    if asked is None:
        example = ", ".join(f"{p}: 1.0" for p in node.wrt)
        return None, [
            f"`{key}.direction` must be given for a {node.kind}, but is missing. Write direction: {{{example}}}."
        ]
    if not isinstance(asked, Mapping):
        if len(node.wrt) > 1:
            example = ", ".join(f"{p}: 1.0" for p in node.wrt)
            return None, [
                f"`{key}.direction` must be a mapping from each parameter of wrt to its tangent, but is {asked!r}. "
                f"Write {{{example}}}."
            ]
        asked = {node.wrt[0]: asked}
    problems = [
        f"`{key}.direction.{p}` must be given once, but stands dotted and nested. Remove one."
        for p in repeated(asked, node.wrt)
    ]
    asked = flat(asked, node.wrt)
    for p, value in asked.items():
        if p in node.wrt:
            continue
        if inside := under(p, node.wrt):
            example = ", ".join(f"{name}: ..." for name in inside)
            problems.append(
                f"`{key}.direction.{p}` must be a mapping of what {p!r} holds, but is {value!r}. Write {{{example}}}."
            )
        else:
            problems.append(
                f"`{key}.direction.{p}` must be one of wrt, but is not.{nearest(p, node.wrt)} There are {listed(node.wrt)}."
            )
    found = {}
    for p in node.wrt:
        found[p], wrong = read_tangent(f"{key}.direction.{p}", asked.get(p, 0.0), tuple(shapes[p].shape), f"{p!r}")
        problems += wrong
    return found, problems


def read_tangent(key: str, value: Any, shape: tuple[int, ...], what: str) -> tuple[Any, list[str]]:
    """Finite numbers of a shape; a zero stands for zeros."""
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        return None, [f"`{key}` must be numbers of the shape {shape}, but is {value!r}. Write numbers."]
    if not array.ndim and array == 0:
        return np.zeros(shape), []
    if array.shape != shape:
        return None, [
            f"`{key}` must have the shape of {what}, {shape}, but has {array.shape}. Write that many numbers."
        ]
    if not np.isfinite(array).all():
        return None, [f"`{key}` must be finite, but is {value!r}. Write finite numbers."]
    return array, []


# ---- which pass computes it


def choose_passes(
    requests: tuple[Request, ...],
    shapes: Mapping[str, tuple[int, ...]],
    adjoints: Mapping[str, str],
    avoid: Mode | None = None,
) -> tuple[Differentiation, ...]:
    """Group the derivatives into passes, choosing a mode for `auto` by the number of inputs and outputs.

    Args:
        requests: what is asked.
        shapes: of the parameters.
        adjoints: stage -> the adjoint that its solver was given by hand, where it is not `auto`.
        avoid: a mode that a stage does not let through, found by trying; `auto` takes the other.

    Raises:
        PlanError: the mode asked for cannot go through the adjoint chosen by hand.
    """
    by_hand = {stage: adjoint for stage, adjoint in adjoints.items() if adjoint in ALLOWED}
    passes = hessian_passes(requests, shapes, by_hand, avoid)
    served = {r.name for one in passes for r in one.served}
    first = [r for r in requests if r.kind in FIRST and r.order == 1 and r.name not in served]
    inputs = sum(math.prod(shapes[name]) for name in {name for r in first for name in r.wrt})
    outputs = sum({r.of.name: math.prod(r.of.shape) for r in first}.values())
    grouped: dict[Mode, tuple[list[Request], str]] = {}
    for request in first:
        mode, reason = first_mode(request, inputs, outputs, by_hand, avoid)
        grouped.setdefault(mode, ([], reason))[0].append(request)
    passes += [Differentiation("first", mode, tuple(found), why) for mode, (found, why) in sorted(grouped.items())]
    for request in requests:
        if request.kind in FIRST and request.order > 1:
            passes.append(
                Differentiation("order", "forward", (request,), f"{request.order} nested tangents for each parameter")
            )
        elif request.kind in ("jvp", "vjp"):
            passes.append(product(request))
        elif request.kind == "hvp":
            mode, reason = second_mode(request, shapes, by_hand, avoid)
            passes.append(Differentiation("hvp", mode, (request,), reason))
    check_adjoints(passes, by_hand)
    return tuple(passes)


def hessian_passes(
    requests: tuple[Request, ...],
    shapes: Mapping[str, tuple[int, ...]],
    by_hand: Mapping[str, str],
    avoid: Mode | None,
) -> list[Differentiation]:
    """One pass for the Hessians by the same parameters in the same mode; it serves the first derivatives that it has at hand."""
    groups: dict[tuple[tuple[str, ...], Mode], tuple[list[Request], str]] = {}
    for request in requests:
        if request.kind == "hessian":
            mode, reason = second_mode(request, shapes, by_hand, avoid)
            groups.setdefault((request.wrt, mode), ([], reason))[0].append(request)
    left = [r for r in requests if r.kind in FIRST and r.order == 1 and r.mode == "auto"]
    passes = []
    for (wrt, mode), (group, reason) in groups.items():
        names = {r.of.name for r in group}
        served = tuple(r for r in left if r.of.name in names and set(r.wrt) <= set(wrt))
        left = [r for r in left if r not in served]
        passes.append(Differentiation("hessian", mode, tuple(group), reason, served))
    return passes


def product(request: Request) -> Differentiation:
    """A jvp is forward, a vjp reverse; neither has a choice.

    Raises:
        PlanError: the other mode is asked for.
    """
    mode: Mode = "forward" if request.kind == "jvp" else "reverse"
    if request.mode not in ("auto", mode):
        raise PlanError(
            f"`{request.key}.mode` must be {mode} for a {request.kind}, but is {request.mode}. Leave mode out."
        )
    one = {"jvp": "one tangent, matrix-free", "vjp": "one reverse pass, matrix-free"}
    return Differentiation(request.kind, mode, (request,), one[request.kind])


def first_mode(
    request: Request, inputs: int, outputs: int, by_hand: Mapping[str, str], avoid: Mode | None
) -> tuple[Mode, str]:
    """The mode of a first derivative, and why in words."""
    if request.mode != "auto":
        return mode_asked(request), "as asked"
    for stage, adjoint in by_hand.items():
        if adjoint != "direct":
            mode: Mode = "forward" if adjoint == "forward" else "reverse"
            return mode, f"the adjoint {adjoint!r} of stage {stage!r} allows no other"
    if avoid is not None:
        return other(avoid), refused_by_a_stage(avoid)
    counts = f"{inputs} input{'s' * (inputs != 1)}, {outputs} output{'s' * (outputs != 1)}"
    if inputs <= max(FORWARD_LIMIT, outputs):
        return "forward", f"{counts}: tangents carried in the same pass cost less than a reverse pass"
    return "reverse", f"{counts}: one reverse pass for each output"


def second_mode(
    request: Request, shapes: Mapping[str, tuple[int, ...]], by_hand: Mapping[str, str], avoid: Mode | None
) -> tuple[Mode, str]:
    """The inner mode of a second derivative, and why in words."""
    if request.mode != "auto":
        return mode_asked(request), "as asked"
    for stage, adjoint in by_hand.items():
        if adjoint == "forward":
            return "forward", f"the adjoint {adjoint!r} of stage {stage!r} allows no other"
    if avoid is not None:
        return other(avoid), refused_by_a_stage(avoid)
    inputs = sum(math.prod(shapes[name]) for name in request.wrt)
    limit = HESSIAN_LIMIT if request.kind == "hessian" else FORWARD_LIMIT
    counts = f"{inputs} input{'s' * (inputs != 1)}"
    if inputs <= limit:
        return "forward", f"{counts}: tangents of tangents cost less than a reverse pass"
    return "reverse", f"{counts}: tangents of one reverse pass"


def mode_asked(request: Request) -> Mode:
    """The mode that the config names."""
    return "forward" if request.mode == "forward" else "reverse"


def other(mode: Mode) -> Mode:
    """Reverse for forward, forward for reverse."""
    return "reverse" if mode == "forward" else "forward"


def check_adjoints(passes: Sequence[Differentiation], by_hand: Mapping[str, str]) -> None:
    """Every pass must go through the adjoints chosen by hand.

    Raises:
        PlanError: with what does not.
    """
    problems = []
    for one in passes:
        for stage, adjoint in by_hand.items():
            if one.needs in ALLOWED[adjoint]:
                continue
            second = one.needs == "mixed" or " over " in one.mode_in_words
            mode = "forward" if "forward" in ALLOWED[adjoint] else "reverse"
            what = "a second derivative" if second else f"{one.mode} mode"
            what += " in reverse mode" if second and mode == "forward" else ""
            remedy = "adjoint: auto" if second and mode == "reverse" else f"mode: {mode}, or adjoint: auto"
            problems.append(
                f"`{one.requests[0].key}.mode` must suit the adjoint of `stages.{stage}`, but {what} cannot go through adjoint "
                f"{adjoint!r}. Write {remedy}."
            )
    if problems:
        raise PlanError(problems)


def solver_adjoints(pipeline: Pipeline) -> dict[str, str]:
    """Stages that are given a solver, with its adjoint; `auto` follows from the mode."""
    found = {}
    for stage in pipeline.stages:
        for value in stage.constants.values():
            if (adjoint := getattr(value, "adjoint", None)) is not None:
                name = type(adjoint).__name__
                found[stage.name] = adjoint if isinstance(adjoint, str) else CLASSES.get(name, name)
    return found


def chosen_adjoints(pipeline: Pipeline) -> dict[str, str]:
    """Stages whose solver names its adjoint by hand."""
    return {stage: adjoint for stage, adjoint in solver_adjoints(pipeline).items() if adjoint != "auto"}


def adjoint_in_effect(one: Differentiation, pipeline: Pipeline) -> str:
    """The adjoint that a pass takes, in quotes; where stages take different ones, each with its stage."""
    found = {stage: one.adjoint if name == "auto" else name for stage, name in solver_adjoints(pipeline).items()}
    names = set(found.values()) or {one.adjoint}
    if len(names) == 1:
        return repr(names.pop())
    return ", ".join(f"{name!r} in {stage}" for stage, name in found.items())


class RefusedModeError(PlanError):
    """A stage does not let a mode of differentiation through."""

    def __init__(self, problems: str | Sequence[str], mode: Mode = "forward", asked: bool = True) -> None:
        super().__init__(problems)
        self.mode = mode
        self.asked = asked


@contextlib.contextmanager
def differentiable(one: Differentiation) -> Iterator[None]:
    """JAX's refusals of a mode, in words.

    Raises:
        RefusedModeError: with the mode that does not go through.
    """
    try:
        yield
    except StageError as error:
        raise refusal(error.__cause__ or error, one) or error from None
    except (TypeError, ValueError, NotImplementedError) as error:
        if (found := refusal(error, one)) is None:
            raise
        raise found from None


def refusal(error: BaseException, one: Differentiation) -> RefusedModeError | None:
    """The error for what JAX raises where a derivative cannot go through, or None."""
    # The cause holds the user's line where JAX raises long after the stage was traced.
    line = (error.__cause__ and user_line(error.__cause__)) or user_line(error)
    if "forward-mode autodiff (jvp)" in str(error) and "custom_vjp" in str(error):
        return refused(one, "forward", line)
    if "Reverse-mode differentiation does not work for" in str(error):
        return refused(one, "reverse", line)
    return None


MET: dict[Mode, str] = {
    "forward": "a function that defines only a reverse derivative (custom_vjp)",
    "reverse": "a loop of unknown length (while_loop or a fori_loop with traced bounds)",
}
"""What does not let a mode through."""

MENDED: dict[Mode, str] = {
    "forward": "define its rule with jax.custom_jvp, which serves both modes",
    "reverse": "use lax.scan or a fori_loop with fixed bounds there",
}
"""What lets it through instead."""


def refused(one: Differentiation, mode: Mode, line: Line | None) -> RefusedModeError:
    """The error for a mode that a line of a stage does not let through."""
    keys = ", ".join(f"`{request.key}`" for request in one.requests)
    at, both = f" at {line}" if line else "", one.reason == refused_by_a_stage(other(mode))
    but = f"{mode} mode meets {MET[mode]}{at}" + (f", and {other(mode)} mode is refused as well" if both else "")
    instead = {
        "jvp": "kind: jacobian with mode: reverse",
        "vjp": "kind: jacobian with mode: forward",
        "order": "kind: hessian with mode: reverse" if one.requests[0].order == 2 else "",
    }.get(one.kind, f"mode: {other(mode)}" if one.mode == mode else "")
    remedy = MENDED[mode] if both or not instead else f"write {instead}, or {MENDED[mode]}"
    remedy += ", or write the mode of each" if len(one.requests) > 1 else ""
    asked = all(r.mode != "auto" or r.kind in ("jvp", "vjp") or r.order > 1 for r in one.requests)
    return RefusedModeError(
        f"{keys} must go through every stage, but {but}. {remedy[0].upper()}{remedy[1:]}.", mode, asked
    )


def refused_by_a_stage(mode: Mode) -> str:
    """Why `auto` took the other mode."""
    return f"a stage lets no {mode} mode through"
