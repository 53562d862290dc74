"""A traced program and its arguments → where a number first went non-finite.

In: a closed jaxpr and concrete arguments. Out: for each output that is not finite, the equation at which that number was born,
with the values that went in. Knows nothing of stores.

The program is run once more, compiled, with a shadow beside each value: -1 where it is finite, else the number of the site
(`engine.sites`) at which the non-finite number was born, of finite ones or of a constant. Masks, loops and branches carry the
shadows along as they carry the values, so that a branch of `jnp.where` that is not taken is not blamed. A stage may also take a
decision on a number that is not finite, and then report failure (a solver that rejects all steps); the first is noted for each stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from engine.bounds import UNFOLLOWED
from engine.jaxprs import is_literal, opened, parts_of_scan
from engine.primitives import ELEMENTWISE
from engine.sites import Path_, Site, Sites, find_sites, inside

FINITE = -1

MOVED = frozenset(
    {
        *("broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev", "slice", "dynamic_slice"),
        *("dynamic_update_slice", "concatenate", "pad", "split", "unstack", "stack", "tile", "copy", "copy_p"),
        *("maybe_set", "select_if_vmap", "select_n"),
    }
)
"""Primitives that move elements and compute none: what they do to the values, they do to the shadows."""

KEPT = frozenset({"stop_gradient", "nonbatchable", "optimization_barrier", "name", "neg", "abs"})
"""Primitives that leave each operand finite where it is finite, and only there."""

BY_ELEMENT = frozenset({*ELEMENTWISE, *UNFOLLOWED, "add_any", "complex", "real", "imag", "conj", "exp2", "is_finite"})
"""Primitives of which each element depends on one element of each operand."""


@dataclass(frozen=True)
class Origin:
    """Where a number that is not finite was born. Static."""

    site: Site
    operands: tuple[Any, ...] = ()
    """The values that went in, the first time; empty where an element depends on many."""

    result: Any = None
    """What came out."""


@dataclass(frozen=True, eq=False)
class Provenance:
    """What a hunt found."""

    outputs: tuple[Origin | None, ...]
    """Of each output: the origin of its first number that is not finite, or None if all are finite."""

    sites: tuple[frozenset[Site], ...]
    """Of each output: the sites of all its numbers that are not finite."""

    decided: dict[str, Origin]
    """Of each stage: the origin of the first number that is not finite on which a decision was taken."""


class Shadowed(NamedTuple):
    """A value with its shadow (int32, the value's shape); None if it is finite beyond doubt, or no float."""

    value: Any
    shadow: Any = None


class State(NamedTuple):
    """What is carried through the program."""

    decided: tuple[Any, ...]
    """Of each stage, and of none: the site of the first number that is not finite on which a decision was taken."""

    seen: dict[int, Any]
    """Of each site that is watched: whether a number was born there, the operands and the result."""


def trace_origins(jaxpr: Any, arguments: Sequence[Any], stages: Sequence[str]) -> Provenance:
    """Run a program and find the origins of what is not finite.

    Args:
        jaxpr: closed; its equations carry the stages' names as named scopes.
        arguments: of the jaxpr.
        stages: the stages' names.
    """
    sites = find_sites(jaxpr, stages)
    shadows, decided = jax.jit(lambda *values: follow(jaxpr, values, sites))(*arguments)
    born = [np.array([], int) if shadow is None else np.asarray(shadow).ravel() for shadow in shadows]
    born = [numbers[numbers != FINITE] for numbers in born]
    found = [first_of(numbers, sites) for numbers in born]
    made = {stage: int(number) for stage, number in zip(stages, decided, strict=False)}
    made = {stage: number for stage, number in made.items() if number >= sites.first_direct}
    wanted = frozenset(number for number in (*found, *made.values()) if number != FINITE)
    watched = watchable(jaxpr, sites, wanted)
    seen = jax.jit(lambda *values: watch(jaxpr, values, sites, watched))(*arguments) if watched else {}
    origins = {number: origin_of(sites[number], seen.get(number), arguments) for number in wanted}
    outputs = tuple(origins.get(number) for number in found)
    every = tuple(frozenset(sites[number] for number in np.unique(numbers)) for numbers in born)
    return Provenance(outputs, every, {stage: origins[number] for stage, number in made.items()})


def first_of(born: np.ndarray[Any, Any], sites: Sites) -> int:
    """The site to name for a value, of those of its elements in order: the first that is direct, else the first."""
    direct = born[born >= sites.first_direct]
    return int(next(iter((*direct[:1], *born[:1])), FINITE))


def origin_of(site: Site, seen: Any, arguments: Sequence[Any]) -> Origin:
    """An origin with the values that were seen."""
    if site.input >= 0:
        value = np.asarray(arguments[site.input])
        return Origin(site, (), value[~np.isfinite(value)].flat[0])
    if seen is None or not bool(seen[0]):
        return Origin(site)
    return Origin(site, tuple(np.asarray(v)[()] for v in seen[1]), np.asarray(seen[2])[()])


def follow(jaxpr: Any, values: Sequence[Any], sites: Sites) -> tuple[list[Any], tuple[Any, ...]]:
    """The shadows of the outputs, and the decisions."""
    inputs = [Shadowed(v, born_at(v, sites.numbers["input", i])) for i, v in enumerate(values)]
    state = State((jnp.int32(FINITE),) * (len(sites.stages) + 1), {})
    outs, state = Interpreter(sites, True, {}).run(jaxpr, inputs, state, ())
    return [shadow for _, shadow in outs], state.decided


def watch(jaxpr: Any, values: Sequence[Any], sites: Sites, watched: dict[int, Any]) -> dict[int, Any]:
    """The operands at the sites that are watched, the first time that a number is born there."""

    def nothing(eqn: Any) -> Any:
        scalars = [jnp.zeros((), v.aval.dtype) for v in (*eqn.invars, *eqn.outvars)]
        return jnp.array(False), scalars[:-1], scalars[-1]

    state = State((), {number: nothing(eqn) for number, eqn in watched.items()})
    _, state = Interpreter(sites, False, watched).run(jaxpr, [Shadowed(v) for v in values], state, ())
    return state.seen


def watchable(jaxpr: Any, sites: Sites, wanted: frozenset[int]) -> dict[int, Any]:
    """The equations at these sites of which each element depends on one element of each operand."""
    found = {}

    def visit(inner: Any, path: Path_) -> None:
        for i, eqn in enumerate(opened(inner).eqns):
            number = sites.numbers[*path, i]
            if number in wanted and eqn.primitive.name in BY_ELEMENT and len(eqn.outvars) == 1:
                found[number] = eqn
            for tag, part in inside(eqn):
                visit(part, (*path, i, tag))

    visit(jaxpr, ())
    return found


def is_float(value: Any) -> bool:
    """Whether a value can hold a number that is not finite."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def born_at(value: Any, number: int) -> Any:
    """The shadow of a value that is given: what is not finite was born at a site."""
    if not is_float(value):
        return None
    if not isinstance(value, jax.core.Tracer) and bool(np.all(np.isfinite(np.asarray(value)))):
        return None
    return jnp.where(jnp.isfinite(value), FINITE, number).astype(jnp.int32)


def filled(item: Shadowed) -> Any:
    """The shadow of a float as an array."""
    return jnp.full(jnp.shape(item.value), FINITE, jnp.int32) if item.shadow is None else item.shadow


@dataclass(frozen=True, eq=False)
class Interpreter:
    """Runs a jaxpr equation by equation, under a trace of its own."""

    sites: Sites
    shadows: bool
    """Whether shadows are kept."""

    watched: dict[int, Any]
    """Sites at which values are noted."""

    def run(self, jaxpr: Any, inputs: Iterable[Shadowed], state: State, path: Path_) -> tuple[list[Shadowed], State]:
        """The outputs of a jaxpr, and the state after it."""
        inner = opened(jaxpr)
        known: dict[Any, Shadowed] = dict(zip(inner.invars, inputs, strict=True))
        constants = dict(zip(inner.constvars, getattr(jaxpr, "consts", ()), strict=False))

        def read(atom: Any, number: int) -> Shadowed:
            if not is_literal(atom) and atom not in constants:
                return known[atom]
            value = atom.val if is_literal(atom) else constants[atom]
            return Shadowed(value, born_at(value, number) if self.shadows else None)

        for i, eqn in enumerate(inner.eqns):
            if not eqn.outvars:  # printing, checks: no value comes of it
                continue
            here = (*path, i)
            number = self.sites.numbers[here]
            outs, state = self.apply(eqn, [read(v, number) for v in eqn.invars], state, here)
            known.update(zip(eqn.outvars, outs, strict=True))
        last = self.sites.numbers[*path, len(inner.eqns) - 1] if inner.eqns else 0
        return [read(v, last) for v in inner.outvars], state

    def apply(self, eqn: Any, inputs: list[Shadowed], state: State, path: Path_) -> tuple[list[Shadowed], State]:
        """One equation."""
        name, parts = eqn.primitive.name, inside(eqn)
        if name == "while":
            return self.loop(eqn, inputs, state, path)
        if name == "scan" and (split := parts_of_scan(eqn)) is not None:
            return self.scan(eqn, split, inputs, state, path)
        if name == "cond":
            return self.branch(eqn, inputs, state, path)
        if parts and name != "scan":
            return self.run(parts[0][1], inputs, state, (*path, "call"))
        return self.compute(eqn, inputs, state, self.sites.numbers[path])

    def loop(self, eqn: Any, inputs: list[Shadowed], state: State, path: Path_) -> tuple[list[Shadowed], State]:
        """A `while`. Its condition is followed too, in the body and after the end, for the decisions taken there."""
        condition, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
        n, m = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        asked, given, start = inputs[:n], inputs[n : n + m], inputs[n + m :]

        def ask(carry: list[Shadowed], state: State) -> tuple[list[Shadowed], State]:
            return self.run(condition, [*asked, *carry], state, (*path, "cond"))

        def goes_on(packed: Any) -> Any:
            return jnp.any(ask(*self.unpacked(packed))[0][0].value)  # under vmap, while one element goes on

        def step(packed: Any) -> Any:
            carry, state = self.unpacked(packed)
            (asked_value, *_), after = ask(carry, state)
            new, state = self.run(body, [*given, *carry], after, (*path, "body"))
            return self.packed([chosen(asked_value.value, *pair) for pair in zip(new, carry, strict=True)], state)

        carry, state = self.unpacked(jax.lax.while_loop(goes_on, step, self.packed(start, state)))
        return carry, ask(carry, state)[1] if self.shadows else state

    def scan(
        self, eqn: Any, split: tuple[int, int], inputs: list[Shadowed], state: State, path: Path_
    ) -> tuple[list[Shadowed], State]:
        """A `scan`."""
        n, k = split
        given, start, rows = inputs[:n], inputs[n : n + k], inputs[n + k :]

        def step(packed: Any, row: Any) -> Any:
            carry, state = self.unpacked(packed)
            items = [Shadowed(*item) for item in row]
            outs, state = self.run(eqn.params["jaxpr"], [*given, *carry, *items], state, (*path, "body"))
            return self.packed(outs[:k], state), self.packed(outs[k:], None)[0]

        packed = self.packed(start, state)
        length, reverse = eqn.params["length"], eqn.params["reverse"]
        packed, columns = jax.lax.scan(step, packed, self.packed(rows, None)[0], length=length, reverse=reverse)
        carry, state = self.unpacked(packed)
        return [*carry, *(Shadowed(*item) for item in columns)], state

    def branch(self, eqn: Any, inputs: list[Shadowed], state: State, path: Path_) -> tuple[list[Shadowed], State]:
        """A `cond`."""

        def taken(i: int, branch: Any) -> Any:
            def call(packed: Any) -> Any:
                operands, state = self.unpacked(packed)
                return self.packed(*self.run(branch, operands, state, (*path, f"branch {i}")))

            return call

        branches = [taken(i, branch) for i, branch in enumerate(eqn.params["branches"])]
        return self.unpacked(jax.lax.switch(inputs[0].value, branches, self.packed(inputs[1:], state)))

    def packed(self, items: Sequence[Shadowed], state: Any) -> Any:
        """Values as a pytree whose structure depends on their types alone."""
        return [(item.value, filled(item) if self.shadows and is_float(item.value) else None) for item in items], state

    @staticmethod
    def unpacked(packed: Any) -> tuple[list[Shadowed], Any]:
        """The inverse."""
        return [Shadowed(*item) for item in packed[0]], packed[1]

    def compute(self, eqn: Any, inputs: list[Shadowed], state: State, number: int) -> tuple[list[Shadowed], State]:
        """An equation that computes."""
        outs = bind(eqn, [item.value for item in inputs])
        if number in self.watched:
            seen = look(eqn, inputs, outs[0], state.seen[number])
            state = state._replace(seen={**state.seen, number: seen})
        if not self.shadows:
            return [Shadowed(out) for out in outs], state
        if not all(map(is_float, outs)) and any(item.shadow is not None for item in inputs):
            state = self.decide(inputs, state, number)
        if not any(map(is_float, outs)):
            return [Shadowed(out) for out in outs], state
        shadows = shadows_of(eqn, inputs, outs, number)
        return [Shadowed(out, s if is_float(out) else None) for out, s in zip(outs, shadows, strict=True)], state

    def decide(self, inputs: list[Shadowed], state: State, number: int) -> State:
        """Note on what a decision is taken: a comparison, or what else makes no float of floats."""
        stage = self.sites.stage_of(number)
        new, old = collapsed(inputs), state.decided[stage]
        better = (old < self.sites.first_direct) & (new >= self.sites.first_direct) | (old == FINITE)
        decided = list(state.decided)
        decided[stage] = jnp.where(better, new, old)
        return state._replace(decided=tuple(decided))


def chosen(goes_on: Any, new: Shadowed, old: Shadowed) -> Shadowed:
    """The new state of a loop, for those elements under vmap that go on; the old one for the others."""
    if not jnp.shape(goes_on):
        return new

    def pick(a: Any, b: Any) -> Any:
        return jnp.where(goes_on.reshape(*goes_on.shape, *(1,) * (jnp.ndim(a) - goes_on.ndim)), a, b)

    shadow = pick(filled(new), filled(old)) if is_float(new.value) else None
    return Shadowed(pick(new.value, old.value), shadow)


def bind(eqn: Any, values: Sequence[Any], **changes: Any) -> list[Any]:
    """Apply the primitive of an equation to values."""
    params = eqn.primitive.get_bind_params({**eqn.params, **changes})
    with eqn.ctx.manager:
        found = eqn.primitive.bind(*values, **params)
    return list(found) if eqn.primitive.multiple_results else [found]


def collapsed(inputs: Iterable[Shadowed]) -> Any:
    """The best of all sites in some shadows."""
    best = jnp.int32(FINITE)
    for item in inputs:
        if item.shadow is not None and item.shadow.size:
            best = jnp.maximum(best, jnp.max(item.shadow))
    return best


def shadows_of(eqn: Any, inputs: list[Shadowed], outs: list[Any], number: int) -> list[Any]:
    """The shadows of an equation's results."""
    name = eqn.primitive.name
    clean = all(item.shadow is None for item in inputs)
    if name in KEPT and len(inputs) == len(outs):
        return [item.shadow for item in inputs]
    if name in MOVED and clean:
        return [None] * len(outs)
    if name in MOVED or name in ("scatter", "gather"):
        with suppress(Exception):  # a version of JAX that writes it otherwise
            return [
                as_born(out, s, number) if name == "gather" else s
                for out, s in zip(outs, moved(eqn, inputs), strict=True)
            ]
    inherited = by_element(inputs, outs[0]) if name in BY_ELEMENT else collapsed(inputs)
    return [as_born(out, inherited, number) if is_float(out) else None for out in outs]


def as_born(out: Any, inherited: Any, number: int) -> Any:
    """The shadow of a result: where it is not finite, what it takes over from its operands, or else the site itself."""
    born = jnp.where(inherited == FINITE, number, inherited)
    return jnp.where(jnp.isfinite(out), FINITE, born).astype(jnp.int32)


def by_element(inputs: list[Shadowed], out: Any) -> Any:
    """The best site at each element."""
    best = jnp.full(jnp.shape(out), FINITE, jnp.int32)
    for item in inputs:
        if item.shadow is not None:
            best = jnp.maximum(best, item.shadow)
    return best


def moved(eqn: Any, inputs: list[Shadowed]) -> list[Any]:
    """What an equation that moves elements makes of the shadows."""
    operands = [filled(item) if is_float(item.value) else item.value for item in inputs]
    params = eqn.params
    if eqn.primitive.name == "gather":
        return bind(eqn, operands, fill_value=FINITE)
    if eqn.primitive.name == "scatter":
        settings = {k: params[k] for k in ("indices_are_sorted", "unique_indices", "mode")}
        target, indices, updates = operands
        return [jax.lax.scatter(target, indices, updates, params["dimension_numbers"], **settings)]
    return bind(eqn, operands)


def look(eqn: Any, inputs: list[Shadowed], out: Any, seen: Any) -> Any:
    """What is noted of an equation that is watched: the operands of the first element that is born."""
    born = ~jnp.isfinite(out)
    for atom, item in zip(eqn.invars, inputs, strict=True):
        if is_float(item.value) and not is_literal(atom):
            born = born & jnp.isfinite(item.value)
    at = jnp.argmax(born.ravel())
    now = [jnp.asarray(v).ravel()[at if jnp.size(v) > 1 else 0] for v in (*(item.value for item in inputs), out)]
    new = ~seen[0] & jnp.any(born)
    values = [jnp.where(new, a, b) for a, b in zip(now, (*seen[1], seen[2]), strict=True)]
    return seen[0] | new, values[:-1], values[-1]
