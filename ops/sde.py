"""Stochastic differential equations, solved by diffrax along a Brownian path that the key alone decides.

`solve` follows one path; `jax.vmap` over keys makes an ensemble. The Brownian path depends on nothing but the key: not on the method,
the step size, the end time or the times at which the state is saved. Two step sizes follow the same path, so that strong convergence
can be measured, and a derivative by a parameter is that of the path (pathwise, at fixed noise). The mean of pathwise derivatives is the
derivative of the mean where the output is continuous in the parameter: for a call option, but not for a digital one.

Steps are fixed, not adaptive. A step that is rejected because of the noise in it, and drawn anew, selects among the paths, and several
methods then converge to another process, or to none (J. G. Gaines and T. J. Lyons, SIAM J. Appl. Math. 57, 1455 (1997)): halve the
step and compare along the same path instead. There are no derivatives by time or by step size, no events, no implicit methods for
stiff drifts, no complex states, no backward solves (adjoint backsolve), and no steps that end where a forcing jumps.

Sources: P. E. Kloeden and E. Platen, "Numerical Solution of Stochastic Differential Equations", Springer (1992), for the two calculi and
the orders; J. Foster, G. dos Reis and C. Strange, arXiv:2210.17543, for slow_rk, sea and shark; A. Rössler, SIAM J. Numer. Anal. 48, 922
(2010), for sra1; J. Foster, arXiv:2311.14201, for spark.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import diffrax
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr

from ops.adjoints import current_adjoint
from ops.brownian import RESOLVED, BrownianPath
from ops.methods import VectorField
from ops.ode import (
    FAILED,
    NONFINITE,
    OK,
    Solution,
    Solver,
    _adjoint,
    _as_arrays,
    _check_times,
    _promoted,
    _sound,
    _stacking,
    _status,
    _structure,
    _where,
    _words,
)
from ops.spelling import nearest


class Method(NamedTuple):
    """A diffrax solver, the calculus of the process that it converges to, and the strong orders with which it does."""

    scheme: Any
    calculus: str
    additive: float
    commutative: float | None
    """None here, and below, where it does not converge as it should, and is refused."""
    general: float | None
    weak: float
    """The order of averages, with every noise that it takes."""


METHODS: dict[str, Method] = {
    "euler_maruyama": Method(diffrax.Euler(), "ito", 1.0, 0.5, 0.5, 1.0),
    "ito_milstein": Method(diffrax.ItoMilstein(), "ito", 1.0, 1.0, None, 1.0),
    "euler_heun": Method(diffrax.EulerHeun(), "stratonovich", 1.0, 1.0, 0.5, 1.0),
    "heun": Method(diffrax.Heun(scan_kind="lax"), "stratonovich", 1.0, 1.0, 0.5, 1.0),
    "midpoint": Method(diffrax.Midpoint(scan_kind="lax"), "stratonovich", 1.0, 1.0, 0.5, 1.0),
    "stratonovich_milstein": Method(diffrax.StratonovichMilstein(), "stratonovich", 1.0, 1.0, None, 1.0),
    "slow_rk": Method(diffrax.SlowRK(scan_kind="lax"), "stratonovich", 1.5, 1.5, None, 2.0),
    "spark": Method(diffrax.SPaRK(scan_kind="lax"), "stratonovich", 1.5, 1.0, 0.5, 1.0),
    "general_shark": Method(diffrax.GeneralShARK(scan_kind="lax"), "stratonovich", 1.5, 1.0, 0.5, 1.0),
    "sea": Method(diffrax.SEA(scan_kind="lax"), "stratonovich", 1.0, None, None, 1.0),
    "sra1": Method(diffrax.SRA1(scan_kind="lax"), "stratonovich", 1.5, None, None, 2.0),
    "shark": Method(diffrax.ShARK(scan_kind="lax"), "stratonovich", 1.5, None, None, 2.0),
}
"""The methods by name."""
# scan_kind: diffrax's own default for the loop over the stages of a step has derivatives in reverse mode only.

USUAL = {
    "additive": "shark",
    "commutative ito": "ito_milstein",
    "commutative stratonovich": "slow_rk",
    "general ito": "euler_maruyama",
    "general stratonovich": "general_shark",
}
"""What `method="auto"` takes: the highest strong order."""

CALCULI = ("ito", "stratonovich")
"""How the stochastic integral is read: at the start of each step, or at its middle."""

NOISES = ("diagonal", "scalar", "additive", "commutative", "general")
"""What the diffusion may be."""

MODES = ("forward", "checkpointed", "direct")
"""The adjoints. A stochastic equation is not solved backward."""


def solve(
    drift: VectorField,
    diffusion: VectorField,
    y0: Any,
    args: Any = None,
    *,
    key: Any,
    step: Any,
    t0: Any = 0.0,
    t1: Any = None,
    ts: Any = None,
    method: str = "auto",
    calculus: str = "ito",
    noise: str = "diagonal",
    adjoint: str = "auto",
    checkpoints: int | None = None,
) -> Solution:
    """Integrate `dy = drift(t, y, args) dt + diffusion(t, y, args) dW` from `y(t0) = y0`.

    Steps of one size begin at `t0`. The end, and a saved time between two steps, is reached by a shorter step from the last one
    before it; nothing goes on from a saved time, so that saving changes no path, and a saved state is what a solve that ends there gives.

    Args:
        drift: of time (scalar), state and args; returns the state's structure, as in `ops.ode.solve`.
        diffusion: of the same; what it returns is said by `noise`.
        y0: initial state, any pytree of real arrays.
        args: any pytree, handed to both.
        key: a PRNG key: the path. Another solve with the same key meets the same noise, counted from its own `t0`: go on from where
            a path ended with another key.
        step: the size of the steps. It and the times have no derivatives, since a Brownian path has none.
        t0: start time.
        t1: end time; gives the final state.
        ts: times at which the state is returned, in ascending order; gives leaves with a leading time axis.
        method: a name of `METHODS`; auto takes the one with the highest strong order, see `USUAL`. For many components with noise
            that is not additive, write euler_maruyama: ito_milstein is the default, and its work grows with their cube.
        calculus: ito or stratonovich, how the equation is meant. They differ unless the noise is additive, and a method that would
            converge to the other one's process is refused.
        noise: diagonal: `diffusion` returns the state's structure, and each component has a Brownian motion of its own, and must
            depend on no other component for the orders to hold. scalar: the same, with one Brownian motion for all. general: each
            leaf has one more axis, last, over Brownian motions that all leaves share. commutative: as general, where
            (dg_j/dy) g_k = (dg_k/dy) g_j for all columns, which is taken on trust. additive: as diagonal or as general, and
            independent of the state, which is checked; what is seen to be independent counts as additive by any name.
        adjoint: auto, forward, checkpointed or direct, as in `ops.ode.Solver`.
        checkpoints: as in `ops.ode.Solver`.

    Returns:
        A `Solution`. Where `status` is not 0 its floating-point values are NaN.

    Raises:
        ValueError: a setting, a time or a structure is wrong, or the method would converge to another process.

    >>> path = solve(lambda t, y, a: -y, lambda t, y, a: 0.1, 1.0, key=jax.random.key(0), t1=1.0, step=0.01)
    >>> 0.0 < float(path.y) < 1.0, int(path.steps)
    (True, 100)
    """
    _check_choice("calculus", calculus, CALCULI)
    _check_choice("noise", noise, NOISES)
    _check_choice("method", method, ("auto", *METHODS))
    _check_choice("adjoint", current_adjoint() if adjoint == "auto" else adjoint, ("auto", *MODES))
    key = _checked_key(key)
    _check_times(t0, t1, ts)
    if t1 is not None and ts is not None:
        raise ValueError(
            "`t1` or `ts` must be left out, but both are given. Write the times of the states, the last one at the end."
        )
    y0, args = _as_arrays(y0), _as_arrays(args)
    steps = _steps(t0, t1, ts, step)
    drift, diffusion = _stacking(drift), _stacking(diffusion)
    y0, _ = _promoted(drift, steps.start, y0, args, "drift")
    columns = _columns(jax.eval_shape(diffusion, steps.start, y0, args), y0, noise)
    additive = not _depends_on_state(diffusion, steps.start, y0, args)
    scheme = METHODS[_chosen(method, calculus, noise, additive)].scheme

    state, unravel = ravel_pytree(y0)
    of_time = jnp.asarray(steps.size, state.dtype)
    fixed = y0 if additive else None  # a method for additive noise asks for the diffusion without the state

    # With the step as the unit of time, dy = step drift dk + sqrt(step) diffusion dB: steps begin and end at whole numbers, exactly.
    def flat_drift(k: Any, y: Any, args: Any) -> Any:
        slope = drift(steps.start + k * steps.size, unravel(y), args)
        return of_time * ravel_pytree(slope)[0].astype(y.dtype)

    def flat_diffusion(k: Any, y: Any, args: Any) -> Any:
        found = diffusion(steps.start + k * steps.size, unravel(y) if fixed is None else fixed, args)
        rows = [jnp.reshape(leaf, (-1, columns or 1)) for leaf in jax.tree_util.tree_leaves(found)]
        flat = jnp.sqrt(of_time) * jnp.concatenate(rows).astype(y.dtype)
        return flat if columns else flat[:, 0]

    path = BrownianPath(key, steps.size, columns or state.size, state.dtype)
    terms: Any = diffrax.MultiTerm(diffrax.ODETerm(flat_drift), _Noise(flat_diffusion, path))
    sound = _sound(y0, args, steps.start, steps.times[-1], steps.times)
    reached = jnp.where(sound & steps.possible, steps.reached, 0)
    whole = jnp.floor(reached)
    found = diffrax.diffeqsolve(
        terms,
        scheme,
        jnp.zeros_like(whole[-1]),
        whole[-1],
        jnp.ones_like(whole[-1]),
        state,
        args,
        saveat=diffrax.SaveAt(ts=whole),
        adjoint=_adjoint(Solver(scheme, step=1.0, adjoint=adjoint, checkpoints=checkpoints)),
        max_steps=steps.most,
        throw=False,
    )
    flat: Any = found.ys
    if not steps.even:

        def land(k0: Any, k1: Any, y: Any) -> Any:
            after = scheme.step(terms, k0, k1, y, args, scheme.init(terms, k0, k1, y, args), jnp.array(False))[0]
            return jnp.where(k1 > k0, after, y)

        flat = jax.vmap(land)(whole, reached, flat)
    y = jax.vmap(unravel)(flat)
    if ts is None:
        y = jax.tree_util.tree_map(lambda leaf: leaf[0], y)
    status = jnp.where(sound, jnp.where(steps.possible, _status(found.result, y, None, None), FAILED), NONFINITE)
    count = jnp.ceil(reached[-1]).astype(jnp.int32)
    times = jnp.asarray(steps.times)
    return Solution(times[0] if ts is None else times, _where(status == OK, y, jnp.nan), status, count)


def brownian_path(key: Any, ts: Any, *, t0: Any = 0.0, shape: tuple[int, ...] = ()) -> jax.Array:
    """The Brownian path that drives `solve` with this key, at the times `ts`.

    Args:
        key: the PRNG key.
        ts: times not before `t0`, one or an array of them.
        t0: the start, where the path is 0.
        shape: that of the noise: of the state with diagonal noise, `()` with scalar noise, `(m,)` with m general ones.

    Returns:
        An array with the shape of `ts` and then `shape`.

    >>> key = jax.random.key(0)
    >>> driven = solve(lambda t, y, a: 0.0, lambda t, y, a: 1.0, 0.0, key=key, t1=1.0, step=0.1)
    >>> bool(jnp.allclose(driven.y, brownian_path(key, 1.0)))
    True
    """
    path = BrownianPath(_checked_key(key), 1.0, math.prod(shape), jnp.result_type(float))
    since = jnp.asarray(ts, float) - jnp.asarray(t0, float)
    values: jax.Array = jax.lax.map(path.evaluate, since.ravel())  # vmap would halve every part down to the end
    return values.reshape(*since.shape, *shape)


class _Noise(diffrax.ControlTerm):  # type: ignore[type-arg]
    """The diffusion times the increment: a matrix times a vector, or component by component."""

    def prod(self, vf: Any, control: Any) -> Any:
        return vf @ control if vf.ndim == 2 else vf * control


class _Steps(NamedTuple):
    """The times of a solve, and where they lie, counted in steps."""

    start: Any
    times: Any
    size: Any
    reached: Any
    possible: Any
    """Whether the times ascend by positive steps."""
    most: int
    """How many steps there may be: as many as there are if that is known, since a reverse pass keeps room for them all."""
    even: bool
    """Whether every time is known to lie at the end of a step."""


def _steps(t0: Any, t1: Any, ts: Any, step: Any) -> _Steps:
    """The steps of a solve.

    Raises:
        ValueError: what is known of them makes no sense.
    """
    known = not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves((t0, t1, ts, step)))
    xp: Any = np if known else jnp
    dtype = np.dtype(jnp.result_type(float))
    if step is None or (known and not 0 < float(step) < math.inf):
        raise ValueError(f"`step` must be a positive number, but is {step!r}. Write 0.01, say.")
    start, size, times = (xp.asarray(value, dtype) for value in (t0, step, [t1] if ts is None else ts))
    if not known:
        start, size, times = (_still(*pair) for pair in (("t0", start), ("step", size), ("t1 or ts", times)))
    since = times - start
    reached = xp.round(since / size)
    # A time that only rounding parts from the end of a step is meant to lie there: between them the path would move by its square root.
    rounding = 16 * float(np.finfo(dtype).eps) * xp.maximum(xp.abs(times), xp.abs(start))
    reached = xp.where(xp.abs(since - reached * size) <= rounding, reached, since / size)
    possible = xp.all(xp.diff(since, prepend=0) >= 0) & (size > 0)
    if not known:
        return _Steps(start, times, size, reached, possible, 2**RESOLVED, False)
    if since[-1] < 0:  # an equation read backward in time is another process
        name = "t1" if ts is None else "ts"
        raise ValueError(f"`{name}` must not lie before t0 = {start}, but ends at {times[-1]}. Write a later time.")
    if reached[-1] > 2**RESOLVED:
        least = since[-1] / 2**RESOLVED
        raise ValueError(f"`step` must be at least {least:.2g}, which the Brownian path resolves, but is {step!r}.")
    even = bool((reached == np.floor(reached)).all())
    return _Steps(start, times, size, reached, possible, max(math.floor(reached[-1]), 1), even)


def _still(name: str, value: Any) -> Any:
    """A time, which has no derivative."""
    message = f"`{name}` must not be differentiated: a Brownian path has no derivative by time. Write it as a constant."
    return eqxi.nondifferentiable(value, msg=message)


def _chosen(method: str, calculus: str, noise: str, additive: bool) -> str:
    """The name of a method that converges to the process that is meant.

    Raises:
        ValueError: the one that is asked for does not, or not as it should.
    """
    if noise == "additive" and not additive:
        raise ValueError(
            "`noise` must be diagonal, scalar, commutative or general where the diffusion depends on the state, but is 'additive'. "
            "Write noise: diagonal, say."
        )
    kind = "additive" if additive else "general" if noise == "general" else "commutative"
    usual = USUAL[kind] if additive else USUAL[f"{kind} {calculus}"]
    if method == "auto":
        return usual
    if not additive and METHODS[method].calculus != calculus:  # with additive noise both calculi mean the same
        other = METHODS[method].calculus
        sign = "-" if other == "stratonovich" else "+"
        raise ValueError(
            f"`method` must converge to the process of calculus {calculus!r}, but {method} converges to that of {other!r}. "
            f"Write method: {usual}, or calculus: {other} with the drift f {sign} (dg/dy) g / 2."
        )
    if getattr(METHODS[method], kind) is None:
        needed = "additive" if METHODS[method].commutative is None else "commutative"
        where = "the diffusion depends on the state" if needed == "additive" else "the noise need not commute"
        raise ValueError(
            f"`method` must not be {method} where {where}: it is for {needed} noise. Write method: {usual}."
        )
    return method


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """A setting that is one of a few words."""
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {', '.join(choices)}, but is {value!r}.{nearest(value, choices)}")


def _checked_key(key: Any) -> Any:
    """One PRNG key, in the new form."""
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key
    if isinstance(key, jax.Array | np.ndarray) and key.dtype == jnp.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key))
    found = f"{key.dtype}{list(key.shape)}" if isinstance(key, jax.Array | np.ndarray) else repr(key)
    raise ValueError(f"`key` must be one PRNG key, but is {found}. Write jax.random.key(0), and vmap over several.")


def _columns(slope: Any, y0: Any, noise: str) -> int | None:
    """How many Brownian motions all leaves share, or None where each component has its own.

    Raises:
        ValueError: the diffusion has not the structure that its kind of noise asks for.
    """
    pairs = [*zip(*(jax.tree_util.tree_leaves(tree) for tree in (slope, y0)), strict=False)]
    if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for pair in pairs for leaf in pair):
        raise ValueError(
            "`y0` and `diffusion` must be real, but are complex. Split them into real and imaginary parts."
        )
    alike = _structure(slope) == _structure(y0)
    if alike and noise not in ("commutative", "general") and all(g.shape == y.shape for g, y in pairs):
        return 1 if noise == "scalar" else None
    last = {g.shape[-1] for g, _ in pairs if g.ndim}
    if (
        alike
        and noise in ("commutative", "general", "additive")
        and len(last) == 1
        and all(g.shape == (*y.shape, *last) for g, y in pairs)
    ):
        return int(last.pop())
    matrix = noise in ("commutative", "general")
    wanted = "with one more axis, last, over the Brownian motions" if matrix else "with its shapes"
    hint = " With a matrix write noise: general." if noise == "diagonal" else ""
    hint = " It returned None: is a `return` missing?" if slope is None else hint
    raise ValueError(
        f"`diffusion` must return the structure of y0, {_words(y0)}, {wanted} with noise {noise!r}, but returned "
        f"{_words(slope)}.{hint}"
    )


def _depends_on_state(diffusion: VectorField, start: Any, y0: Any, args: Any) -> bool:
    """Whether the diffusion uses the state's values. `0 * y` does, by the letter; `jnp.ones_like(y)` does not."""
    leaves, structure = jax.tree_util.tree_flatten(y0)

    def of_state(*leaves: Any) -> Any:
        return diffusion(start, jax.tree_util.tree_unflatten(structure, leaves), args)

    traced = jax.make_jaxpr(of_state)(*leaves)
    _, used = dce_jaxpr(traced.jaxpr, [True] * len(traced.out_avals))
    return any(used)
