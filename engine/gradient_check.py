"""Every derivative of a plan against finite differences of its own values: a table with a verdict for each.

In: a plan. Out: a row for each derivative, and the samples that were left out. The derivatives come from the program that a run
compiles, the values from single evaluations of the pipeline, so that the transforms, the adjoints and the batching are all under test.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine import jaxprs, values
from engine.axes import Array
from engine.derivatives import Request, choose_passes, chosen_adjoints
from engine.differences import FIRST_STEP, SHRINK, STEPS, Function, Slopes, clear, differences, sharpened
from engine.disconnection import Cut, Path, paths_of
from engine.draft import adjoint_context
from engine.errors import PlanError, StageError, UserError
from engine.lowering import evaluate, look_up
from engine.nonfinite import finite
from engine.origins import raised
from engine.outputs import Leaf
from engine.pipeline import Pipeline
from engine.plan import Plan, make_plan
from engine.program import Program
from engine.runs import NAMES
from engine.runtime import quiet_callbacks
from engine.status import STATUS
from engine.transforms import make_key

TOLERANCE = 1e-4
"""Relative difference, of a derivative's largest value, that is accepted."""

LOOSE = 0.05
"""The same, of a derivative that is wrong by no more than what the tolerance of a solver leaves open."""

TIGHTER = 1e-3
"""By what the tolerances of solvers are multiplied, to see whether a difference is theirs."""

UNSURE = 10.0
"""So many times what the differences are uncertain by, by their own estimate, they may be wrong."""

ZOOMS = 2
"""How often the differences are taken again with steps that begin where the last ones ended, where something is wrong."""

PASSES = ("ok", "within tolerance")


@dataclass(frozen=True)
class Row:
    """What the check of one derivative found."""

    derivative: str
    of: str
    wrt: str
    largest: float | None
    """Its largest absolute value by finite differences, over samples and elements; None if they give no number."""

    difference: float | None
    """The largest difference, relative to that."""

    uncertainty: float | None
    """What the finite differences themselves are uncertain by, relative to that."""

    verdict: str
    """ok | within tolerance: of the solvers | differs | kink | jump | not finite | disconnected: the stage that cuts the path |
    unresolved: the differences are too noisy to tell."""

    explanation: str = ""
    """Where, and what that means: a sentence."""

    @property
    def passes(self) -> bool:
        """Whether the derivative may be believed."""
        return self.verdict in PASSES


@dataclass(frozen=True)
class LeftOut:
    """A sample that was not checked."""

    sample: int
    parameters: dict[str, Any]
    why: str
    derivative: str | None = None
    """By which alone it was not; None for all."""

    def __str__(self) -> str:
        what = f", {self.derivative}" if self.derivative else ""
        return f"sample {self.sample}{shown(self.parameters)}{what}: {self.why}"


@dataclass(frozen=True)
class Check:
    """All that a check found."""

    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def passes(self) -> bool:
        """Whether every derivative may be believed."""
        return all(row.passes for row in self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


@dataclass(frozen=True, eq=False)
class Points:
    """The samples that are checked, and what they are at."""

    plan: Plan
    samples: Array
    """Their indices."""

    parameters: Mapping[str, Array]
    keys: jax.Array

    def at(self, i: int, wrt: Sequence[str] = ()) -> str:
        """One of them in words, with its swept parameters and those of a derivative."""
        draft = self.plan.draft
        moved = {p: draft.nominal[p].tolist() for p in wrt if not draft.nominal[p].shape}
        return f"sample {self.samples[i]}{shown(moved | draft.design.point(int(self.samples[i])))}"

    def take(self, rows: Array) -> Points:
        """Some of them."""
        return Points(self.plan, self.samples[rows], {k: v[rows] for k, v in self.parameters.items()}, self.keys[rows])


@dataclass(frozen=True, eq=False)
class Case:
    """One derivative and what it should be the derivative of."""

    request: Request
    name: str
    function: Function
    direction: Mapping[str, Array]
    """Name -> tangents: an axis of unit tangents for each element of a parameter, or the one tangent of a product."""

    by: tuple[str, ...]
    """The parameters, each of which the output must follow for it not to be zero; of a jvp, one of which."""

    @property
    def wrt(self) -> str:
        """The parameters, for the table."""
        prefix = f"{self.request.name}."
        return self.name.removeprefix(prefix) if self.name.startswith(prefix) else ", ".join(self.request.wrt)


def check_gradients(plan: Plan, samples: int = 5) -> Check:
    """Compare at some samples of the sweep, evenly spaced.

    Args:
        plan: with derivatives.
        samples: at most how many.

    Raises:
        PlanError: the plan has no derivatives, or no sample succeeds.
        StageError: a stage raises at every sample.
    """
    if not plan.draft.requests:
        raise PlanError("`derivatives` must hold at least one to be checked, but is empty. Add one to the config.")
    index = np.unique(np.linspace(0, plan.draft.design.samples - 1, max(1, samples)).astype(np.int64))
    with quiet_callbacks():
        points, found, left_out = compute(plan, index)
        paths = paths_of(plan.draft)
        rows = []
        for case in cases(plan):
            row, raising = check(case, points, found[case.name], paths)
            rows.append(row)
            left_out += raising
        rows = explain_by_tolerance(plan, points, found, rows)
    return Check(tuple(rows), tuple(left_out))


def check(case: Case, points: Points, found: Array, paths: Mapping[str, Path]) -> tuple[Row, list[LeftOut]]:
    """The row of a derivative, and the samples around which the values cannot be computed."""
    slopes, failed = slopes_at(case, points)
    left_out = [leave_out(points.plan, int(points.samples[i]), error, case.name) for i, error in failed.items()]
    if slopes is None:
        return Row(
            case.name, case.request.of.name, case.wrt, None, None, None, "unresolved: no value around it"
        ), left_out
    kept = np.array([i for i in range(len(points.samples)) if i not in failed], int)
    return judge(case, points.take(kept), found[kept], slopes, paths), left_out


def compute(plan: Plan, index: Array) -> tuple[Points, dict[str, Array], list[LeftOut]]:
    """The derivatives of the compiled program, at those samples that succeed."""
    program = Program(plan)
    program.prepare()
    found, status, errors = run(program, index)
    # Of values that are finite, a derivative that is not is what is looked for.
    outputs = [found[leaf.name] for leaf in plan.draft.outputs if leaf.name in found]
    sound = np.all([np.ones(len(index), bool), *map(finite, outputs)], axis=0)
    fine = (status == STATUS["ok"]) | ((status == STATUS["nonfinite"]) & sound)
    left_out = [
        leave_out(plan, int(sample), errors[int(sample)])
        if int(sample) in errors
        else LeftOut(int(sample), plan.draft.design.point(int(sample)), f"failed with status {NAMES[int(code)]}")
        for sample, code in zip(index[~fine], status[~fine], strict=True)
    ]
    good = np.flatnonzero(fine)
    if not len(good):
        raise none_left(plan, left_out, list(errors.values()))
    ours = {name: array[good] for name, array in found.items()}
    ours |= {name: np.broadcast_to(v, (len(good), *v.shape)) for name, v in program.once_values.items()}
    points = Points(plan, index[good], parameters_at(plan, index[good]), keys_of(program, index[good]))
    return points, ours, left_out


def run(program: Program, index: Array) -> tuple[dict[str, Array], Array, dict[int, Exception]]:
    """Outputs and statuses at any number of samples, and what those raised that did; they are computed apart from the others."""
    width = program.plan.blocks.width
    if len(index) <= width:
        try:
            return *program.at(index), {}
        except Exception as error:
            if isinstance(error, UserError) or not may_be_a_callbacks(program.plan, error):
                raise
            if len(index) == 1:
                lead = len(program.plan.draft.design.dims)
                empty = {v.name: np.zeros((1, *v.shape[lead:]), v.dtype) for v in program.plan.variables if v.swept}
                return empty, np.array([STATUS["error"]], np.int8), {int(index[0]): error}
    first = min(width, -(-len(index) // 2))
    parts = [run(program, index[:first]), run(program, index[first:])]
    outputs = {name: np.concatenate([part[0][name] for part in parts]) for name in parts[0][0]}
    return outputs, np.concatenate([part[1] for part in parts]), parts[0][2] | parts[1][2]


def may_be_a_callbacks(plan: Plan, error: Exception) -> bool:
    """Whether an exception may come from Python that is called at one sample, rather than from the program as a whole."""
    calls = bool(jaxprs.callbacks(plan.sample_jaxpr)) or not plan.jit
    return (calls or "callback" in str(error).lower()) and "RESOURCE_EXHAUSTED" not in str(error)


def leave_out(plan: Plan, sample: int, error: Exception, derivative: str | None = None) -> LeftOut:
    """A sample that raised."""
    trouble = raised(plan.sample_jaxpr, plan.draft.pipeline.names, error)
    why = f"{one_line(trouble.said)} in {trouble.place}" if trouble.place else one_line(trouble.said)
    return LeftOut(sample, plan.draft.design.point(sample), f"raised {why}", derivative)


def none_left(plan: Plan, left_out: Sequence[LeftOut], errors: Sequence[Exception]) -> UserError:
    """The error for a check in which no sample succeeded."""
    tried = "the sample tried" if len(left_out) == 1 else f"all {len(left_out)} samples tried"
    if not errors:
        return PlanError(
            f"`derivatives` must be checked at samples that succeed, but {tried} failed: {left_out[0]}. "
            "Choose others with --samples."
        )
    trouble = raised(plan.sample_jaxpr, plan.draft.pipeline.names, errors[0])
    key = f"stages.{trouble.stage}" if trouble.stage else "stages"
    at = f" ({trouble.file}:{trouble.line})" if trouble.file else ""
    return StageError(
        f"`{key}` must run to its end where derivatives are checked, but raised at {tried}: {one_line(trouble.said).rstrip('.')}{at}. "
        "Where it is right to raise, check at other samples."
    )


def one_line(text: str) -> str:
    """The first line of what an exception says."""
    return (text.strip().splitlines() or [""])[0]


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


def cases(plan: Plan) -> Iterator[Case]:
    """What is checked: each variable of each derivative."""
    for request in plan.draft.requests:
        for name, function, direction, by in lower_orders(plan, request):
            yield Case(request, name, function, direction, by)


def lower_orders(plan: Plan, request: Request) -> Iterator[tuple[str, Function, dict[str, Array], tuple[str, ...]]]:
    """For each variable of a derivative: its name, the function whose derivative it is, along what, and by which parameters."""
    shapes = {name: value.shape for name, value in plan.draft.nominal.items()}
    value = value_of(plan, request.of)
    for p in request.wrt:
        if request.kind == "jvp":
            tangents = {q: np.asarray(v)[None] for q, v in request.direction.items()}
            yield request.name, value, tangents, tuple(q for q, v in tangents.items() if np.any(v))
            return
        if request.kind == "vjp":
            yield f"{request.name}.{p}", weighted(value, np.asarray(request.direction)), units(p, shapes), (p,)
        elif request.kind == "hessian":
            for q in request.wrt:
                yield f"{request.name}.{p}.{q}", derivative_of(plan, request, p, 1), units(q, shapes), (p, q)
        elif request.kind == "hvp":
            tangents = {q: np.asarray(v)[None] for q, v in request.direction.items()}
            yield f"{request.name}.{p}", derivative_of(plan, request, p, 1), tangents, (p,)
        elif request.order > 1:
            yield f"{request.name}.{p}", derivative_of(plan, request, p, request.order - 1), units(p, shapes), (p,)
        else:
            yield f"{request.name}.{p}", value, units(p, shapes), (p,)


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


def slopes_at(case: Case, points: Points, zoom: int = 0) -> tuple[Slopes | None, dict[int, Exception]]:
    """The differences at all points, and what raised at those that are left out; None if none is left."""
    longest = FIRST_STEP * SHRINK ** -(zoom * STEPS)

    def at(some: Points) -> Slopes:
        return differences(case.function, some.parameters, some.keys, case.direction, longest)

    try:
        return at(points), {}
    except Exception as error:
        if isinstance(error, UserError) or not may_be_a_callbacks(points.plan, error):
            raise
    failed: dict[int, Exception] = {}
    for i in range(len(points.samples)):
        try:
            at(points.take(np.array([i])))
        except Exception as error:
            failed[i] = error
    kept = np.array([i for i in range(len(points.samples)) if i not in failed], int)
    return (at(points.take(kept)) if len(kept) else None), failed


def judge(case: Case, points: Points, found: Array, slopes: Slopes, paths: Mapping[str, Path]) -> Row:
    """One row of the table."""
    cut = cut_of(case, paths)
    if cut is not None and not np.any(found):
        line = f"{cut.name} at {cut.line}" if cut.line and not cut.inside else "rounding, a comparison, stop_gradient"
        where = f"stage {cut.stage!r} cuts the path ({line})" if cut.stage else "the path is cut"
        return compared(case, points, found, slopes, f"disconnected: {where}")
    if not np.isfinite(found).all():
        return compared(case, points, found, slopes, "not finite")
    row = compared(case, points, found, slopes)
    for zoom in range(1, ZOOMS + 1):
        if row.passes or (slopes.stepped and not np.any(found)):
            break
        fine, failed = slopes_at(case, points, zoom)
        if fine is None or failed:
            break
        slopes = sharpened(slopes, fine)
        row = compared(case, points, found, slopes)
    if row.verdict not in ("kink", "jump") and not np.any(found) and slopes.move:
        row = compared(case, points, found, slopes, f"disconnected{cut_at(case, points)}")
    return row


def cut_of(case: Case, paths: Mapping[str, Path]) -> Cut | None:
    """What cuts the only paths from the parameters to the output, by the traced program."""
    path = paths.get(case.request.of.name)
    if path is None:
        return None
    smooth = [p in path.smooth for p in case.by]
    if any(smooth) if case.request.kind == "jvp" else all(smooth):
        return None
    return min((path.cut[p] for p in case.by if p in path.cut and p not in path.smooth), default=None)


def compared(case: Case, points: Points, found: Array, slopes: Slopes, verdict: str = "") -> Row:
    """A row by what the differences give; `verdict` is known already where it is given."""
    exact, error = slopes.value.reshape(found.shape), slopes.error.reshape(found.shape)
    told = np.isfinite(exact) & np.isfinite(error)
    both = told & np.isfinite(found)
    largest = peak(exact[told])
    # What is that small beside the slope to the next point is zero but for rounding.
    size = max(largest, peak(found[np.isfinite(found)]), FIRST_STEP * peak(slopes.reach), 1e-300)
    off = np.where(both, np.abs(np.where(both, found - exact, 0.0)), 0.0) / size
    gap, doubt = peak(off), peak(error[told]) / size
    if gap > TOLERANCE:
        error = np.maximum(error, np.nan_to_num(slopes.rough.reshape(found.shape)))
        doubt = peak(error[told]) / size
    kink, jump = (clear(one).reshape(found.shape) for one in (slopes.kink, slopes.jump))
    bend, leap = worst(np.abs(kink)), worst(np.abs(jump))
    where = worst(off)
    if not verdict:
        if not told.all():
            verdict = "unresolved: the values around it are not finite"
            where = worst(~told)
        elif found.size and jump[leap]:
            verdict, where = "jump", leap
        elif found.size and abs(kink[bend]) > 2 * TOLERANCE * size:
            verdict, where = "kink", bend
        elif gap <= TOLERANCE:
            verdict = "ok"
        elif gap <= UNSURE * doubt:
            verdict = "unresolved: the differences are too noisy to tell"
        else:
            verdict = "differs"
    elif verdict == "not finite":
        where = worst(~np.isfinite(found))
    text = explain(case, points, found, slopes, verdict, where)
    return Row(
        case.name,
        case.request.of.name,
        case.wrt,
        number(largest) if told.any() or not found.size else None,
        number(gap) if both.any() or not found.size else None,
        number(doubt) if told.any() or not found.size else None,
        verdict,
        text,
    )


def explain(case: Case, points: Points, found: Array, slopes: Slopes, verdict: str, where: tuple[Any, ...]) -> str:
    """The sentence under the table."""
    if not found.size or verdict in PASSES or verdict.startswith("disconnected"):
        return ""
    of, by = case.request.of.name, " and ".join(case.direction)
    if case.request.kind in ("hessian", "hvp") or case.request.order > 1:
        of = f"the derivative of {of}"
    at = f"{case.name}{list(map(int, where[1:])) if len(where) > 1 else ''} at {points.at(int(where[0]), case.request.wrt)}"
    ours = f"{found[where]:.4g}"
    left, right, value = (one.reshape(found.shape)[where] for one in (slopes.left, slopes.right, slopes.value))
    if verdict == "not finite":
        beside = f"; finite differences give {value:.4g}" if math.isfinite(value) else ""
        return f"{at} is {ours}{beside}. A root, a norm, a quotient or a power whose slope is infinite or 0/0 there makes it so."
    if verdict == "kink":
        return (
            f"{at}: {of} has a kink in {by}: its slope is {left:.4g} to the left and {right:.4g} to the right. The program gives "
            f"{ours}; at a kink a derivative is a choice."
        )
    if verdict == "jump":
        return f"{at}: {of} jumps there, so that it has no slope in {by}. The program gives {ours}."
    if verdict.startswith("unresolved: the values"):
        return f"{at}: {of} is not finite on either side. The program gives {ours}."
    error, rough = (one.reshape(found.shape)[where] for one in (slopes.error, slopes.rough))
    text = f"{at}: the program gives {ours}, finite differences {value:.4g} ± {max(error, rough):.1g}."
    noise = (
        " The values are rougher than that, as those of a solver are within its tolerance: lower that, and check again."
    )
    return text + noise if verdict.startswith("unresolved") else text


def peak(array: Array) -> float:
    """The largest absolute value."""
    return float(np.max(np.abs(array), initial=0.0))


def worst(array: Array) -> tuple[Any, ...]:
    """The index of the largest value; () of an empty array."""
    return np.unravel_index(int(np.argmax(array)), array.shape) if array.size else ()


def number(value: float) -> float | None:
    """What JSON can hold."""
    return value if math.isfinite(value) else None


def shown(parameters: Mapping[str, Any]) -> str:
    """Values in brackets: ` (k=1.5)`; nothing if there are none."""
    inside = ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in parameters.items())
    return f" ({inside})" if inside else ""


# ---- what the tolerance of a solver leaves open


def explain_by_tolerance(plan: Plan, points: Points, found: Mapping[str, Array], rows: Sequence[Row]) -> list[Row]:
    """The rows, with those that differ compared once more after tightening the tolerances of the solvers.

    The values of an adaptive solve are smooth only within its tolerance, and its derivatives right only to it. A rule that is wrong
    stays wrong with a tighter one.
    """
    doubtful = {row.derivative for row in rows if row.verdict == "differs" or row.verdict.endswith("too noisy to tell")}
    pipeline = tightened(plan.draft.pipeline) if doubtful else None
    if pipeline is None:
        return list(rows)
    try:
        with warnings.catch_warnings():  # each has been given already
            warnings.simplefilter("ignore")
            tight = make_plan(replace(plan.draft, pipeline=pipeline))
            again, theirs, _ = compute(tight, points.samples)
    except UserError:  # out of steps at every sample
        return list(rows)
    kept = np.flatnonzero(np.isin(points.samples, again.samples))
    asked = {case.name: case for case in cases(tight)}
    return [
        reconsidered(row, asked[row.derivative], again, found[row.derivative][kept], theirs[row.derivative])
        if row.derivative in doubtful
        else row
        for row in rows
    ]


def reconsidered(row: Row, case: Case, points: Points, found: Array, theirs: Array) -> Row:
    """A row by the better differences of tighter solves, which the derivatives may approach as well."""
    slopes, failed = slopes_at(case, points)
    if slopes is None or failed:
        return row
    now, better = compared(case, points, found, slopes), compared(case, points, theirs, slopes)
    off, left, doubt = now.difference, better.difference, now.uncertainty
    if off is None or left is None or doubt is None or now.verdict not in ("ok", "differs"):
        return row
    if now.passes or left > max(TOLERANCE, off / 10):
        return now
    if off <= LOOSE:
        text = f"{case.name} is off by {off:.1%} at this tolerance of the solver, and right at a tighter one: lower `solver.rtol` for more."
        return replace(now, verdict="within tolerance", explanation=text.replace("%", " %"))
    text = f"{now.explanation} With a tolerance {1 / TIGHTER:.0f} times tighter both agree: lower `solver.rtol` and `solver.atol`."
    return replace(now, explanation=text)


def tightened(pipeline: Pipeline) -> Pipeline | None:
    """The pipeline with tighter tolerances wherever a stage is given `rtol` and `atol`, or a solver with these; None if none is."""
    stages = [
        replace(stage, constants={name: tighter(name, value) for name, value in stage.constants.items()})
        for stage in pipeline.stages
    ]
    changed = any(
        one.constants[name] is not value
        for one, stage in zip(stages, pipeline.stages, strict=True)
        for name, value in stage.constants.items()
    )
    return replace(pipeline, stages=tuple(stages)) if changed else None


def tighter(name: str, value: Any) -> Any:
    """A constant with tighter tolerances: itself if it has none, or none that can be tightened."""
    if name in ("rtol", "atol") and isinstance(value, float):
        least = 100 * float(np.finfo(jnp.result_type(float)).eps) if name == "rtol" else 0.0
        return value * TIGHTER if value * TIGHTER > least else value
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or getattr(value, "step", None) is not None:
        return value
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name in ("rtol", "atol")}
    found = {field: tighter(field, one) for field, one in fields.items()}
    if found.get("rtol", 0.0) == fields.get("rtol", 0.0):
        return value
    return replace(value, **found)


# ---- which stage cuts a path


def cut_at(case: Case, points: Points) -> str:
    """The first stage before the output that moves with a parameter by differences, and not by derivatives."""
    plan, request = points.plan, case.request
    upstream = plan.draft.pipeline.upstream({request.of.reference.root})
    for stage in plan.draft.pipeline.stages:
        for path, aval in values.leaves(plan.draft.shapes[stage.name]) if stage.name in upstream else ():
            if not jnp.issubdtype(aval.dtype, jnp.floating):
                continue
            leaf = replace(request.of, reference=type(request.of.reference)(stage.name, path), shape=aval.shape)
            value = value_of(plan, leaf)
            for p in case.by:
                direction = units(p, {q: v.shape for q, v in plan.draft.nominal.items()})
                slopes = differences(value, points.parameters, points.keys, direction)
                given = {k: jnp.asarray(v) for k, v in points.parameters.items()}
                moved = jax.vmap(slope(value, p))(given, points.keys)
                if slopes.move and not np.any(moved):
                    return f": stage {stage.name!r} cuts the path (rounding, a comparison, stop_gradient)"
    return ": the path is cut"


def slope(function: Function, parameter: str) -> Function:
    """The Jacobian with respect to one parameter, in forward mode."""

    def f(parameters: Mapping[str, Any], key: jax.Array) -> Any:
        return jax.jacfwd(lambda moved: function({**parameters, parameter: moved}, key))(parameters[parameter])

    return f
