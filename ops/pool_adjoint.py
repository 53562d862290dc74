"""Cotangents of a solve in a pool: blocks of lanes go forth once more, keep where segments begin, and go back over their steps.

In: the operands of a solve, and cotangents of its results. Out: cotangents of the operands. Steps are those taken, their sizes held fixed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ops.lanes import (
    RUNNING,
    SAVE,
    Tangents,
    levels_of,
    places_of_tangents,
    primal,
    shapes_of_results,
    tied_operands,
    tree_map,
)
from ops.pool import drive, rounded

REVERSED = 32
"""Lanes of a block that goes back over its steps."""


def _some(held: Sequence[Any], places: Sequence[int]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Some of the operands, and what puts others in their places."""

    def put(values: Sequence[Any]) -> list[Any]:
        made = list(held)
        for i, value in zip(places, values, strict=True):
            made[i] = value
        return made

    return [held[i] for i in places], put


def _floats(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The leaves that may have a derivative, and what puts others in their places."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    chosen, put = _some(leaves, places)
    return chosen, lambda values: jax.tree_util.tree_unflatten(structure, put(values))


def _of_lane(leaf: Any, place: Any) -> Any:
    """For each lane one entry of the axis before the last."""
    return leaf[..., place, jnp.arange(place.shape[0])]


def _no_cotangent(leaf: Any) -> Any:
    """A cotangent of zero."""
    inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
    return jnp.zeros(leaf.shape, leaf.dtype) if inexact else np.zeros(leaf.shape, jax.dtypes.float0)


def of_no_samples(shapes: Sequence[Any]) -> list[Any]:
    """The results for no samples."""
    return [jnp.zeros(x.shape, x.dtype) for x in shapes]


def as_arrays(operands: Sequence[Any]) -> list[Any]:
    """Operands as arrays: JAX hands on a number that stands in a program without a shape."""
    return [x if hasattr(x, "shape") or ad.is_undefined_primal(x) else jnp.asarray(x, x.dtype) for x in operands]


def zero_tangent(leaf: Any) -> Any:
    """A tangent of zero."""
    return ad.Zero(jax.typeof(leaf).to_tangent_aval())


ADJOINT: Any = Primitive("ensemble_adjoint")
"""Cotangents of the operands of a solve, from those of its results.

Operands: those of the solve, then a cotangent for each of the `wanted` results, with the samples as its first axis if there are
several. Results: a cotangent for each operand that is `moving`, with the samples first.
"""


ADJOINT.multiple_results = True


def by_adjoint(
    rules: Tangents,
    cotangents: Sequence[Any],
    primals: Sequence[Any],
    owners: Sequence[int],
    parameters: dict[str, Any],
) -> list[Any]:
    """The cotangents of each sample by a pass backwards over its steps, one for each direction."""
    flags, count, wanted = parameters["flags"][: len(primals)], parameters["count"], parameters["wanted"]
    _, places = places_of_tangents(
        rules, [*primals, *(primals[i][None] for i in owners)], [*flags, *[False] * len(owners)], count
    )
    result = {place: i for i, place in places.items()}
    kept = [(result[place], ct) for place, ct in zip(wanted, cotangents, strict=True) if type(ct) is not ad.Zero]
    settings = {
        "rules": rules.of,
        "program": parameters["program"],
        "flags": tuple(flags),
        "count": count,
        "wanted": tuple(i for i, _ in kept),
        "moving": tuple(owners),
    }
    axis = int(count is not None)
    pull: Callable[..., Any] = lambda cts: ADJOINT.bind(*primals, *cts, **settings)  # noqa: E731
    found: list[Any] = jax.vmap(pull, in_axes=axis, out_axes=axis)([ct for _, ct in kept])
    return found


def over_the_steps(
    *operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any, moving: Any
) -> list[Any]:
    """Solve once more, in blocks of lanes, keep the state every so many attempts, and go back over them."""
    if count == 0:
        settings = {"rules": rules, "program": program, "flags": flags, "count": count}
        return of_no_samples(_adjoint_shapes(*operands, **settings, wanted=wanted, moving=moving))
    base = len(rules.kinds)
    primals, cotangents = list(operands[:base]), list(operands[base:])
    single = count is None
    if single:
        cotangents, count = [ct[None] for ct in cotangents], 1
    primals, tied = tied_operands(rules, primals, list(flags), count)
    outcome = shapes_of_results(rules, primals, tied, count)[0]
    places = jax.tree_util.tree_unflatten(
        jax.tree_util.tree_structure(outcome), range(len(jax.tree_util.tree_leaves(outcome)))
    )
    asked = primal(rules, places).steps
    steps = drive(rules, primals, tied, count, [asked])[0][asked]
    lanes = rounded(min(count, REVERSED))
    blocks = -(-count // lanes)
    order = jnp.argsort(steps)[jnp.minimum(jnp.arange(blocks * lanes), count - 1)].reshape(blocks, lanes)
    saves = [i for i, kind in enumerate(rules.kinds) if kind == SAVE]
    number = primals[saves[0]].shape[-1] if saves else 0
    segment = 2 ** math.ceil(math.log2(math.sqrt(rules.max_steps + number)))
    segments = -(-(rules.max_steps + number) // segment)
    shapes = shapes_of_results(rules, operands[:base], flags, None if single else count)
    first_saved = len(jax.tree_util.tree_leaves(shapes[0]))
    deep = [] if shapes[1] is None else [len(axes) for axes in levels_of(rules, shapes[1])]

    def block(index: Any) -> list[Any]:
        held = [
            jnp.moveaxis(x[index], 0, -1) if flag else jnp.broadcast_to(x[..., None], (*x.shape, lanes))
            for x, flag in zip(primals, tied, strict=True)
        ]
        every = [True] * base

        def times(saved: Any, held: Sequence[Any]) -> tuple[list[Any], Any]:
            if not number:
                return [], None
            sign = jnp.where(held[1] < held[0], -1, 1).astype(held[0].dtype)
            at: Callable[..., Any] = lambda x, place: sign * _of_lane(x, jnp.minimum(place, number - 1))  # noqa: E731
            plain = [x.ndim == held[saves[0]].ndim for x in (held[i] for i in saves)]
            first = [
                jnp.where(saved < number, at(held[i], saved), jnp.inf if p else 0)
                for i, p in zip(saves, plain, strict=True)
            ]
            return first, jnp.where(saved + 1 < number, at(held[saves[0]], saved + 1), jnp.inf)

        def forth(state: Any, saved: Any, held: Sequence[Any]) -> tuple[Any, Any]:
            after: tuple[Any, Any] = rules.advance(state, held, every, *times(saved, held))
            return after

        def running(state: Any) -> Any:
            return jnp.any(primal(rules, state).phase == RUNNING)

        def run_through(state: Any, saved: Any, keep: bool) -> tuple[Any, Any, Any, Any]:
            """The attempts of one segment: what is reached, how many there were, and where each began."""
            rows = tree_map(lambda leaf: jnp.zeros((segment if keep else 0, *leaf.shape), leaf.dtype), (state, saved))

            def more(carry: Any) -> Any:
                state, _, _, i = carry
                return (i < segment) & running(state)

            def one(carry: Any) -> Any:
                state, saved, rows, i = carry
                if keep:
                    rows = tree_map(lambda buffer, leaf: buffer.at[i].set(leaf), rows, (state, saved))
                state, _ = forth(state, saved, held)
                if number:
                    saved = saved + primal(rules, state).due
                return state, saved, rows, i + 1

            state, saved, rows, i = lax.while_loop(more, one, (state, saved, rows, jnp.zeros((), jnp.int32)))
            return state, saved, rows, i

        begun, nothing = rules.start(held, every), jnp.zeros(lanes, jnp.int32)
        marks = tree_map(lambda leaf: jnp.zeros((segments, *leaf.shape), leaf.dtype), (begun, nothing))

        def pass_on(carry: Any) -> Any:
            state, saved, marks, k = carry
            marks = tree_map(lambda buffer, leaf: buffer.at[k].set(leaf), marks, (state, saved))
            state, saved, _, _ = run_through(state, saved, False)
            return state, saved, marks, k + 1

        state, _, marks, passed = lax.while_loop(
            lambda c: running(c[0]) & (c[3] < segments), pass_on, (begun, nothing, marks, jnp.zeros((), jnp.int32))
        )
        of_outcome = {
            i: jnp.moveaxis(ct[index], 0, -1) for i, ct in zip(wanted, cotangents, strict=True) if i < first_saved
        }
        of_saved = {
            i - first_saved: jnp.moveaxis(jnp.moveaxis(ct[index], 1 + deep[i - first_saved], 0), 1, -1)
            for i, ct in zip(wanted, cotangents, strict=True)
            if i >= first_saved
        }
        floats, join = _floats(state)
        mine, with_mine = _some(held, moving)
        _, pull = jax.vjp(lambda f, m: jax.tree_util.tree_leaves(rules.outcome(join(f), with_mine(m))), floats, mine)
        shape = jax.eval_shape(lambda s: jax.tree_util.tree_leaves(rules.outcome(s, held)), state)
        ct_state, ct_held = pull([of_outcome.get(i, _no_cotangent(x)) for i, x in enumerate(shape)])

        def back(i: Any, rows: Any, ct_state: Any, ct_held: Any) -> tuple[Any, Any]:
            state, saved = tree_map(lambda buffer: buffer[i], rows)
            floats, join = _floats(state)

            def attempt(floats: Any, mine: Any) -> tuple[Any, Any]:
                after, value = forth(join(floats), saved, with_mine(mine))
                return (_floats(after)[0], jax.tree_util.tree_leaves(value)), primal(rules, after).due

            (_, value), pull, due = jax.vjp(attempt, floats, mine, has_aux=True)
            place = jnp.minimum(saved, max(number - 1, 0))
            ct_value = []
            for j, leaf in enumerate(value):
                if j not in of_saved:
                    ct_value.append(jnp.zeros_like(leaf))
                    continue
                ct_value.append(jnp.where(due, _of_lane(jnp.moveaxis(of_saved[j], 0, -2), place), 0).astype(leaf.dtype))
            pulled, more = pull((ct_state, ct_value))
            return pulled, tree_map(jnp.add, ct_held, more)

        def over_segment(carry: Any) -> Any:
            k, ct_state, ct_held = carry
            state, saved = tree_map(lambda buffer: buffer[k - 1], marks)
            _, _, rows, made = run_through(state, saved, True)

            def one(carry: Any) -> Any:
                i, ct_state, ct_held = carry
                return (i - 1, *back(i - 1, rows, ct_state, ct_held))

            _, ct_state, ct_held = lax.while_loop(lambda c: c[0] > 0, one, (made, ct_state, ct_held))
            return k - 1, ct_state, ct_held

        _, ct_state, ct_held = lax.while_loop(lambda c: c[0] > 0, over_segment, (passed, ct_state, ct_held))
        _, pull = jax.vjp(lambda m: _floats(rules.start(with_mine(m), every))[0], mine)
        (begin,) = pull(ct_state)
        return [jnp.moveaxis(a + b, -1, 0) for a, b in zip(begin, ct_held, strict=True)]

    found = lax.map(block, order)
    flat = order.reshape(-1)
    whole = [
        jnp.zeros((count, *leaf.shape[2:]), leaf.dtype).at[flat].set(leaf.reshape(-1, *leaf.shape[2:]))
        for leaf in found
    ]
    asked_of = functools.reduce(jnp.logical_or, [jnp.any(ct.reshape(count, -1) != 0, axis=1) for ct in cotangents])
    whole = [jax.vmap(unless)(asked_of, leaf) for leaf in whole]
    return [leaf[0] for leaf in whole] if single else whole


def unless(asked: Any, slope: Any) -> Any:
    """A derivative, which where nobody asks for it is at least a number: that of a sample that has failed may be none."""
    return jnp.where(asked | jnp.isfinite(slope), slope, 0)


def _adjoint_shapes(
    *operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any, moving: Any
) -> list[Any]:
    del rules, program, wanted
    front = () if count is None else (count,)
    shapes = [operands[i].shape[1:] if flags[i] else operands[i].shape for i in moving]
    return [jax.core.ShapedArray((*front, *shape), operands[i].dtype) for i, shape in zip(moving, shapes, strict=True)]


@functools.lru_cache(maxsize=64)
def _compiled_adjoint(**parameters: Any) -> Any:
    return jax.jit(functools.partial(over_the_steps, **parameters))


def _batch_adjoint(operands: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of `jax.vmap`: more samples."""
    operands = as_arrays(operands)
    flags, count = parameters["flags"], parameters["count"]
    base = len(flags)
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(operands, dims, strict=True)]
    batched = [d is not None for d in dims]
    if count is None:
        cts = [
            x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(moved[base:], batched[base:], strict=True)
        ]
        settings = parameters | {"flags": tuple(batched[:base]), "count": size}
        return ADJOINT.bind(*moved[:base], *cts, **settings), [0] * len(parameters["moving"])
    merged, wide = [], []
    for leaf, outer, inner in zip(moved, batched, [*flags, *[True] * (len(moved) - base)], strict=True):
        if outer and not inner:
            leaf = jnp.broadcast_to(leaf[:, None], (size, count, *leaf.shape[1:]))
        elif inner and not outer:
            leaf = jnp.broadcast_to(leaf, (size, *leaf.shape))
        merged.append(leaf.reshape(size * count, *leaf.shape[2:]) if outer or inner else leaf)
        wide.append(bool(outer or inner))
    found = ADJOINT.bind(*merged, **parameters | {"flags": tuple(wide[:base]), "count": size * count})
    return [leaf.reshape(size, count, *leaf.shape[1:]) for leaf in found], [0] * len(found)


def _push_adjoint(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of forward mode: the adjoint of the tangents, since second derivatives are symmetric."""
    primals = as_arrays(primals)
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    base = len(flags)
    found = ADJOINT.bind(*primals, **parameters)
    along = [zero_tangent(leaf) for leaf in found]
    moving = tuple(type(t) is not ad.Zero for t in tangents[:base])
    if any(moving):
        both = Tangents(rules, moving)
        extra = [(jnp.expand_dims(t, int(f)), f) for t, f, m in zip(tangents, flags, moving, strict=False) if m]
        operands, wide = [*primals[:base], *(t for t, _ in extra)], (*flags, *(f for _, f in extra))
        _, places = places_of_tangents(both, operands, wide, count)
        asked = tuple(places[i] for i in wanted)
        cts = [jnp.expand_dims(ct, int(count is not None)) for ct in primals[base:]]
        settings = parameters | {"rules": both, "flags": wide, "wanted": asked}
        along = ADJOINT.bind(*operands, *cts, **settings)
    if any(type(t) is not ad.Zero for t in tangents[base:]):
        cts = [ad.instantiate_zeros(t) for t in tangents[base:]]
        more = ADJOINT.bind(*primals[:base], *cts, **parameters)
        along = [ad.add_tangents(a, b) for a, b in zip(along, more, strict=True)]
    return found, along


def _evaluate_adjoint(*operands: Any, **parameters: Any) -> list[Any]:
    with jax.disable_jit(False):
        found: list[Any] = _compiled_adjoint(**parameters)(*operands)
    return found


ADJOINT.def_impl(_evaluate_adjoint)
ADJOINT.def_abstract_eval(_adjoint_shapes)
mlir.register_lowering(ADJOINT, mlir.lower_fun(over_the_steps, multiple_results=True))
batching.primitive_batchers[ADJOINT] = _batch_adjoint
ad.primitive_jvps[ADJOINT] = _push_adjoint
