"""Integers, checked before anything runs: indices against the arrays that they index, and arithmetic against 64 bits.

JAX clamps an index that is out of range, leaves an update out, wraps an integer that overflows, and goes on with a wrong number.
The values that the parameters take are known before the run. So what follows from parameters and constants alone is computed here
with NumPy, for every combination of values that an index or an integer depends on: the outer product of a grid's axes, the rows of
any other design. Where that is more than BUDGET elements, the smallest and largest values of each parameter are taken, and others
evenly between them.

Followed: elementwise arithmetic, comparisons and selections, shapes, sums, look-ups in known arrays; calls; the branches of a `cond`
whose condition is known, for the samples that take them; of loops what does not change in them, counters and what is scanned: short
scans step by step, else the first and the last step. What is not followed, such as the state of an ODE, is not checked. What a mask
removes again (`jnp.where(i < 3, t[i], 0)`) is no problem, nor is a `mode=` that the user wrote.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import jax
import numpy as np

from engine.axes import Array, shown
from engine.designs import SAMPLED, Design
from engine.diagnosis import is_users
from engine.jaxprs import callee, is_literal, opened, parts_of_scan, primitives, written
from engine.primitives import ELEMENTWISE, RULES, SHAPES, Rule, align, along

UNFOLLOWED = (
    "erf",
    "erfc",
    "erf_inv",
    "logistic",
    "lgamma",
    "digamma",
    "nextafter",
    "reduce_precision",
    "stop_gradient",
)
"""Primitives without a rule, but of which each element depends on one element alone."""

OVERFLOWING = {"add", "sub", "mul", "neg", "abs", "square", "integer_pow", "pow"}
OVERFLOWING |= {"reduce_sum", "reduce_prod", "cumsum", "cumprod", "dot_general"}
COMPUTES = {*OVERFLOWING, "and", "convert_element_type"}
"""Primitives in which there may be something to check, but for look-ups."""

BUDGET = 5_000_000
"""Elements that are computed in all: some 30 ms, and 40 MB."""

MOST_ELEMENTS = 1_000_000
"""Elements of one sample's value up to which it is followed."""

MOST_EQUATIONS = 20_000
"""Equations, those of calls and loops included, after which the rest is not followed."""

MOST_UNROLLED = 2_000
"""Equations of a scan, all steps together, up to which it is followed step by step."""

MANY = 4096
"""Values of a parameter from which it pays to look for equal ones."""

UNFAMILIAR = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What reading an equation raises in a version of JAX that writes it otherwise: it is not followed then."""


@dataclass(eq=False, slots=True)
class Value:
    """A value of the program."""

    aval: Any
    order: int
    needs: frozenset[str] | None = None
    """The parameters from which it follows; None if it is not known."""

    name: str = ""
    """The primitive that makes it, or "parameter" or "constant"."""

    source: Any = None
    """The equation; the name of the parameter; the constant."""

    operands: tuple[Value, ...] = ()
    rule: Rule | None = None
    position: int = 0
    """Which result of the equation it is."""


Guards = tuple[tuple[Value, int], ...]
"""Conditions and the branches of them in which an equation stands."""


@dataclass(eq=False, slots=True)
class Step:
    """An equation that is reached once."""

    name: str
    eqn: Any
    operands: tuple[Value, ...]
    outs: list[Value]
    number: int
    guards: Guards
    site: Any
    """The equation whose line the user wrote: the call of a function of JAX's, the line inside of which may be of another call."""


@dataclass(eq=False, slots=True)
class Check:
    """Something that may be wrong for some samples."""

    kind: str
    """index, branch, overflow, power or conversion."""

    step: Step
    values: tuple[Value, ...]
    last: int = 0
    """Of an index: the largest that is in range."""

    length: int = 0
    """Of an index: the length of the axis."""

    column: int | None = None
    """Of an index: which of the indices that one array holds."""

    @property
    def names(self) -> frozenset[str]:
        """The parameters that decide."""
        return frozenset().union(*(v.needs or () for v in (*self.values, *(which for which, _ in self.step.guards))))


def out_of_range(jaxpr: Any, nominal: Mapping[str, Array], points: Design) -> list[str]:
    """A problem for each set of parameters that index past the end of an array or overflow an integer."""
    program = Unfolded(jaxpr, nominal)
    groups: dict[frozenset[str], list[Check]] = {}
    for check in program.checks:
        groups.setdefault(check.names, []).append(check)
    faults = []
    budget = BUDGET // max(1, sum(not names.isdisjoint(points.columns) for names in groups))
    for names, checks in groups.items():
        samples = Samples(names, wanted_by(checks), nominal, points, budget=budget)
        faults += [(c, samples, mask) for c in checks if (mask := wrong(c, samples)) is not None and mask.any()]
    problems: list[str] = []
    told: dict[frozenset[str], Value] = {}
    for check, samples, mask in sorted(faults, key=lambda fault: fault[0].step.number):
        earlier = closure(check.step.operands)
        if check.names in told or any(v in earlier for v in told.values()) or allowed(check):
            continue
        samples, rows = escaping(check, mask, samples, program, nominal, points)
        if len(rows):
            told[check.names] = check.step.outs[0]
            problems.append(message(check, samples, int(rows[0]), points))
    return problems


# --- The program, its calls written out ---


class Unfolded:
    """The equations of a jaxpr in order, those of calls and loops included, and what to check."""

    def __init__(self, jaxpr: Any, nominal: Mapping[str, Array]) -> None:
        self.steps: list[Step] = []
        self.checks: list[Check] = []
        self.values = 0
        inner = opened(jaxpr)
        given = [self.value(v.aval) for v in inner.invars]
        for value, name in zip(given, sorted(nominal), strict=False):
            if followable(value.aval):
                value.needs, value.name, value.source = frozenset([name]), "parameter", name
        self.outs = self.inline(jaxpr, given, None, ())

    def value(self, aval: Any, **fields: Any) -> Value:
        """A new value."""
        self.values += 1
        return Value(aval, self.values, **fields)

    def derived(self, rule: Callable[..., Any], *operands: Value, aval: Any = None) -> Value:
        """What a rule makes of values outside any equation."""
        aval = operands[0].aval if aval is None else aval
        needs = union(operands) if followable(aval) else None
        return self.value(aval, needs=needs, operands=operands, rule=lambda _, found: rule(*found))

    def constant(self, constant: Any, aval: Any) -> Value:
        """A constant or a literal."""
        known = followable(aval) and not isinstance(constant, jax.core.Tracer)
        return self.value(aval, needs=frozenset() if known else None, name="constant", source=constant)

    def inline(self, jaxpr: Any, operands: Sequence[Value], site: Any, guards: Guards) -> list[Value]:
        """Add the equations of a jaxpr; its results."""
        inner = opened(jaxpr)
        found = {
            v: self.constant(c, v.aval) for v, c in zip(inner.constvars, getattr(jaxpr, "consts", ()), strict=False)
        }
        found |= dict(zip(inner.invars, operands, strict=True))

        def read(atom: Any) -> Value:
            if is_literal(atom):
                return self.constant(atom.val, atom.aval)
            return found[atom] if atom in found else self.value(atom.aval)

        for eqn in inner.eqns:
            outs = self.add(eqn, tuple(map(read, eqn.invars)), site, guards)
            found.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in inner.outvars]

    def add(self, eqn: Any, operands: tuple[Value, ...], site: Any, guards: Guards) -> list[Value]:
        """Add an equation; its results."""
        name = eqn.primitive.name
        if len(self.steps) < MOST_EQUATIONS:
            if (inner := callee(eqn)) is not None:
                return self.inline(inner, operands, site or (None if written(inner) else eqn), guards)
            if name in ("cond", "scan", "while"):
                follow = {"cond": self.cond, "scan": self.scan, "while": self.loop}[name]
                with suppress(*UNFAMILIAR):
                    if (outs := follow(eqn, operands, site, guards)) is not None:
                        return outs
        return self.step(name, eqn, operands, [v.aval for v in eqn.outvars], site, guards)

    def step(
        self, name: str, eqn: Any, operands: tuple[Value, ...], avals: Iterable[Any], site: Any, guards: Guards
    ) -> list[Value]:
        """Add one equation, with what there is to check in it."""
        rule, needs = RULES.get(name), None
        if rule is not None and len(self.steps) < MOST_EQUATIONS and not (name == "dot_general" and heavy(eqn)):
            needs = union(operands)
        outs = []
        for position, aval in enumerate(avals):
            self.values += 1
            known = needs if needs is not None and followable(aval) else None
            outs.append(Value(aval, self.values, known, name, eqn, operands, rule, position))
        step = Step(name, eqn, operands, outs, len(self.steps), guards, site)
        self.steps.append(step)
        if (needs and name in COMPUTES) or indexes(name):
            with suppress(*UNFAMILIAR):
                self.checks += [check for check in checks_of(step) if any(v.needs for v in check.values)]
        return outs

    def cond(self, eqn: Any, operands: tuple[Value, ...], site: Any, guards: Guards) -> list[Value] | None:
        """A choice between branches, each followed for the samples that take it; None if the choice is not known."""
        which, *given = operands
        if which.needs is None:
            return None
        branches = eqn.params["branches"]
        found = [self.inline(b, given, site, (*guards, (which, k))) for k, b in enumerate(branches)]
        outs = []
        for position, v in enumerate(eqn.outvars):
            cases = tuple(branch[position] for branch in found)
            outs += self.step("select_n", eqn, (which, *cases), [v.aval], site, guards)
        if which.name == "clamp":  # lax.switch clamps in silence
            step = Step("cond", eqn, operands, outs, self.steps[-1].number if outs else 0, guards, site)
            self.checks.append(Check("branch", step, (which.operands[1],), len(branches) - 1, len(branches)))
        return outs

    def scan(self, eqn: Any, operands: tuple[Value, ...], site: Any, guards: Guards) -> list[Value] | None:
        """A loop of known length; None if there is nothing in it to check."""
        body, length = eqn.params["jaxpr"], eqn.params["length"]
        inner = opened(body)
        split = parts_of_scan(eqn)
        if split is None or not length or not looks_up(inner, operands):
            return None
        constants, carry, xs = operands[: split[0]], list(operands[split[0] : sum(split)]), operands[sum(split) :]
        turns = range(length)[::-1] if eqn.params["reverse"] else range(length)

        def slices(k: int) -> list[Value]:
            avals = [v.aval for v in inner.invars[sum(split) :]]
            return [self.derived(lambda a: a[:, k], x, aval=aval) for x, aval in zip(xs, avals, strict=True)]

        found: list[Value] = []
        if length * len(inner.eqns) <= MOST_UNROLLED and any(v.needs and v.aval.dtype.kind in "iu" for v in operands):
            for k in turns:
                outs = self.inline(body, [*constants, *carry, *slices(k)], site, guards)
                carry = outs[: split[1]]
                found += outs[split[1] :]
            avals = [v.aval for v in eqn.outvars[split[1] :]]
            return [*carry, *self.step("", eqn, (*operands, *found), avals, site, guards)]
        for turn in dict.fromkeys((0, length - 1)):
            given = self.unchanged(inner, split[0], carry)
            for p, start in enumerate(carry):
                if counts(inner, split[0], p):
                    given[p] = self.derived(lambda a, turn=turn: a + turn, start)
            found += self.inline(body, [*constants, *given, *slices(turns[turn])], site, guards)
        return self.step("", eqn, (*operands, *found), [v.aval for v in eqn.outvars], site, guards)

    def loop(self, eqn: Any, operands: tuple[Value, ...], site: Any, guards: Guards) -> list[Value] | None:
        """A `while`, or a `fori_loop` of unknown length; None if there is nothing in it to check."""
        body, skipped, held = eqn.params["body_jaxpr"], eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        inner, test = opened(body), opened(eqn.params["cond_jaxpr"])
        constants, carry = operands[skipped : skipped + held], operands[skipped + held :]
        if not looks_up(inner, operands):
            return None
        given = self.unchanged(inner, held, carry)
        passes = [(given, guards)]
        if len(test.eqns) == 1 and test.eqns[0].primitive.name == "lt" and test.outvars[0] is test.eqns[0].outvars[0]:
            inputs = {v: p - skipped for p, v in enumerate(test.invars)}
            i, end = (-1 if is_literal(v) else inputs[v] for v in test.eqns[0].invars)
            if (
                min(i, end) >= 0
                and counts(inner, held, i)
                and given[end] is carry[end]
                and union((carry[i], carry[end]))
            ):
                runs = self.derived(np.less, carry[i], carry[end], aval=test.outvars[0].aval)
                first, final = list(given), list(given)
                first[i], final[i] = carry[i], self.derived(lambda stop: stop - 1, carry[end])
                passes = [(first, (*guards, (runs, 1))), (final, (*guards, (runs, 1)))]
        found: list[Value] = []
        for values, conditions in passes:
            found += self.inline(body, [*constants, *values], site, conditions)
        return self.step("", eqn, (*operands, *found), [v.aval for v in eqn.outvars], site, guards)

    def unchanged(self, inner: Any, held: int, carry: Sequence[Value]) -> list[Value]:
        """The state inside a loop: known where the body hands it on as it is."""
        return [
            start if inner.outvars[p] is inner.invars[held + p] else self.value(start.aval)
            for p, start in enumerate(carry)
        ]


def union(values: Iterable[Value]) -> frozenset[str] | None:
    """The parameters from which values follow; None unless all are known."""
    needs: frozenset[str] = frozenset()
    for value in values:
        if value.needs is None:
            return None
        if value.needs and value.needs is not needs:
            needs = needs | value.needs if needs else value.needs
    return needs


def followable(aval: Any) -> bool:
    """Whether NumPy can hold a value, and it is not too large."""
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf" and aval.size <= MOST_ELEMENTS


def heavy(eqn: Any) -> bool:
    """Whether a matrix product is too large to be worth it."""
    (contracted, _), _ = eqn.params["dimension_numbers"]
    a = eqn.invars[0].aval
    return bool(eqn.outvars[0].aval.size * np.prod([a.shape[axis] for axis in contracted]) > MOST_ELEMENTS / 10)


def looks_up(inner: Any, operands: Iterable[Value]) -> bool:
    """Whether a loop has a look-up that may follow from parameters."""
    return any(v.needs for v in operands) and any(indexes(name) for name in primitives(inner))


def counts(inner: Any, held: int, position: int) -> bool:
    """Whether a part of a loop's state is a counter: each turn adds 1."""
    for eqn in inner.eqns:
        if eqn.outvars[0] is inner.outvars[position]:
            by = eqn.invars[-1]
            one = is_literal(by) and np.ndim(by.val) == 0 and by.val == 1
            return bool(eqn.primitive.name == "add" and eqn.invars[0] is inner.invars[held + position] and one)
    return False


# --- What to check ---


@functools.cache
def indexes(name: str) -> bool:
    """Whether a primitive takes indices."""
    return name in ("gather", "dynamic_slice", "dynamic_update_slice") or name.startswith("scatter")


def checks_of(step: Step) -> Iterator[Check]:
    """What may be wrong in an equation."""
    if indexes(step.name):
        yield from indices_of(step)
        return
    if step.outs[0].needs is None:
        return
    dtype = step.outs[0].aval.dtype
    if step.name == "and" and dtype.kind == "b" and (found := power(step)) is not None:
        yield Check("power", step, found)
    elif dtype.kind == "i" and step.name in OVERFLOWING:
        yield Check("overflow", step, (step.outs[0], *step.operands))
    elif dtype.kind == "i" and step.name == "convert_element_type":
        old = step.operands[0].aval.dtype
        if old.kind == "f" or (old.kind == "i" and old.itemsize > dtype.itemsize):
            yield Check("conversion", step, step.operands)


def indices_of(step: Step) -> Iterator[Check]:
    """Each index of a look-up or an update that is known."""
    shape, params = step.operands[0].aval.shape, step.eqn.params
    if step.name.startswith("dynamic"):
        update = step.name == "dynamic_update_slice"
        sizes = step.operands[1].aval.shape if update else params["slice_sizes"]
        for start, size, length in zip(step.operands[1 + update :], sizes, shape, strict=False):
            if start.needs:
                yield Check("index", step, (start,), length - size, length)
        return
    numbers, axes, sizes = params["dimension_numbers"], (), list(params.get("slice_sizes", ()))
    if step.name == "gather":
        axes = numbers.start_index_map
    else:
        axes = numbers.scatter_dims_to_operand_dims
        window = iter(numbers.update_window_dims)
        single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        update_shape = step.operands[2].aval.shape
        sizes = [1 if axis in single else update_shape[next(window)] for axis in range(len(shape))]
    for (value, column), axis in zip(columns_of(step.operands[1]), axes, strict=False):
        if value.needs:
            yield Check("index", step, (value,), shape[axis] - sizes[axis], shape[axis], column)


def columns_of(index: Value) -> Iterator[tuple[Value, int]]:
    """The indices along the last axis of an array of them: each known by itself if the array was put together."""
    parts = index.operands if index.name == "concatenate" and index.needs is None else (index,)
    last = len(index.aval.shape) - 1
    if len(parts) > 1 and index.source.params["dimension"] != last:
        parts = (index,)
    for part in parts:
        yield from ((part, j) for j in range(part.aval.shape[-1]))


def power(step: Step) -> tuple[Value, Value] | None:
    """Base and exponent of an integer power, which JAX writes out as six squarings: `(base == 0) & (exponent != 0)` comes first."""
    first, second = step.operands
    if (first.name, second.name) != ("eq", "ne") or first.operands[0].aval.dtype.kind != "i":
        return None
    return (first.operands[0], second.operands[0]) if in_power(step) else None


def in_power(step: Step) -> bool:
    """Whether an equation belongs to an integer power."""
    frames = getattr(step.eqn.source_info.traceback, "frames", ())
    return any(f.function_name in ("power", "_pow_int_int") and not is_users(f.file_name) for f in frames)


def wrong(check: Check, samples: Samples) -> Array | None:
    """Where the result of an equation is wrong: (samples, *its shape), an axis being 1 long where all is; None if not known."""
    found = [samples.get(v) for v in check.values]
    if any(x is None for x in found):
        return None
    first: Array = found[0]  # type: ignore[assignment]
    mask: Array
    with np.errstate(all="ignore"):
        if check.kind in ("index", "branch"):
            index = first if check.column is None else first[..., check.column]
            mask = on_result(check.step, (index < 0) | (index > check.last))
        elif check.kind == "power":
            mask = align(no_power, found)
        elif check.kind == "conversion":
            mask = unfit(first, np.iinfo(check.step.outs[0].aval.dtype))
        else:
            bits = 8 * check.step.outs[0].aval.dtype.itemsize
            exact = RULES[check.step.name](check.step.eqn, [x.astype(np.float64) for x in found[1:]])  # type: ignore[union-attr]
            # A wrapped result differs by a multiple of 2**bits; rounding to float64 does so by far less.
            mask = np.abs(exact - first) > 2.0 ** (bits - 2)
    for which, branch in check.step.guards:
        if (taken := samples.get(which)) is None:
            return None
        mask = mask & (taken.astype(int) == branch).reshape(-1, *[1] * (mask.ndim - 1))
    return np.asarray(np.broadcast_to(mask, (samples.n, *mask.shape[1:])))


def unfit(x: Array, info: Any) -> Array:
    """Where a number lies outside the range of integers to which it is converted."""
    if x.dtype.kind == "i":
        return np.asarray((x < info.min) | (x > info.max))
    whole = np.trunc(x)
    return np.asarray((whole < info.min) | (whole >= -float(info.min)))  # info.max would be rounded up to that


def no_power(base: Array, exponent: Array) -> Array:
    """Where an integer power is no integer of the dtype."""
    fraction = (exponent < 0) & (np.abs(base) != 1)
    large = np.abs(base.astype(np.float64)) ** exponent.astype(np.float64) >= 2.0 ** (8 * base.dtype.itemsize - 1)
    return np.asarray(fraction | large)


def on_result(step: Step, mask: Array) -> Array:
    """Which elements of a look-up come from the marked indices; of an update all may."""
    rank = rank_of(step.outs[0]) if step.outs else 0
    if step.name == "gather":
        offset = step.eqn.params["dimension_numbers"].offset_dims
        return along(mask, [axis for axis in range(rank) if axis not in offset], rank)
    return by_sample(mask).reshape(-1, *[1] * rank)


# --- The values of the parameters, and what follows from them ---


@dataclass(eq=False)
class Samples:
    """Values for the combinations of some parameters' values that occur in a design."""

    names: frozenset[str]
    wanted: Iterable[Value]
    nominal: Mapping[str, Array]
    points: Design
    keep: Mapping[int, Array] = field(default_factory=dict)
    """Dimension -> positions that must be among them."""

    budget: int = BUDGET

    def __post_init__(self) -> None:
        needed = sorted(closure(self.wanted), key=lambda v: v.order)
        fixed = sum(v.aval.size for v in needed if not v.needs)
        each = sum(v.aval.size for v in needed if v.needs)
        chosen = self.positions(max(1, self.budget // max(1, each)))
        self.n = int(np.prod([len(p) for p in chosen.values()], dtype=int))
        index = np.unravel_index(np.arange(self.n), [len(p) for p in chosen.values()]) if chosen else ()
        self.where = {dim: p[i] for (dim, p), i in zip(chosen.items(), index, strict=True)}
        self.found: dict[Value, Array] = {}
        if fixed > self.budget:
            return
        for value in needed:
            if (result := self.compute(value)) is not None:
                self.found[value] = result

    def positions(self, most: int) -> dict[int, Array]:
        """The positions along each dimension that matter, the outer product of which is at most `most` long."""
        dims: dict[int, list[Array]] = {}
        for name in sorted(self.names & self.points.columns.keys()):
            dims.setdefault(self.points.along[name], []).append(self.points.columns[name])
        chosen = {}
        for left, (dim, columns) in enumerate(sorted(dims.items(), key=lambda item: len(item[1][0]))):
            share = max(1, int(most ** (1 / (len(dims) - left)) + 1e-9))
            chosen[dim] = some(columns, share, self.keep.get(dim, ()))
            most = max(1, most // len(chosen[dim]))
        return chosen

    def column(self, name: str) -> Array:
        """The values of a parameter."""
        nominal = self.nominal[name]
        if name not in self.points.columns or name not in self.names:
            return nominal[None]
        column: Array = self.points.columns[name][self.where[self.points.along[name]]].astype(nominal.dtype, copy=False)
        return column

    def compute(self, value: Value) -> Array | None:
        """A value from its operands; None if that fails."""
        try:
            with np.errstate(all="ignore"):
                if value.name == "parameter":
                    return self.column(value.source)
                if value.name == "constant":
                    return np.asarray(value.source, value.aval.dtype).reshape(1, *value.aval.shape)
                if value.rule is None or any(v not in self.found for v in value.operands):
                    return None
                result = value.rule(value.source, [self.found[v] for v in value.operands])
                result = np.asarray(result[value.position] if isinstance(result, list) else result)
                result = result.astype(value.aval.dtype, copy=False)
        except Exception:  # a check must not stop a run that it does not understand
            return None
        return result if result.shape[1:] == value.aval.shape else None

    def get(self, value: Value) -> Array | None:
        """A value for every sample; None if it is not known."""
        return self.found.get(value)


def wanted_by(checks: Iterable[Check]) -> list[Value]:
    """What must be known for some checks."""
    return [v for c in checks for v in (*c.values, *(which for which, _ in c.step.guards))]


def closure(values: Iterable[Value]) -> set[Value]:
    """Known values with all that they are computed from."""
    found: set[Value] = set()
    stack = [v for v in values if v.needs is not None]
    while stack:
        value = stack.pop()
        if value not in found:
            found.add(value)
            stack.extend(value.operands)
    return found


def some(columns: list[Array], most: int, keep: Sequence[int] | Array) -> Array:
    """Positions of the distinct rows of columns; if they are too many, those of extreme values and others evenly between them.

    Args:
        columns: equally long.
        most: about how many positions.
        keep: positions that must be among them.
    """
    flat = [column.reshape(len(column), -1)[:, j] for column in columns for j in range(column[0].size)]
    found = distinct(flat) if len(flat[0]) > MANY else np.arange(len(flat[0]))
    chosen = np.zeros(len(flat[0]), bool)
    chosen[list(keep)] = True
    chosen[thinned(found, most)] = True
    if len(found) > most:
        chosen[[int(found[pick(column[found])]) for column in flat[:most] for pick in (np.argmin, np.argmax)]] = True
    return np.flatnonzero(chosen)


def thinned(positions: Array, most: int) -> Array:
    """At most so many positions, evenly between the first and the last."""
    n = len(positions)
    return positions if n <= most else positions[np.linspace(0, n - 1, most).astype(int)]


def distinct(columns: list[Array]) -> Array:
    """Positions of the distinct rows of columns of integers; all positions if the integers are far apart or are floats."""
    n, size = len(columns[0]), 1
    code = np.zeros(n, np.int64)
    for column in columns:
        if column.dtype.kind not in "iub":
            return np.arange(n)
        low = int(column.min())
        span = int(column.max()) - low + 1
        size *= span
        if size > MOST_ELEMENTS:
            return np.arange(n)
        code = code * span + (column.astype(np.int64) - low)
    position = np.full(size, -1)
    position[code] = np.arange(n)
    return np.sort(position[position >= 0])


# --- What of it reaches a result ---


def escaping(
    check: Check, mask: Array, samples: Samples, program: Unfolded, nominal: Mapping[str, Array], points: Design
) -> tuple[Samples, Array]:
    """For which samples a wrong value reaches a result of the program: a mask may remove it on the way.

    Returns:
        Samples of all parameters that decide, and the positions of those that are wrong.
    """
    reached = set(check.step.outs)
    masks: list[Value] = []
    for step in program.steps[check.step.number + 1 :]:
        if not reached.isdisjoint(step.operands):
            reached.update(step.outs)
            masks += step.operands[:1] if step.name == "select_n" else step.operands if step.name == "mul" else ()
    masks = [v for v in masks if v.needs is not None and is_mask(v)]
    names = check.names.union(*(v.needs or () for v in masks))
    if masks:
        bad = np.flatnonzero(by_sample(mask))[:16]
        keep = {dim: np.unique(positions[bad]) for dim, positions in samples.where.items()}
        wider = Samples(names, [*wanted_by([check]), *masks], nominal, points, keep, budget=4 * BUDGET)
        if (again := wrong(check, wider)) is not None:
            samples, mask = wider, again
    largest = max(getattr(v.aval, "size", 1) for v in reached)
    bad = thinned(np.flatnonzero(by_sample(mask)), max(1, BUDGET // max(1, largest)))
    marks: dict[Value, Array] = {v: mask[bad] for v in check.step.outs}
    known = {v: x[bad] if len(x) > 1 else x for v in masks if (x := samples.get(v)) is not None}
    for step in program.steps[check.step.number + 1 :]:
        if any(v in marks for v in step.operands):
            spread(step, marks, known, check.kind)
    rows = np.zeros(len(bad), bool)
    for value in program.outs:
        if value in marks:
            rows = rows | by_sample(marks[value])
    return samples, bad[rows]


def by_sample(mask: Array) -> Array:
    """For which samples anything is marked."""
    return np.asarray(mask.reshape(len(mask), -1).any(axis=1))


def is_mask(value: Value) -> bool:
    """Whether a factor or a condition may be there to remove something."""
    while value.operands and (value.name == "convert_element_type" or value.name in SHAPES):
        value = value.operands[0]
    return followable(value.aval) and value.aval.dtype.kind in "bi"


def rank_of(value: Value) -> int:
    """Axes of a value; a token of an effect has none."""
    return len(getattr(value.aval, "shape", ()))


def spread(step: Step, marks: dict[Value, Array], masks: Mapping[Value, Array], kind: str) -> None:
    """Mark what is wrong in the results of an equation, given what is wrong in its operands and known masks."""
    operands = step.operands
    if indexes(step.name) and kind == "conversion" and operands[0] not in marks:
        return  # an index that does not fit its dtype is out of range, and told as that
    given = [marks.get(v, np.zeros((1,) * (rank_of(v) + 1), bool)) for v in operands]
    known = masks.get(operands[0])
    if step.name == "select_n" and known is not None:
        chosen = align(lambda at, *parts: np.choose(at.astype(int), parts), [known, *given[1:]])
        outs = [align(np.logical_or, [chosen, given[0]])]
    elif step.name == "mul" and kind != "power":
        factors = [masks.get(v) for v in operands[::-1]]
        kept = [
            m if f is None else align(lambda a, b: a & (b != 0), [m, f]) for m, f in zip(given, factors, strict=True)
        ]
        outs = [align(np.logical_or, kept)]
    elif step.name in ELEMENTWISE or step.name in UNFOLLOWED:
        outs = [align(lambda *parts: sum(parts[1:], start=parts[0]), given)]  # of booleans, + is or
    elif step.name in SHAPES and max(map(len, given)) * sum(v.aval.size for v in operands) <= 10 * BUDGET:
        full = [np.broadcast_to(m, (len(m), *v.aval.shape)) for m, v in zip(given, operands, strict=True)]
        result = SHAPES[step.name](step.eqn, full)
        outs = result if isinstance(result, list) else [result]
    else:
        rows = np.any(np.broadcast_arrays(*map(by_sample, given)), axis=0)
        outs = [rows.reshape(-1, *[1] * rank_of(v)) for v in step.outs]
    marks.update((value, mark) for value, mark in zip(step.outs, outs, strict=True) if mark.any())


# --- What to say ---


def allowed(check: Check) -> bool:
    """Whether the user asked for what JAX does with an index out of range."""
    step = check.step
    if check.kind == "overflow":
        return step.name == "mul" and in_power(step)  # told as a power
    if check.kind != "index":
        return False
    params = step.eqn.params
    sure = params.get("indices_are_sorted") and params.get("unique_indices")
    if "CLIP" in str(params.get("mode")) and not sure:  # a dynamic_slice under vmap is sorted and unique
        return True
    _, expression = place(step)
    if not isinstance(expression, ast.Call):
        return False
    modes = [ast.unparse(word.value) for word in expression.keywords if word.arg == "mode"]
    if modes:
        return modes[0] != "None" and "promise_in_bounds" not in modes[0].lower()
    name = ast.unparse(expression.func).rpartition(".")[2]
    # Functions such as segment_sum and bincount leave out what is out of range, and say so.
    return step.name.startswith("scatter") and name not in UPDATES and not name.startswith("scatter")


UPDATES = ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max", "apply", "put_along_axis")


def message(check: Check, samples: Samples, row: int, points: Design) -> str:
    """What is wrong, for one sample."""
    needs = frozenset().union(*(v.needs or () for v in check.values))
    names = [name for name in points.columns if name in needs] + sorted(needs - points.columns.keys())
    at = {name: values[row if len(values) > 1 else 0].tolist() for name in names for values in (samples.column(name),)}
    line, _ = place(check.step)
    if check.kind in ("overflow", "power", "conversion"):
        return arithmetic(check, at, line, samples, points)
    index = samples.get(check.values[0])
    assert index is not None
    column = index[row if len(index) > 1 else 0]
    column = np.ravel(column if check.column is None else column[..., check.column])
    found = int(column[(column < 0) | (column > check.last)][0])
    if check.kind == "index" and found < 0:
        found -= check.length  # which JAX has added
    several = len(names) > 1
    beyond = found == np.iinfo(index.dtype).max  # the nearest to what does not fit
    gives = (
        "" if beyond or list(at.values()) == [found] else f", which {'give' if several else 'gives'} the index {found}"
    )
    size, last, length = check.length - check.last, check.last, check.length
    if check.kind == "branch":
        what, gives = f"choose one of {length} branches (0 to {last})", gives.replace("index", "branch")
    elif size == 1:
        what = f"index an array of {length} (0 to {last}, or -{length} to -1)"
    else:
        what = f"start a slice of {size} in an array of {length} (0 to {last}, or -{length} to -{size})"
    effect, remedy = consequence(check.step)
    swept = any(name in points.columns for name in names)
    those = "those values" if several else "that value"
    drawn = swept and points.kind in SAMPLED
    remove = (
        f"Narrow what {'they are' if several else 'it is'} drawn from"
        if drawn
        else f"{'Remove' if swept else 'Change'} {those}"
    )
    return (
        f"{joined(key(name, points) for name in names)} must {'together ' * several}{what}, but {'are' if several else 'is'} "
        f"{joined(map(shown, at.values()))}{gives}: JAX would {effect}{line}. {remove}, or write {remedy}."
    )


def consequence(step: Step) -> tuple[str, str]:
    """What JAX would do with an index out of range, and how to say that it is meant."""
    clip = "jnp.clip in the stage if clamping is meant"
    if step.name == "dynamic_update_slice":
        return "clamp it and write to a wrong place", clip
    if step.name.startswith("scatter") and "CLIP" not in str(step.eqn.params["mode"]):
        return "leave that update out and go on", 'mode="drop" in the stage if that is meant'
    if step.name == "gather" and "FILL" in str(step.eqn.params["mode"]):
        filling = step.eqn.params["fill_value"]
        return f"go on with {filling} in its place", 'mode="fill" in the stage if that is meant'
    return "clamp it and go on with a wrong value", clip


def arithmetic(check: Check, at: Mapping[str, Any], line: str, samples: Samples, points: Design) -> str:
    """What is wrong with an integer that overflows."""
    bits = 8 * (check.values[0] if check.kind == "power" else check.step.outs[0]).aval.dtype.itemsize
    integers = [name for name in at if samples.nominal[name].dtype.kind == "i"]
    name = max(integers or at, key=lambda name: np.max(np.abs(np.asarray(at[name], float)), initial=0))
    negative = check.kind == "power" and [n for n in integers if np.min(np.asarray(at[n]), initial=0) < 0]
    name = negative[0] if negative else name
    start, value = key(name, points), at[name]
    if check.kind == "conversion":
        return (
            f"{start} must fit {bits} bits, but is {shown(value)}, and is converted to an integer of {bits} bits{line}: "
            "JAX would go on with a wrong number. Leave out the conversion, or change that value."
        )
    overflows = f"integer arithmetic on it overflows {bits} bits"
    does = "an integer to a negative power is no integer" if negative else overflows
    if name not in integers:
        return (
            f"{start} must keep what is computed from it within {bits} bits, but is {shown(value)}, and {does}{line}: "
            "JAX would go on with a wrong number. Compute with floats there, or change that value."
        )
    numbers = np.ravel(value)
    pick = np.argmin(numbers) if negative else np.argmax(np.abs(numbers.astype(float)))
    number = as_float(int(numbers[pick]))
    many = np.ndim(value) > 0
    must = f"written as {'floats' if many else 'a float'}, such as {number}"
    but = f"{'holds the integers' if many else 'is the integer'} {shown(value)}"
    return (
        f"{start} must be {must}, but {but}, and {does}{line}: JAX would go on with a wrong number. "
        f"Write {number}, or convert it in the stage."
    )


def as_float(value: int) -> str:
    """An integer as one writes it as a float: 25.0, 2.1e11."""
    scientific = np.format_float_scientific(float(value), trim="-", exp_digits=1).replace("e+", "e")
    return min(repr(float(value)).replace("e+", "e"), scientific, key=len)


def key(name: str, points: Design) -> str:
    """Where the config gives a parameter's values."""
    return points.source(name) if name in points.columns else f"`parameters.{name}`"


def joined(words: Iterable[str]) -> str:
    """Words as a sentence lists them: a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def place(step: Step) -> tuple[str, ast.expr | None]:
    """The user's line of an equation, ` (model.py:12)`, and the expression there, as far as JAX kept them."""
    frames = getattr(getattr((step.site or step.eqn).source_info, "traceback", None), "raw_frames", None)
    for code, offset in zip(*frames(), strict=False) if frames is not None else ():
        if is_users(code.co_filename):
            line, end, left, right = next(islice(code.co_positions(), offset // 2, None), (None,) * 4)
            if line is None:
                return "", None
            where = f" ({code.co_filename.rpartition('/')[2]}:{line})"
            return where, None if end is None or left is None else written_at(code.co_filename, line, end, left, right)
    return "", None


def written_at(file: str, line: int, end: int, left: int, right: int | None) -> ast.expr | None:
    """The expression between two places of a file; None if it cannot be read."""
    linecache.checkcache(file)
    lines = [text.encode() for text in linecache.getlines(file)[line - 1 : end]]
    if not lines:
        return None
    lines[-1] = lines[-1][:right]
    lines[0] = lines[0][left:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None
