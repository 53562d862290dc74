"""A plan, computed once more with finer settings: how much each output moves, and whether that is little enough.

In: a plan. Out: a row for each output and each way to be finer, and the samples that ended in another way. A tolerance is taken to a
tenth, a fixed step to a half and a quarter, a grid to twice its points. Nothing is stored.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine import accuracy, runtime
from engine.accuracy import Knob
from engine.axes import Array
from engine.config import Config, find, flat_keys, read_config
from engine.draft import Draft, make_draft
from engine.errors import ConfigError, PlanError, UserError, nearest
from engine.gradient_check import LeftOut, leave_out, number, peak, run, shown
from engine.plan import Plan, make_plan
from engine.program import Program, only
from engine.runs import NAMES
from engine.status import STATUS
from engine.store import Variable

SAMPLES = 8
"""Samples of the sweep that are computed again, if no other number is asked for."""

AMPLIFIED = 1000.0
"""So many times the relative tolerance of a step, an output may be off by, relative to its size: errors of steps add up."""

AMPLIFIED_ABSOLUTE = 100.0
"""The same of the absolute tolerance, where an output is near zero."""

LEAST, MOST = 1e-6, 0.01
"""What an output may change by, relative to its size, is between these, whatever the tolerance."""

NEAR_ZERO = 0.01
"""A sample whose value is smaller than this part of the largest of all samples may change by as much as that may."""

ROUNDING = 8.0
"""A relative tolerance of fewer roundings cannot be met."""

LOWEST_ORDER = 0.2
"""Below it, a change does not go away with the step."""

MORE_STEPS = 8
"""By what the most steps of a solver are raised, so that a finer run gets to its end."""

BESIDE = 0.05
"""A point is at a place if it is no further from it than this part of the distance between points."""

PASSES = ("ok", "near zero", "integer")


@dataclass(frozen=True)
class Row:
    """How much an output moved."""

    output: str
    by: str
    """tolerance | step | resolution."""

    largest: float | None
    """Its largest absolute value, over samples and elements; None if it was not compared."""

    change: float | None
    """Its largest absolute change, over samples and elements."""

    relative: float | None
    """The largest change of a sample, relative to the largest value of that sample."""

    sample: int | None
    """The sample that changes too much, and most of these, else the one that changes most relative to its size; None for an output
    that all samples share."""

    limit: float
    """What `relative` may be."""

    order: float | None
    """With a fixed step: the power of it with which the change goes away."""

    verdict: str
    """ok | near zero: where it changes too much, it is less than a hundredth of its largest value, and the change within the limit of
    that, or both are within a hundred times the absolute tolerance | integer: not judged | not resolved | not compared: why."""

    explanation: str = ""
    """Where, and what that means: a sentence."""

    @property
    def passes(self) -> bool:
        """Whether the output may be believed."""
        return self.verdict in PASSES


@dataclass(frozen=True)
class Varied:
    """A setting that was varied."""

    by: str
    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Turned:
    """A sample that ended in another way with finer settings."""

    sample: int
    parameters: dict[str, Any]
    by: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"sample {self.sample}{shown(self.parameters)}, {self.by}: {self.before}, then {self.after}"


@dataclass(frozen=True)
class Convergence:
    """All that the reruns found."""

    varied: tuple[Varied, ...]
    rows: tuple[Row, ...]
    turned: tuple[Turned, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    """What could not be varied, and why."""

    @property
    def passes(self) -> bool:
        """Whether every output may be believed."""
        return all(row.passes for row in self.rows) and not self.turned

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def as_data(self) -> dict[str, Any]:
        """As JSON holds it."""
        parts: dict[str, Sequence[Any]] = {
            "varied": self.varied,
            "outputs": self.rows,
            "turned": self.turned,
            "left_out": self.left_out,
        }
        found = {name: [asdict(one) for one in part] for name, part in parts.items()}
        return {"status": "complete" if self.passes else "partial", **found, "notes": list(self.notes)}


@dataclass(frozen=True)
class Variation:
    """One way to be finer: the config, once for each degree."""

    by: str
    varied: tuple[Varied, ...]
    finer: tuple[Config, ...]
    limit: float
    absolute: float
    """The largest absolute tolerance that is varied."""


@dataclass(frozen=True, eq=False)
class Found:
    """The values of a plan at some samples."""

    plan: Plan
    values: Mapping[str, Array]
    """With a leading axis of samples, or of one where all samples share it."""

    coordinates: Mapping[str, Array]
    status: Array
    why: Mapping[int, str]
    """Of each sample that failed."""


def compare(
    plan: Plan,
    samples: int = SAMPLES,
    *,
    within: float | None = None,
    tenth: Sequence[str] = (),
    halve: Sequence[str] = (),
    double: Sequence[str] = (),
) -> Convergence:
    """Compute some samples of the sweep, evenly spaced from the first to the last, again with finer settings.

    Args:
        plan: what to compute.
        samples: at most how many.
        within: what an output may change by, relative to its size; None to follow the tolerance.
        tenth, halve, double: keys of the config to vary in place of those that are recognised.

    Raises:
        PlanError: there is nothing to vary, or no sample succeeds.
    """
    if samples < 1:
        raise PlanError(f"`samples` must be a positive integer, but is {samples}. Leave it out for {SAMPLES}.")
    if within is not None and not 0 < within < math.inf:
        raise PlanError(f"`within` must be a positive number, but is {within}. Write 1e-3, say.")
    runtime.configure(plan.config.settings)  # another plan may have set another precision since
    index = np.unique(np.linspace(0, plan.draft.design.samples - 1, samples).astype(np.int64))
    notes: list[str] = []
    asked = {"tolerance": tenth, "step": halve, "resolution": double}
    ways = named(plan, asked, notes) if any(asked.values()) else recognised(plan, notes)
    if not ways:
        raise nothing_to_vary(notes)
    before = compute(make_plan(plan.draft, chunk=len(index)), index)
    if not (before.status == STATUS["ok"]).any():
        first = LeftOut(int(index[0]), plan.draft.design.point(int(index[0])), before.why[0])
        raise PlanError(
            f"`samples` must hold one that succeeds, but all {len(index)} that were tried failed: {first}. Choose more with --samples."
        )
    rows: list[Row] = []
    turned: list[Turned] = []
    for way in ways:
        with warnings.catch_warnings():  # each has been given already
            warnings.simplefilter("ignore")
            finer = [compute(make_plan(make_draft(config), chunk=len(index)), index) for config in way.finer]
        runtime.configure(plan.config.settings)
        turned += [one for after in finer[:1] for one in turns(way, index, before, after)]
        rows += [
            judge(way, variable, index, before, finer, within)
            for variable in before.plan.variables
            if not variable.coordinate
        ]
    failed = [int(i) for i in np.flatnonzero(before.status != STATUS["ok"])]
    left_out = [LeftOut(int(index[i]), plan.draft.design.point(int(index[i])), before.why[i]) for i in failed]
    varied = tuple(one for way in ways for one in way.varied)
    return Convergence(varied, tuple(rows), tuple(turned), tuple(left_out), tuple(notes))


def compute(plan: Plan, index: Array) -> Found:
    """The values and statuses of samples."""
    with runtime.quiet_callbacks():
        program = Program(plan)
        program.prepare()
        outputs, status, errors = run(program, index)
    coordinates = {v.name for v in plan.variables if v.coordinate}
    once = {name: np.asarray(value) for name, value in program.once_values.items()}
    shared = {name: value[None] for name, value in once.items() if name not in coordinates}
    failed = [int(i) for i in np.flatnonzero(status != STATUS["ok"])]
    why = {i: f"failed with status {NAMES[int(status[i])]}" for i in failed}
    why |= {i: leave_out(plan, int(index[i]), errors[int(index[i])]).why for i in failed if int(index[i]) in errors}
    return Found(plan, {**outputs, **shared}, {k: v for k, v in once.items() if k in coordinates}, status, why)


def turns(way: Variation, index: Array, before: Found, after: Found) -> Iterator[Turned]:
    """The samples whose status is another one."""
    for i in np.flatnonzero(before.status != after.status):
        sample = int(index[i])
        names = NAMES[int(before.status[i])], NAMES[int(after.status[i])]
        yield Turned(sample, before.plan.draft.design.point(sample), way.by, *names)


# ---- what is varied


def recognised(plan: Plan, notes: list[str]) -> list[Variation]:
    """The variations of what the rules of `accuracy` find."""
    config = plan.config
    knobs = accuracy.knobs(config, plan.draft.pipeline)
    by = {kind: [knob for knob in knobs if knob.kind == kind] for kind in ("tolerance", "step", "resolution", "count")}
    ways = []
    tolerances = [knob for knob in by["tolerance"] if not too_tight(plan, knob.key, knob.name, knob.value, notes)]
    if any(knob.name not in accuracy.ABSOLUTE for knob in tolerances) or tolerances == by["tolerance"] != []:
        ways.append(variation("tolerance", config, [[(knob, tenth_of(knob.value)) for knob in tolerances]], knobs))
    if steps := by["step"]:
        ways.append(variation("step", config, [[(knob, knob.value / n) for knob in steps] for n in (2, 4)], knobs))
    if grids := refinements(plan, [*by["resolution"], *by["count"]], notes):
        ways.append(variation("resolution", config, [grids], knobs))
    return ways


def variation(
    by: str, config: Config, degrees: Sequence[Sequence[tuple[Knob, Any]]], knobs: Sequence[Knob]
) -> Variation:
    """A variation of knobs, with the most steps of solvers raised."""
    limits = [(knob, MORE_STEPS * knob.value) for knob in knobs if knob.kind == "limit" and isinstance(knob.value, int)]
    varied = tuple(Varied(by, knob.key, knob.value, value) for knob, value in degrees[0])
    finer = tuple(accuracy.turned(config, [*changes, *limits]) for changes in degrees)
    return Variation(by, varied, finer, *limits_of(by, {knob.key: knob.value for knob, _ in degrees[0]}))


def limits_of(by: str, values: Mapping[str, Any]) -> tuple[float, float]:
    """What an output may change by, relative to its size and absolutely, after settings with such values are varied."""
    absolute = {key: value for key, value in values.items() if key.rpartition(".")[2] in accuracy.ABSOLUTE}
    if by != "tolerance":
        return MOST, 0.0
    relative = max((value for key, value in values.items() if key not in absolute), default=math.inf)
    return min(max(AMPLIFIED * relative, LEAST), MOST), AMPLIFIED_ABSOLUTE * max(absolute.values(), default=0.0)


def tenth_of(value: float) -> float:
    """A tenth, without the rounding of a division: 1e-9 gives 1e-10."""
    return float(f"{value / 10:.12g}")


def too_tight(plan: Plan, key: str, name: str, value: float, notes: list[str]) -> bool:
    """Whether a tenth of a relative tolerance is below rounding; a note says so."""
    precision = plan.config.settings.precision
    if name in accuracy.ABSOLUTE or value / 10 >= ROUNDING * float(np.finfo(precision).eps):
        return False
    remedy = "write precision=float64 to see what it does" if precision == "float32" else "raise it"
    notes.append(f"{key}={value:g} is not varied: {precision} cannot resolve a tenth of it; {remedy}.")
    return True


def nothing_to_vary(notes: Sequence[str]) -> PlanError:
    """The error for a config that sets no accuracy."""
    if notes:
        return PlanError(
            f"`stages` must be given a setting that can be made finer, but is given none: {' '.join(notes)}"
        )
    return PlanError(
        "`stages` must be given a tolerance, a fixed step or a number of grid points to be made finer, but none is recognised. Give "
        "`solver: ${solver}` or `rtol: 1e-6` to a stage, or name a key with --tenth, --halve or --double."
    )


def named(plan: Plan, asked: Mapping[str, Sequence[str]], notes: list[str]) -> list[Variation]:
    """The variations of keys that the user names.

    Raises:
        ConfigError: a key is not there, holds no positive number, or is swept.
    """
    values = {key: value_of(plan, key) for keys in asked.values() for key in keys}
    ways = []
    for by, keys in asked.items():
        given = {key: values[key] for key in keys}
        if by == "tolerance":
            given = {k: v for k, v in given.items() if not too_tight(plan, k, k.rpartition(".")[2], v, notes)}
        if not given:
            continue
        if by == "tolerance":
            changes = [{key: tenth_of(value) for key, value in given.items()}]
        elif by == "step":
            changes = [{key: value / n for key, value in given.items()} for n in (2, 4)]
        else:
            changes = [doubled(plan, given)]
        varied = tuple(Varied(by, key, given[key], value) for key, value in changes[0].items())
        finer = tuple(with_more_steps(overridden(plan, change)) for change in changes)
        ways.append(Variation(by, varied, finer, *limits_of(by, given)))
    return ways


def value_of(plan: Plan, key: str) -> float:
    """The number under a dotted key."""
    value = find(dict(plan.config.node), key.split("."))
    if not accuracy.is_positive(value):
        keys = [
            name
            for name in flat_keys(dict(plan.config.node))
            if accuracy.is_positive(find(dict(plan.config.node), name.split(".")))
        ]
        is_there = key in set(flat_keys(dict(plan.config.node)))
        what = f"is {value!r}" if is_there else "is not there"
        raise ConfigError(
            f"`{key}` must be a key of the config with a positive number, but {what}.{nearest(key, keys)}"
        )
    if key.removeprefix("parameters.") in plan.draft.design.columns and key.startswith("parameters."):
        raise ConfigError(f"`{key}` must not be swept to be varied, but is. Take it out of sweep.axes.")
    return value  # type: ignore[return-value]


def overridden(plan: Plan, changes: Mapping[str, Any]) -> Config:
    """The config, composed again with other values: what refers to them by interpolation follows."""
    config = plan.config
    return read_config(config.path, [*config.overrides, *(f"{key}={value!r}" for key, value in changes.items())])


def with_more_steps(config: Config) -> Config:
    """The config with the most steps of solvers raised."""
    pipeline = make_draft(config).pipeline
    limits = [knob for knob in accuracy.knobs(config, pipeline) if knob.kind == "limit" and isinstance(knob.value, int)]
    return accuracy.turned(config, [(knob, MORE_STEPS * knob.value) for knob in limits])


# ---- twice as many points


CANDIDATES: tuple[Callable[[int], int], ...] = (lambda n: 2 * n - 1, lambda n: 2 * n, lambda n: 2 * n + 1)
"""Numbers of points that halve the distance between them: with both ends, with one, with none."""


def refinements(plan: Plan, knobs: Sequence[Knob], notes: list[str]) -> list[tuple[Knob, Any]]:
    """The numbers of points among some knobs, with what about doubles them."""
    before = coordinates_of(plan.draft)
    sizes = {len(places) + more for places in before.values() for more in (-1, 0, 1)}
    groups: dict[tuple[str, str], list[Knob]] = {}
    for knob in knobs:  # of one name and one value: the same grid, in several stages
        if knob.kind == "resolution" or knob.value in sizes:
            groups.setdefault((knob.name, repr(knob.value)), []).append(knob)
    found: list[tuple[Knob, Any]] = []
    for group in groups.values():
        known = [knob for knob in group if knob.kind == "resolution"]
        refined = finest(plan.config, group, before)
        if isinstance(refined, UserError):
            if known:
                notes.append(f"{known[0].key}={known[0].value} is not varied: {refined.problems[0].splitlines()[0]}")
        elif refined is not None:
            found += refined
        elif known:
            found += [(knob, scaled(knob.value, CANDIDATES[1])) for knob in known]
    return found


def finest(
    config: Config, group: Sequence[Knob], before: Mapping[str, Array]
) -> list[tuple[Knob, Any]] | UserError | None:
    """The change of a group that keeps the points of a coordinate among the new ones, else that doubles them; None if no
    coordinate is refined, and the error if nothing can be traced."""
    doubling: list[tuple[Knob, Any]] | None = None
    problems: list[UserError] = []
    for candidate in CANDIDATES:
        changes = [(knob, scaled(knob.value, candidate)) for knob in group]
        try:
            after = coordinates_of(traced(accuracy.turned(config, changes)))
        except UserError as problem:
            problems.append(problem)
            continue
        fits = [fit(places, after[name]) for name, places in before.items() if refines(places, after[name])]
        if any(isinstance(one, Partners) and one.whole for one in fits):
            return changes
        if fits and (doubling is None or candidate is CANDIDATES[1]):
            doubling = changes
    return problems[0] if len(problems) == len(CANDIDATES) else doubling


def traced(config: Config) -> Draft:
    """The draft of a config, its warnings left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_draft(config)


def doubled(plan: Plan, values: Mapping[str, float]) -> dict[str, Any]:
    """Each value times two, or the next integer that keeps the points of a coordinate."""
    before = coordinates_of(plan.draft)
    for candidate in CANDIDATES:
        changes = {key: candidate(v) if isinstance(v, int) else 2 * v for key, v in values.items()}
        try:
            after = coordinates_of(traced(overridden(plan, changes)))
        except UserError:
            continue
        fits = [fit(places, after[name]) for name, places in before.items() if refines(places, after[name])]
        if any(isinstance(one, Partners) and one.whole for one in fits):
            return changes
    return {key: 2 * value for key, value in values.items()}


def scaled(value: Any, candidate: Callable[[int], int]) -> Any:
    """A number of points, or one for each axis, made larger."""
    return [candidate(n) for n in value] if isinstance(value, list | tuple) else candidate(value)


def coordinates_of(draft: Draft) -> dict[str, Array]:
    """The config's `coords`, without what they do not need."""
    names = sorted({leaf.name for leaf in (*draft.outputs, *draft.coords)})
    wanted = [name in {leaf.name for leaf in draft.coords} for name in names]
    if not any(wanted):
        return {}
    function = jax.jit(only(draft.jaxpr, [*wanted, False]))
    key = jax.random.key(0, impl="threefry2x32")
    inputs = jax.tree_util.tree_leaves(({k: jnp.asarray(v) for k, v in draft.nominal.items()}, key))
    found = function(*inputs)
    return {
        name: np.asarray(v) for name, v in zip([n for n, w in zip(names, wanted, strict=True) if w], found, strict=True)
    }


def refines(before: Array, after: Array) -> bool:
    """Whether a coordinate has about twice the points over the same range."""
    if len(before) < 2 or not 1.5 * len(before) < len(after) < 2.5 * len(before) or before.dtype.kind not in "fiu":
        return False
    old, new = np.sort(before), np.sort(after)
    ends = (abs(new[0] - old[0]) <= old[1] - old[0], abs(new[-1] - old[-1]) <= old[-1] - old[-2])
    return bool(all(ends) and old[0] < old[-1])


# ---- comparing


@dataclass(frozen=True, eq=False)
class Partners:
    """Where the points of a coordinate are among those of a finer one."""

    ours: Array
    theirs: Array
    whole: bool
    """Whether each point has a partner."""


def fit(before: Array, after: Array) -> Partners | str:
    """How values on a finer coordinate compare with those on a coarser one: at common points, by `pairs`, or `none`."""
    order = np.argsort(after, kind="stable")
    right = np.clip(np.searchsorted(after[order], before), 1, max(len(after) - 1, 1))
    left, right = order[right - 1], order[np.minimum(right, len(after) - 1)]
    near = np.where(np.abs(after[left] - before) <= np.abs(after[right] - before), left, right)
    spaces = np.abs(np.diff(before))
    reach = BESIDE * float(np.min(spaces[spaces > 0], initial=math.inf)) if (spaces > 0).any() else 0.0
    there = np.abs(after[near] - before) <= reach
    if 2 * there.sum() >= len(before):
        return Partners(np.flatnonzero(there), near[there], bool(there.all()))
    if len(after) == 2 * len(before) and (np.abs(after.reshape(-1, 2).mean(axis=1) - before) <= reach).all():
        return "pairs"
    return "none"


def aligned(variable: Variable, before: Found, after: Found, ours: Array, theirs: Array) -> tuple[Array, Array] | str:
    """Two values at common points, or why there are none. The first axis is that of the samples."""
    lead = len(before.plan.draft.design.dims) if variable.swept else 0
    for axis, dim in enumerate(variable.dims[lead:], 1):
        old, new = before.coordinates.get(dim), after.coordinates.get(dim)
        if old is None or new is None:
            if ours.shape[axis] != theirs.shape[axis]:
                return f"{dim} has {ours.shape[axis]} and {theirs.shape[axis]} points, and no coordinate"
            continue
        if old.shape == new.shape and np.array_equal(old, new):
            continue
        how = fit(old, new)
        if how == "none":
            return f"{dim} has few points in common"
        if isinstance(how, Partners):
            ours, theirs = np.take(ours, how.ours, axis), np.take(theirs, how.theirs, axis)
        else:
            pairs = (*theirs.shape[:axis], -1, 2, *theirs.shape[axis + 1 :])
            theirs = theirs.reshape(pairs).mean(axis=axis + 1)
    return ours, theirs


def judge(
    way: Variation, variable: Variable, index: Array, before: Found, finer: Sequence[Found], within: float | None
) -> Row:
    """One row of the table."""
    limit = way.limit if within is None else within
    kept = np.all([found.status == STATUS["ok"] for found in (before, *finer)], axis=0)

    def unknown(why: str) -> Row:
        return Row(variable.name, way.by, None, None, None, None, limit, None, f"not compared: {why}")

    if not kept.any():
        return unknown("no sample succeeds with the finer settings")
    rows = kept if variable.swept else np.ones(1, bool)
    ours, after = before.values[variable.name][rows], [found.values[variable.name][rows] for found in finer]
    pair = aligned(variable, before, finer[0], ours, after[0])
    if isinstance(pair, str):
        return unknown(pair)
    ours, theirs = (one.astype(np.result_type(one.dtype, np.float32)).reshape(len(one), -1) for one in pair)
    if not ours.size:
        return unknown("it is empty")
    off = np.abs(theirs - ours)
    size, moved = np.abs(ours).max(axis=1), off.max(axis=1)
    relative = np.divide(moved, size, out=np.where(moved > 0, np.inf, 0.0), where=size > 0)
    order = order_of(ours, after) if len(after) > 1 else None
    error = moved * (1.0 if order is None else 1 / (1 - 2 ** -max(order, LOWEST_ORDER)))
    tiny = (error <= limit * size.max()) & (size <= NEAR_ZERO * size.max())
    tiny |= (error <= way.absolute) & (size <= way.absolute)
    wrong = (error > limit * size) & ~tiny
    at = int(np.argmax(np.where(wrong if wrong.any() else relative >= 0.999 * relative.max(), moved, -1.0)))
    if variable.dtype.kind not in "fc":
        verdict = "integer"
    elif wrong.any() or (order is not None and order < LOWEST_ORDER and relative[at] > LEAST):
        verdict = "not resolved"
    else:
        verdict = "ok" if (error <= limit * size).all() else "near zero"
    sample = int(index[np.flatnonzero(kept)[at]]) if variable.swept else None
    text = explain(way, variable, before, sample, ours[at], theirs[at], order, verdict)
    largest, change, share = (number(float(one)) for one in (peak(ours), moved.max(), relative.max()))
    return Row(variable.name, way.by, largest, change, share, sample, limit, order, verdict, text)


def order_of(ours: Array, after: Sequence[Array]) -> float | None:
    """The power of the step with which a change goes away; None where there is hardly any."""
    first, second = (np.reshape(one, (len(one), -1)) for one in after)
    if first.shape != ours.shape or second.shape != ours.shape:
        return None
    least = 100 * float(np.finfo(ours.real.dtype).eps) * peak(ours)
    coarse, fine = peak(first - ours), peak(second - first)
    return round(math.log2(coarse / fine), 2) if min(coarse, fine) > least else None


FINER = {"tolerance": "a tenth of the tolerance", "step": "half the step", "resolution": "twice the points"}
SMALL = "small beside other samples, or beside what the absolute tolerance leaves open, but its digits are not resolved"
REMEDIES = {"tolerance": "Lower the tolerance", "step": "Shorten the step", "resolution": "Take more points"}


def explain(
    way: Variation,
    variable: Variable,
    before: Found,
    sample: int | None,
    ours: Array,
    theirs: Array,
    order: float | None,
    verdict: str,
) -> str:
    """The sentence under the table."""
    if verdict in ("ok", "integer"):
        return ""
    where = int(np.argmax(np.abs(theirs - ours)))
    at = "" if sample is None else f" at sample {sample}{shown(before.plan.draft.design.point(sample))}"
    text = f"{variable.name}{at} is {ours[where]:.6g}, and {theirs[where]:.6g} with {FINER[way.by]}"
    if verdict == "near zero":
        return f"{text}: {SMALL}."
    if order is not None and order < LOWEST_ORDER:
        return f"{text}, and the change does not go away with the step (order {order:g})."
    return f"{text}. {REMEDIES[way.by]}, until it stays."
