"""Ensembles of solves by explicit Runge-Kutta methods, or by Rodas5P, in which no lane waits for another.

`jax.vmap` of a solve by diffrax runs every sample for as long as the slowest one, and moves the whole state through memory at every
step. Here a batch is a queue of samples and a pool of lanes: a lane that has finished its sample takes the next one, so that the work is
the mean cost of a sample, not the largest. The state lies lanes last, each stage is kept from being computed twice, and between two
looks at the queue there are only arithmetic and selections, which XLA compiles to one kernel.

A lane takes the steps that diffrax would take for its sample alone: the same tableaux, error estimate, PID controller, first step and
interpolation. Derivatives are those of the steps taken, their sizes held fixed, as in diffrax.

Sources: E. Hairer, S. P. Norsett, G. Wanner, Solving Ordinary Differential Equations I, Springer (1993), II.4, for the step size control;
P. Kidger, diffrax, for its details. Asynchronous lanes: D. Nagy, L. Plavecz, F. Hegedus, Commun. Nonlinear Sci. 112 (2022) 106521.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive, jaxprs_in_params
from jax.interpreters import ad, batching, mlir

from ops.lanes import (
    Lane,
    Outcome,
    Steps,
    Tangents,
    levels,
    levels_of,
    nesting,
    places_of_tangents,
    shapes_of_results,
    tied_operands,
)
from ops.pool import drive
from ops.pool_adjoint import ADJOINT, as_arrays, by_adjoint, of_no_samples, over_the_steps, unless, zero_tangent
from ops.rosenbrock import PLAIN, Rodas5P

LARGE, BARRIERS = 2048, jax.__version_info__ >= (0, 11)
"""Numbers of a state, above which a pool needs a compiler that keeps barriers through its fusion."""


OPAQUE = ("custom_vjp_call", "custom_vjp_call_jaxpr", "pure_callback", "io_callback", "debug_callback", "custom_lin")
"""What has no derivative in forward mode, or does more than to compute."""


FEW = 24
"""Up to so many numbers a reverse pass takes the whole Jacobian, carried along with the solve: that is faster than to go backwards."""


PRIMITIVE: Any = Primitive("ensemble")
"""A solve of one sample, or of `count` of them.

Operands: those of the rules. Those with a flag have an axis of samples first; then come the axes of directions of a tangent.
Parameters: `rules`; `program`, that of the vector field, for those who look into programs; `flags`; `count`, None for one sample;
`wanted`, the places of the results that are asked for among all that a solve gives.
"""


PRIMITIVE.multiple_results = True


def hindrance(program: Any, scheme: Any) -> str:
    """Why a pool of lanes cannot solve with a method and a vector field; empty if it can: with an explicit Runge-Kutta method, or Rodas5P
    for a few numbers, and a field that is differentiated as it stands, and does nothing but compute."""
    numbers = sum(math.prod(x.shape) for x in program.out_avals)
    own = next((name for name in ("init", "step", "func") if not _inherits(type(scheme), name)), "")
    if own:
        return f"{type(scheme).__name__} has a method {own} of its own"
    if issubclass(type(scheme), Rodas5P):
        if numbers > PLAIN * (1 + scheme.pair):
            return f"its state has more than {PLAIN} numbers"
    elif numbers > LARGE and not BARRIERS:
        return f"its state has more than {LARGE} numbers, and this JAX would compute its stages again and again"
    elif not issubclass(type(scheme), diffrax.AbstractERK | diffrax.Euler):  # isinstance sees through HalfSolver
        return f"{type(scheme).__name__} is neither an explicit Runge-Kutta method nor Rodas5P"
    opaque = next((name for name in _applied(program.jaxpr) if name in OPAQUE), "an effect" if program.effects else "")
    return f"its vector field has {opaque}" if opaque else ""


def _inherits(kind: type, method: str) -> bool:
    """Whether a solver, if it is of a kind that a pool knows, does as that kind does."""
    known = (diffrax.AbstractERK, diffrax.Euler, Rodas5P)
    return all(getattr(kind, method) is getattr(base, method) for base in known if issubclass(kind, base))


def _applied(jaxpr: Any) -> Iterator[str]:
    """The names of the primitives of a program, its loops and branches included."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from _applied(inner)


def solve(
    program: Any,
    scheme: Any,
    steps: Steps,
    y0: Any,
    *,
    t0: Any,
    t1: Any,
    first: Any,
    ts: Any,
    jumps: Any,
    max_steps: int,
    order: float,
    reverse: bool,
) -> tuple[Outcome, Any]:
    """Solve one sample, or under `jax.vmap` an ensemble of them; differentiable in both modes, again and again.

    Args:
        program: the vector field, a ClosedJaxpr of time and state; what it closes over may be batched and differentiated.
        scheme: an explicit Runge-Kutta method of diffrax.
        steps: how steps are chosen.
        y0: the initial state; a pair of it and of a probe if steps are chosen by both.
        t0: start time.
        t1: end time.
        first: size of the first step, or of all steps.
        ts: times of saving, in the order of integration; None for the state at the end alone.
        jumps: the times of jumps and the distance that steps keep from them, or None.
        max_steps: attempts after which a solve gives up.
        order: of the error estimate.
        reverse: whether derivatives are taken backwards.

    Returns:
        The outcome, and the states at `ts` with time as the first axis, or None.
    """
    structure = jax.tree_util.tree_structure(y0)

    def field(t: Any, y: Any, consts: Any) -> Any:
        found = jax.core.eval_jaxpr(program.jaxpr, consts, t, *jax.tree_util.tree_leaves(y))
        return jax.tree_util.tree_unflatten(structure, found)

    arguments = [jnp.asarray(x) for x in program.consts]
    rules = Lane(
        field, scheme, steps, max_steps, structure, jumps is not None, ts is not None, len(arguments), order, reverse
    )
    values = [] if ts is None else [ts]
    operands = [t0, t1, first, *(jumps or ()), *jax.tree_util.tree_leaves(y0), *values, *arguments]
    operands = [jnp.asarray(x) for x in operands]
    shapes = shapes_of_results(rules, operands, [False] * len(operands), None)
    leaves, whole = jax.tree_util.tree_flatten(shapes)
    flags = (False,) * len(operands)
    wanted = tuple(range(len(leaves)))
    found = PRIMITIVE.bind(*operands, rules=rules, program=program.jaxpr, flags=flags, count=None, wanted=wanted)
    outcome, saved = jax.tree_util.tree_unflatten(whole, found)
    return outcome, None if saved is None else saved.y


def _compute(*operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any) -> list[Any]:
    """The results that are asked for."""
    if count == 0:
        return of_no_samples(
            _abstract(*operands, rules=rules, program=program, flags=flags, count=count, wanted=wanted)
        )
    of_one = count is None
    given, wide = (operands, flags) if of_one else tied_operands(rules, list(operands), list(flags), count)
    found, kept = drive(rules, given, wide, 1 if of_one else count, wanted)
    leaves = [*found, *jax.tree_util.tree_leaves(kept)]
    return [leaves[i][0] if of_one else leaves[i] for i in wanted]


def _abstract(*operands: Any, rules: Any, program: Any, flags: Any, count: Any, wanted: Any) -> list[Any]:
    del program
    leaves = jax.tree_util.tree_leaves(shapes_of_results(rules, operands, flags, count))
    return [jax.core.ShapedArray(leaves[i].shape, leaves[i].dtype) for i in wanted]


@functools.lru_cache(maxsize=64)
def _compiled(**parameters: Any) -> Any:
    return jax.jit(functools.partial(_compute, **parameters))


def _evaluate(*operands: Any, **parameters: Any) -> list[Any]:
    with jax.disable_jit(False):  # one operation, as the loop of a solve is
        found: list[Any] = _compiled(**parameters)(*operands)
    return found


def _batch(operands: Sequence[Any], dims: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of `jax.vmap`: more directions where only tangents differ, else more samples."""
    operands = as_arrays(operands)
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    batched = [d is not None for d in dims]
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    moved = [jnp.moveaxis(x, d, 0) if b else x for x, d, b in zip(operands, dims, batched, strict=True)]
    axes = levels(rules)
    for level in range(1, nesting(rules) + 1):
        if all(level in a for a, b in zip(axes, batched, strict=True) if b):
            return _more_directions(level, size, batched, moved, parameters)
    if count is None:
        found = PRIMITIVE.bind(*moved, **parameters | {"flags": tuple(batched), "count": size})
        return found, [0] * len(wanted)
    merged, wide = [], []
    for leaf, outer, inner in zip(moved, batched, flags, strict=True):
        if outer and not inner:
            leaf = jnp.broadcast_to(leaf[:, None], (size, count, *leaf.shape[1:]))
        elif inner and not outer:
            leaf = jnp.broadcast_to(leaf, (size, *leaf.shape))
        merged.append(leaf.reshape(size * count, *leaf.shape[2:]) if outer or inner else leaf)
        wide.append(outer or inner)
    found = PRIMITIVE.bind(*merged, **parameters | {"flags": tuple(wide), "count": size * count})
    return [leaf.reshape(size, count, *leaf.shape[1:]) for leaf in found], [0] * len(wanted)


def _more_directions(
    level: int, size: int, batched: Sequence[bool], operands: Sequence[Any], parameters: dict[str, Any]
) -> tuple[Any, Any]:
    """A batch in which only tangents of one level differ."""
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    folded, width = [], 1
    for leaf, axes, b, flag in zip(operands, levels(rules), batched, flags, strict=True):
        if level in axes:
            axis = axes.index(level) + flag
            leaf = leaf if b else jnp.broadcast_to(leaf, (size, *leaf.shape))
            leaf = jnp.moveaxis(leaf, 0, axis)
            width = leaf.shape[axis + 1]
            leaf = leaf.reshape(*leaf.shape[:axis], size * width, *leaf.shape[axis + 2 :])
        folded.append(leaf)
    found = PRIMITIVE.bind(*folded, **parameters)
    outcome, saved = shapes_of_results(rules, folded, flags, count)
    every = [*levels_of(rules, outcome), *([] if saved is None else levels_of(rules, saved))]
    spread, dims = [], []
    for leaf, axes in zip(found, [every[i] for i in wanted], strict=True):
        if level in axes:
            axis = axes.index(level) + (count is not None)
            leaf = jnp.moveaxis(leaf.reshape(*leaf.shape[:axis], size, width, *leaf.shape[axis + 1 :]), axis, 0)
        spread.append(leaf)
        dims.append(0 if level in axes else None)
    return spread, dims


def _push_forward(primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any) -> tuple[Any, Any]:
    """The rule of forward mode: the solve beside its tangents; two solves, the second linear, for a reverse pass."""
    primals = as_arrays(primals)
    rules, flags, count, wanted = (parameters[key] for key in ("rules", "flags", "count", "wanted"))
    moving = tuple(type(t) is not ad.Zero for t in tangents)
    if not any(moving):
        found = PRIMITIVE.bind(*primals, **parameters)
        return found, [zero_tangent(leaf) for leaf in found]
    both = Tangents(rules, moving)
    extra = [(t, f) for t, f, m in zip(tangents, flags, moving, strict=True) if m]
    operands = [*primals, *(jnp.expand_dims(t, int(f)) for t, f in extra)]
    wide = (*flags, *(f for _, f in extra))
    of, places = places_of_tangents(both, operands, wide, count)
    ours = [places.get(i) for i in wanted]
    base = tuple(of[i] for i in wanted)
    asked = tuple(i for i in ours if i is not None)
    parameters = parameters | {"rules": both, "flags": wide}
    if rules.reverse:
        found = PRIMITIVE.bind(*primals, **parameters | {"rules": rules, "flags": flags})
        moved = PRIMITIVE.bind(*operands, **parameters | {"wanted": asked})
    else:
        joint = PRIMITIVE.bind(*operands, **parameters | {"wanted": (*base, *asked)})
        found, moved = joint[: len(base)], joint[len(base) :]
    at = iter(moved)
    axis = int(count is not None)
    along = [
        zero_tangent(leaf) if i is None else jnp.squeeze(next(at), axis) for leaf, i in zip(found, ours, strict=True)
    ]
    return found, along


def _pull_back(cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> list[Any]:
    """The rule of reverse mode: few operands by their Jacobian, many by a pass backwards over the steps."""
    operands = tuple(as_arrays(operands))
    rules, flags, count = (parameters[key] for key in ("rules", "flags", "count"))
    base = len(rules.of.kinds)
    linear = [ad.is_undefined_primal(x) for x in operands]
    if any(linear[:base]):
        raise NotImplementedError("a solve is linear in its tangents alone")
    primals = list(operands[:base])
    owners = [i for i, m in enumerate(rules.moving) if m]
    shapes = [primals[i].shape[1:] if flags[i] else primals[i].shape for i in owners]
    given = [ct for ct in cotangents if type(ct) is not ad.Zero]
    if not given:
        return [None] * base + [
            ad.Zero(x.aval) if u else None for x, u in zip(operands[base:], linear[base:], strict=True)
        ]
    if sum(_numbers(shape, primals[i].dtype) for i, shape in zip(owners, shapes, strict=True)) <= FEW:
        pulled = _by_jacobian(rules, cotangents, primals, owners, shapes, parameters)
    else:
        pulled = by_adjoint(rules, cotangents, primals, owners, parameters)
    found: list[Any] = [None] * base
    for place, ct in enumerate(pulled, start=base):
        if not linear[place]:
            found.append(None)
        else:
            found.append(ct if flags[place] or count is None else jnp.sum(ct, axis=0))
    return found


def _by_jacobian(
    rules: Tangents,
    cotangents: Sequence[Any],
    primals: Sequence[Any],
    owners: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    parameters: dict[str, Any],
) -> list[Any]:
    """The Jacobian of each sample, along all its directions at once, times the cotangents."""
    flags, count = parameters["flags"], parameters["count"]
    ends = np.cumsum([_numbers(shape, primals[i].dtype) for i, shape in zip(owners, shapes, strict=True)])
    total = int(ends[-1])
    basis = []
    for i, shape, end in zip(owners, shapes, ends, strict=True):
        unit = jnp.eye(math.prod(shape), dtype=primals[i].dtype)
        if jnp.iscomplexobj(unit):
            unit = jnp.concatenate([unit, 1j * unit])
        block = jnp.zeros((total, unit.shape[1]), unit.dtype).at[end - len(unit) : end].set(unit)
        basis.append(block.reshape(total, *shape))
    wide = (*flags[: len(primals)], *[False] * len(owners))
    jacobian = PRIMITIVE.bind(*primals, *basis, **parameters | {"flags": wide})

    def product(ct: Any, rows: Any) -> Any:
        rows, ct = rows.reshape(total, -1), ct.reshape(ct.shape[0], -1)
        return unless(jnp.any(ct != 0), rows) @ ct.T

    parts = [
        product(ct, rows) if count is None else jax.vmap(product)(ct, rows)
        for ct, rows in zip(cotangents, jacobian, strict=True)
        if type(ct) is not ad.Zero
    ]
    pulled = jnp.swapaxes(sum(parts[1:], parts[0]), -1, -2)
    found = []
    for i, shape, part in zip(owners, shapes, jnp.split(pulled, ends[:-1], axis=-1), strict=True):
        if jnp.iscomplexobj(primals[i]):  # as the transpose of real and imaginary part
            along, across = jnp.split(part, 2, axis=-1)
            part = lax.complex(along, -across)
        found.append(part.reshape(*pulled.shape[:-1], *shape).astype(primals[i].dtype))
    return found


def _numbers(shape: tuple[int, ...], dtype: Any) -> int:
    """Of how many real numbers an array is made."""
    return math.prod(shape) * (2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1)


@functools.lru_cache(maxsize=256)
def _expanded(compute: Any, operands: tuple[Any, ...], parameters: tuple[Any, ...]) -> Any:
    return jax.make_jaxpr(functools.partial(compute, **dict(parameters)))(*operands)


def _expansion(compute: Any) -> Callable[[Any], Any]:
    """What gives the program that an equation stands for, to those who look into programs."""

    def expanded(eqn: Any) -> Any:
        operands = tuple(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
        return _expanded(compute, operands, tuple(sorted(eqn.params.items())))

    return expanded


PRIMITIVE.expanded, ADJOINT.expanded = _expansion(_compute), _expansion(over_the_steps)


for _primitive in (PRIMITIVE, ADJOINT):
    _primitive.is_high = lambda *avals, **parameters: (
        False
    )  # the program is a note; the field is traced where it is used


PRIMITIVE.def_impl(_evaluate)
PRIMITIVE.def_abstract_eval(_abstract)
mlir.register_lowering(PRIMITIVE, mlir.lower_fun(_compute, multiple_results=True))
batching.primitive_batchers[PRIMITIVE] = _batch
ad.primitive_jvps[PRIMITIVE] = _push_forward
ad.primitive_transposes[PRIMITIVE] = _pull_back
