"""Where a vector field jumps: the forcings that it uses, the times that are declared, and comparisons of time that are not.

In: a vector field, its arguments, the interval. Out: the arguments with their forcings ready to be read, and the times of the jumps as
one traced array.

Two jumps at one time are moved apart by `APART` roundings, by moving the forcing itself: a step ends at each of them, as long as a few
roundings, so that the derivative by either time is that of its own jump. The jumps within a few roundings of the ends of the interval
count as being there, and no step crosses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import (  # type: ignore[attr-defined]
    ClosedJaxpr,
    Jaxpr,
    Literal,
    jaxpr_as_fun,
)
from jax.interpreters.partial_eval import dce_jaxpr

from ops.forcing import DECLARED, SCOPE, is_primitive, known, rounding
from ops.steps import Jumps

APART = 16
"""So many roundings lie between two jumps."""

MARGIN = 2
"""So many roundings lie between a jump and a time at which the field is evaluated."""

NEAR = 8
"""A jump that is no more roundings from an end of the interval is there."""

COMPARISONS = ("lt", "le", "gt", "ge", "sign", "floor", "ceil", "round")
"""Operations whose value jumps. `eq` and `ne` do so at single points, which no step meets."""

SMOOTH = ("remainder", "hypot", "sinc")
"""Functions of jax.numpy that compare, though what is made of them may be smooth: `t % 24`, which is looked at by itself."""

NEITHER: frozenset[str] = frozenset()
TIME, STATE = frozenset("t"), frozenset("y")
"""What an operation depends on."""


class Driven(NamedTuple):
    """What a solve needs to know of the jumps."""

    args: Any
    """The arguments, with forcings that jump at just the times in `jumps`."""

    inner: Sequence[Any] = ()
    """Such times for the forcings that the vector field closes over or builds, in the order in which it uses them."""

    jumps: Jumps | None = None
    """The jumps inside the interval, infinite for those outside it. None if there are none."""

    def field(self, vector_field: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        """A vector field whose own forcings jump at just these times."""
        if not self.inner:
            return vector_field

        def moved(t: Any, y: Any, args: Any) -> Any:
            traced, shape = jax.make_jaxpr(lambda t, y: vector_field(t, y, args), return_shape=True)(t, y)
            slope = run_with(traced, [t, *jax.tree_util.tree_leaves(y)], self.inner)
            return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shape), slope)

        return moved


def find_jumps(args: Any, inner: Sequence[Any], declared: Any, start: jax.Array, end: jax.Array, span: Any) -> Driven:
    """The jumps of the forcings in `args`, and those known otherwise.

    Args:
        args: the vector field's arguments.
        inner: the jumps of each forcing that is not in `args`.
        declared: times of jumps that are no forcing's.
        start: the time at which the solve begins.
        end: the time at which it ends.
        span: both as the caller gave them.
    """
    leaves, structure = jax.tree_util.tree_flatten(args, is_leaf=is_primitive)
    forcings = [leaf for leaf in leaves if is_primitive(leaf)]
    whole = [known(t) for t in span]
    if all(t is not None for t in whole):
        for forcing in forcings:
            forcing.check_covers(float(whole[0]), float(whole[1]))
    dtype = start.dtype
    edges = [jnp.ravel(jnp.asarray(e, dtype)) for e in (*(f.edges(*span) for f in forcings), *inner)]
    others = jnp.ravel(jnp.asarray(declared, dtype))
    every = jnp.concatenate([*edges, others])
    if not every.shape[0]:
        return Driven(_replaced(leaves, structure, edges))
    low, high = jnp.minimum(start, end), jnp.maximum(start, end)
    slack = jnp.minimum(rounding(start, end, dtype, NEAR), jax.lax.stop_gradient(high - low) / 4)
    first, last = low + slack, high - slack
    inside = (every > first) & (every < last)
    moves = apart(jnp.where(inside, every, jnp.inf), rounding(start, end, dtype, APART))
    movable = np.arange(every.shape[0]) < every.shape[0] - others.shape[0]
    every = jnp.where(movable & inside, every + moves, every)
    edges = jnp.split(every, np.cumsum([e.shape[0] for e in edges]))
    way = jnp.where(end < start, -1, 1).astype(dtype)
    times = jnp.sort(jnp.where(inside, every * way, jnp.inf))
    bounds = jnp.where(way > 0, first, -last), jnp.where(way > 0, last, -first)
    jumps = Jumps(times, rounding(start, end, dtype, MARGIN), *bounds)
    moved = [e.reshape(jnp.shape(old)) for e, old in zip(edges[len(forcings) :], inner, strict=False)]
    return Driven(_replaced(leaves, structure, edges), moved, jumps)


def _replaced(leaves: Sequence[Any], structure: Any, edges: Sequence[Any]) -> Any:
    """The arguments with forcings that jump at some times."""
    at = iter(edges)
    return jax.tree_util.tree_unflatten(structure, [x.hold(next(at)) if is_primitive(x) else x for x in leaves])


def apart(times: jax.Array, gap: Any) -> jax.Array:
    """By how much each time must move to lie at least `gap` after the one before it; the first of several stays where it is."""
    times = jax.lax.stop_gradient(times)
    order = jnp.argsort(times, stable=True)
    ranked = times[order]
    shift = gap * jnp.arange(times.shape[0])
    spread = jax.lax.cummax(ranked - shift) + shift
    moves = jnp.where(jnp.isfinite(ranked) & (spread - ranked > gap / 4), spread - ranked, 0)
    return jnp.zeros_like(times).at[order].set(moves)


class Found(NamedTuple):
    """What a traced vector field says of its jumps."""

    jumps: list[Any]
    """The jumps of each forcing that is not among the arguments; None for those that depend on time or state."""

    compared: list[str]
    """Where time is compared, by file and line, outside any forcing and any library."""


def examine(traced: ClosedJaxpr, t: jax.Array, y: Any) -> Found:
    """Look at a vector field, traced as a function of time and state, for forcings and for comparisons of nothing but time."""
    found = Found([], [])
    operands = [t, *jax.tree_util.tree_leaves(y)]
    thunks = [lambda value=value: value for value in operands]
    walk(traced, thunks, [TIME, *[STATE] * (len(operands) - 1)], found)
    return found


def walk(
    program: ClosedJaxpr,
    values: Sequence[Callable[[], Any]],
    marks: Sequence[frozenset[str]],
    found: Found,
    outer: str | None = None,
) -> list[frozenset[str]]:
    """Note the jumps and the comparisons of a program; calls and branches are looked into, loops are not.

    Args:
        program: the program.
        values: what gives each of its operands, called only where a jump needs it.
        marks: what each operand depends on.
        found: what is added to.
        outer: the place where the program is called.

    Returns:
        What each result depends on.
    """
    depends = dict(zip(program.jaxpr.invars, marks, strict=True))

    def marked(atom: Any) -> frozenset[str]:
        return NEITHER if isinstance(atom, Literal) else depends.get(atom, NEITHER)

    for eqn in program.jaxpr.eqns:
        union = NEITHER.union(*map(marked, eqn.invars))
        results = [union] * len(eqn.outvars)
        scope, name = str(eqn.source_info.name_stack), eqn.primitive.name
        inner = list(programs(eqn))
        operands = eqn.invars[1:] if name == "cond" else eqn.invars
        if _declares(eqn):
            found.jumps.append(None if union else evaluated(program, values, eqn.invars[0]))
        elif SCOPE in scope:
            pass
        elif inner and name not in ("scan", "while") and all(len(p.jaxpr.invars) == len(operands) for p in inner):
            thunks = [lambda atom=atom: evaluated(program, values, atom) for atom in operands]
            place = _place(eqn, outer)
            each = [walk(p, thunks, [marked(atom) for atom in operands], found, place) for p in inner]
            choice = marked(eqn.invars[0]) if name == "cond" else NEITHER
            results = [choice.union(*parts) for parts in zip(*each, strict=True)]
        elif any(_count(p.jaxpr) for p in inner):
            found.jumps.append(None)
        elif union == TIME and name in COMPARISONS:
            place = _place(eqn, outer)
            if place is not None and place not in found.compared:
                found.compared.append(place)
        depends.update(zip(eqn.outvars, results, strict=True))
    return [marked(atom) for atom in program.jaxpr.outvars]


def programs(eqn: Any) -> Iterator[ClosedJaxpr]:
    """The programs inside an operation."""
    for value in eqn.params.values():
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, ClosedJaxpr):
                yield part
            elif isinstance(part, Jaxpr):
                yield ClosedJaxpr(part, ())


def evaluated(program: ClosedJaxpr, values: Sequence[Callable[[], Any]], atom: Any) -> Any:
    """The value of one variable of a program, from no more operations than it needs."""
    if isinstance(atom, Literal):
        return atom.val
    debug_info = program.jaxpr.debug_info._replace(result_paths=None)
    jaxpr, used = dce_jaxpr(program.jaxpr.replace(outvars=[atom], debug_info=debug_info), [True])
    operands = [value() for value, needed in zip(values, used, strict=True) if needed]
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, program.consts))(*operands)[0]


def run_with(program: ClosedJaxpr, operands: Sequence[Any], edges: Sequence[Any]) -> list[Any]:
    """The results of a program with other times for the jumps of its forcings, in the order in which `walk` finds them."""
    env = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    env.update(zip(program.jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    left = list(edges)
    for eqn in program.jaxpr.eqns:
        values, inner = [read(atom) for atom in eqn.invars], list(programs(eqn))
        used = [_count(p.jaxpr) for p in inner]
        if _declares(eqn):
            results = [left.pop(0)]
        elif any(used):
            parts = [[left.pop(0) for _ in range(n)] for n in used]
            runs = [lambda *v, p=p, part=part: run_with(p, v, part) for p, part in zip(inner, parts, strict=True)]
            is_choice = eqn.primitive.name == "cond"
            results = jax.lax.switch(values[0], runs, *values[1:]) if is_choice else runs[0](*values)
        else:
            with source_info_util.user_context(eqn.source_info.traceback), eqn.ctx.manager:
                results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
            results = results if eqn.primitive.multiple_results else [results]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in program.jaxpr.outvars]


def _declares(eqn: Any) -> bool:
    """Whether an operation names the jumps of a forcing."""
    return eqn.primitive.name == "add" and DECLARED in str(eqn.source_info.name_stack)


def _count(jaxpr: Jaxpr) -> int:
    """How many forcings a program names the jumps of."""
    return sum(_declares(eqn) + sum(_count(p.jaxpr) for p in programs(eqn)) for eqn in jaxpr.eqns)


def _place(eqn: Any, outer: str | None) -> str | None:
    """The file and line where a model compares, or calls what does. None where a library does so for a function of its own."""
    trace = eqn.source_info.traceback
    for frame in trace.frames if trace is not None else []:
        file = frame.file_name.replace("\\", "/")
        if "/jax/" in file and "/scipy/" not in file and "/nn/" not in file:
            if frame.function_name in SMOOTH:
                return None
            continue
        return None if "site-packages" in file else f"{file.rsplit('/', 1)[-1]}:{frame.line_num}"
    return outer  # the trace of a jitted function may end at its call
