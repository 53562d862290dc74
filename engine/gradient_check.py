"""Every derivative of a plan against finite differences of its own values: a table with a verdict for each.

In: a plan. Out: a row for each derivative. The derivatives come from the program that a run compiles, the values from single
evaluations of the pipeline, so that the transforms, the adjoints and the batching are all under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine.axes import Array
from engine.derivatives import Request, choose_passes, chosen_adjoints
from engine.draft import adjoint_context
from engine.errors import PlanError
from engine.lowering import evaluate, look_up
from engine.outputs import Leaf
from engine.plan import Plan
from engine.program import Program
from engine.transforms import make_key

STEPS = 10
SHRINK = 1.6
"""Ridders' tableau: so many central differences, each with a step shorter by this factor."""

FIRST_STEP = 0.02
"""The longest step, relative to the parameter (to 1 where it is smaller)."""

TOLERANCE = 1e-4
"""Relative difference, of a derivative's largest value, that is accepted."""

Function = Callable[[Mapping[str, Any], jax.Array], Any]


@dataclass(frozen=True)
class Row:
    """What the check of one derivative found."""

    derivative: str
    of: str
    wrt: str
    largest: float
    """Its largest absolute value by finite differences, over samples and elements."""

    difference: float
    """The largest difference, relative to that."""

    uncertainty: float
    """What the finite differences themselves are uncertain by, relative to that."""

    verdict: str
    """ok | differs | disconnected: the stage that cuts the path | unresolved: the differences are too noisy to tell."""


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives by finite differences."""

    value: Array
    """(samples, *value, tangents)."""

    error: Array
    """What they are uncertain by; the same shape."""

    stepped: bool
    """Whether the values change over long steps, and not at all over short ones: they are rounded."""

    @property
    def move(self) -> bool:
        """Whether the values change beyond doubt."""
        return self.stepped or float(np.max(np.abs(self.value), initial=0.0)) > 10 * float(
            np.max(self.error, initial=0.0)
        )


def check_gradients(plan: Plan, samples: int = 5) -> list[Row]:
    """Compare at some samples of the sweep, evenly spaced.

    Args:
        plan: with derivatives.
        samples: at most how many.

    Raises:
        PlanError: the plan has no derivatives.

    The differences are Ridders' (Advances in Engineering Software 4, 75, 1982), with their own estimate of error.
    """
    if not plan.draft.requests:
        raise PlanError("`derivatives` must hold at least one to be checked, but is empty. Add one to the config.")
    index = np.unique(np.linspace(0, plan.draft.design.samples - 1, max(1, samples)).astype(np.int64))
    program = Program(plan)
    program.prepare()
    chunks = [program.at(index[i : i + plan.blocks.width]) for i in range(0, len(index), plan.blocks.width)]
    ours = {name: np.concatenate([outputs[name] for outputs, _ in chunks]) for name in chunks[0][0]}
    status = np.concatenate([codes for _, codes in chunks])
    ours |= {name: np.broadcast_to(v, (len(index), *v.shape)) for name, v in program.once_values.items()}
    good = np.flatnonzero(status == 1)
    if not len(good):
        raise PlanError(
            "`derivatives` must be checked at samples that succeed, but all those tried failed. Choose others with --samples."
        )
    points = parameters_at(plan, index[good])
    keys = keys_of(program, index[good])
    rows = []
    for request in plan.draft.requests:
        for name, function, direction in lower_orders(plan, request):
            slopes = differences(function, points, keys, direction)
            found = np.asarray(ours[name])[good]
            rows.append(judge(plan, request, name, found, slopes, points, keys))
    return rows


def parameters_at(plan: Plan, index: Array) -> dict[str, Array]:
    """Every parameter at some samples, with a leading axis."""
    taken = plan.draft.design.take(index)
    return {
        name: np.asarray(taken.get(name, np.broadcast_to(value, (len(index), *value.shape))), value.dtype)
        for name, value in plan.draft.nominal.items()
    }


def keys_of(program: Program, index: Array) -> jax.Array:
    """The PRNG keys of samples."""
    key = make_key(jnp.asarray(program.seed))
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.asarray(index, jnp.uint32))


def lower_orders(plan: Plan, request: Request) -> Iterator[tuple[str, Function, dict[str, Array]]]:
    """For each variable of a derivative: its name, the function whose derivative it is, and along what.

    A direction holds an axis of unit tangents for each element of a parameter, or the one tangent of a product.
    """
    shapes = {name: value.shape for name, value in plan.draft.nominal.items()}
    value = value_of(plan, request.of)
    for p in request.wrt:
        if request.kind == "jvp":
            tangents = {q: np.asarray(v)[None] for q, v in request.direction.items()}
            yield request.name, value, tangents
            return
        if request.kind == "vjp":
            yield f"{request.name}.{p}", weighted(value, np.asarray(request.direction)), units(p, shapes)
        elif request.kind == "hessian":
            for q in request.wrt:
                yield f"{request.name}.{p}.{q}", derivative_of(plan, request, p, 1), units(q, shapes)
        elif request.kind == "hvp":
            tangents = {q: np.asarray(v)[None] for q, v in request.direction.items()}
            yield f"{request.name}.{p}", derivative_of(plan, request, p, 1), tangents
        elif request.order > 1:
            yield f"{request.name}.{p}", derivative_of(plan, request, p, request.order - 1), units(p, shapes)
        else:
            yield f"{request.name}.{p}", value, units(p, shapes)


def weighted(function: Function, weights: Array) -> Function:
    """The weighted sum of an array."""
    return lambda parameters, key: jnp.sum(weights * function(parameters, key))


def units(parameter: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The unit tangents of a parameter."""
    size = int(np.prod(shapes[parameter], dtype=int))
    return {parameter: np.eye(size).reshape(size, *shapes[parameter])}


def value_of(plan: Plan, leaf: Leaf) -> Function:
    """One leaf of the pipeline, as a function of the parameters."""
    pipeline, adjoint = plan.draft.pipeline, adjoint_context(plan.config)

    def f(parameters: Mapping[str, Any], key: jax.Array) -> Any:
        with adjoint("forward"):  # with the steps of a differentiated solve, so that both sides solve alike
            return look_up(leaf.reference, evaluate(pipeline, parameters, key), leaf.name)

    return f


def derivative_of(plan: Plan, request: Request, parameter: str, order: int) -> Function:
    """The derivative of one order less, by the engine's own passes; it is checked in its turn."""
    shapes = {name: value.shape for name, value in plan.draft.nominal.items()}
    kind = "jacobian" if request.of.shape else "gradient"
    lower = replace(request, kind=kind, wrt=(parameter,), order=order, direction=None, mode="auto")
    (one,) = choose_passes((lower,), shapes, chosen_adjoints(plan.draft.pipeline))
    pipeline, adjoint = plan.draft.pipeline, adjoint_context(plan.config)

    def f(parameters: Mapping[str, Any], key: jax.Array) -> Any:
        def function(moved: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            found = evaluate(pipeline, {**parameters, **moved}, key)
            return {request.of.name: look_up(request.of.reference, found, request.of.name)}, None

        with adjoint(one.adjoint):
            _, found = one(function, {name: jnp.asarray(parameters[name]) for name in one.wrt})
            return found[f"{request.name}.{parameter}"]

    return f


def differences(
    function: Function, points: Mapping[str, Array], keys: jax.Array, direction: Mapping[str, Array]
) -> Slopes:
    """Ridders' derivative of a function along tangents."""
    samples, tangents = len(next(iter(points.values()))), len(next(iter(direction.values())))
    sizes = np.array([np.abs(points[name]).reshape(samples, -1).max(axis=1) for name in direction])
    reach = np.array([np.abs(tangent).max() for tangent in direction.values()])[:, None]
    room = np.where(sizes > 0, sizes, 1.0) / np.where(reach > 0, reach, np.inf)
    longest = FIRST_STEP * np.min(np.where(room > 0, room, np.inf), axis=0)
    steps = longest[:, None] * SHRINK ** -np.arange(STEPS)  # (samples, steps)
    call = jax.jit(jax.vmap(function))

    def shifted(sign: float) -> Array:
        moved = {}
        for name, value in points.items():
            tangent = direction.get(name)
            full = np.broadcast_to(value[:, None, None], (samples, tangents, STEPS, *value.shape[1:]))
            if tangent is not None:
                h = steps[:, None, :].reshape(samples, 1, STEPS, *(1,) * (value.ndim - 1))
                full = full + sign * h * tangent[None, :, None]
            moved[name] = full.reshape(-1, *value.shape[1:])
        every = jnp.repeat(keys, tangents * STEPS)
        found = np.asarray(call(moved, every))
        return found.reshape(samples, tangents, STEPS, *found.shape[1:])

    h = steps[:, None, :]
    up, down = shifted(1.0), shifted(-1.0)
    slopes = (up - down) / (2 * h.reshape(samples, 1, STEPS, *(1,) * (up.ndim - 3)))
    slopes = np.moveaxis(slopes, 2, 0)
    best, error = ridders(slopes)
    stepped = bool(np.any(slopes[0]) and not np.any(slopes[-1]))
    return Slopes(np.moveaxis(best, 1, -1), np.moveaxis(error, 1, -1), stepped)


def ridders(slopes: Array) -> tuple[Array, Array]:
    """Extrapolate central differences, the longest step first, to step zero; the most certain entry of the tableau."""
    previous = [slopes[0]]
    best, error = slopes[0], np.full(slopes[0].shape, np.inf)
    for i in range(1, len(slopes)):
        row, factor = [slopes[i]], SHRINK**2
        for j in range(1, i + 1):
            row.append((row[j - 1] * factor - previous[j - 1]) / (factor - 1))
            factor *= SHRINK**2
            guess = np.maximum(np.abs(row[j] - row[j - 1]), np.abs(row[j] - previous[j - 1]))
            better = guess < error
            best, error = np.where(better, row[j], best), np.where(better, guess, error)
        previous = row
    return best, error


def judge(plan: Plan, request: Request, name: str, found: Array, slopes: Slopes, points: Any, keys: Any) -> Row:
    """One row of the table."""
    exact, error = slopes.value.reshape(found.shape), slopes.error.reshape(found.shape)
    largest = float(np.max(np.abs(exact), initial=0.0))
    size = max(largest, float(np.max(np.abs(found), initial=0.0)), 1e-300)
    gap = float(np.max(np.abs(found - exact), initial=0.0)) / size
    doubt = float(np.max(error, initial=0.0)) / size
    wrt = name.removeprefix(f"{request.name}.") if name != request.name else ", ".join(request.wrt)
    if not np.any(found) and slopes.move:
        verdict = f"disconnected{cut_at(plan, request, points, keys)}"
    elif gap <= TOLERANCE:
        verdict = "ok"
    elif gap <= 3 * doubt:
        verdict = "unresolved: the differences are too noisy to tell"
    else:
        verdict = "differs"
    return Row(name, request.of.name, wrt, largest, gap, doubt, verdict)


def cut_at(plan: Plan, request: Request, points: Mapping[str, Array], keys: jax.Array) -> str:
    """The first stage that moves with a parameter by differences, and not by derivatives."""
    from engine.values import leaves

    pipeline = plan.draft.pipeline
    for stage in pipeline.stages:
        for path, aval in leaves(plan.draft.shapes[stage.name]):
            if not jnp.issubdtype(aval.dtype, jnp.floating):
                continue
            leaf = replace(request.of, reference=type(request.of.reference)(stage.name, path), shape=aval.shape)
            value = value_of(plan, leaf)
            for p in request.wrt:
                direction = units(p, {q: v.shape for q, v in plan.draft.nominal.items()})
                slopes = differences(value, points, keys, direction)
                moved = jax.vmap(slope(value, p))({k: jnp.asarray(v) for k, v in points.items()}, keys)
                if slopes.move and not np.any(moved):
                    return f": stage {stage.name!r} cuts the path (rounding, a comparison, stop_gradient)"
    return ": the path is cut"


def slope(function: Function, parameter: str) -> Function:
    """The Jacobian with respect to one parameter, in forward mode."""

    def f(parameters: Mapping[str, Any], key: jax.Array) -> Any:
        return jax.jacfwd(lambda moved: function({**parameters, parameter: moved}, key))(parameters[parameter])

    return f
