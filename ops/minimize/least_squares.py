"""Methods for sums of squares, from residuals and their Jacobian; with bounds, by projection of steps of the free variables.

Sources: J. More, The Levenberg-Marquardt algorithm: implementation and theory, in Numerical Analysis, Lecture Notes in Mathematics 630,
Springer (1978), for the scaling; H. B. Nielsen, Damping parameter in Marquardt's method, IMM-REP-1999-05, DTU (1999); C. Kanzow,
N. Yamashita, M. Fukushima, Levenberg-Marquardt methods with strong local convergence properties for solving nonlinear equations with
convex constraints, J. Comput. Appl. Math. 172 (2004) 375-397; J. Nocedal, S. Wright, Numerical Optimization, 2nd ed., Springer (2006),
section 4.1 for the dogleg.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from ops.minimize import descent
from ops.minimize.boxes import clipped, pinned, rounding, towards, unblocked
from ops.minimize.iterates import Iterate

LARGEST = 1e20
"""The largest damping."""


def check_positive(name: str, value: Any, choice: str) -> None:
    """A setting must be a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise ValueError(f"`{name}` must be a positive number, but is {value!r}. {choice} is a good choice.")


def rotated(at: Any) -> tuple[jax.Array, jax.Array]:
    """`R` and `Q^T r` of `J = Q R`: the same sum of squares, of at most n rows, without the square of the condition number."""
    q, r = jnp.linalg.qr(at.jacobian)
    return r, q.T @ at.residuals


def column_norms(jacobian: jax.Array) -> jax.Array:
    """The length of each column, (n,); of a column of zeros, that of the longest, or 1."""
    norms = jnp.linalg.norm(jacobian, axis=0)
    largest = jnp.max(norms)
    return jnp.where(norms > 0, norms, jnp.where(largest > 0, largest, 1.0))


def newton_step(r: jax.Array, target: jax.Array, scale: jax.Array, free: jax.Array) -> jax.Array:
    """The Gauss-Newton step of the free variables, of least length where it is not unique, both in units of `1 / scale`, (n,)."""
    u, s, vt = jnp.linalg.svd(jnp.where(free, r / scale, 0.0), full_matrices=False)
    least = rounding(r) ** (2 / 3) * jnp.max(s, initial=0.0)  # below, a direction is not determined
    inverse = jnp.where(s > least, 1 / jnp.where(s > least, s, 1.0), 0.0)
    return -(vt.T @ (inverse * (u.T @ target)))


@dataclass(frozen=True)
class GaussNewton:
    """Gauss and Newton's method with backtracking: the fastest where the model fits well and the parameters are determined. Static."""

    needs: ClassVar[str] = "residuals"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def init(self, z: jax.Array, first: Any, box: Any) -> descent.State:
        """The state before the first step."""
        return descent.begin(self, z, first, box)

    def step(
        self, state: descent.State, evaluate: Callable[[jax.Array], Any], box: Any
    ) -> tuple[descent.State, Iterate]:
        """One step: one evaluation."""
        return descent.advance(self, state, evaluate, box)

    def empty(self, z: jax.Array, first: Any) -> tuple[()]:
        """It remembers nothing: the Jacobian has the curvature."""
        return ()

    def learned(self, memory: Any, before: Any, after: Any, step: jax.Array, free: jax.Array) -> tuple[()]:
        """Nothing."""
        return ()

    def direction(self, memory: Any, z: jax.Array, at: Any, free: jax.Array) -> jax.Array:
        """The step to the minimum of the linearized residuals."""
        scale = column_norms(at.jacobian)
        return newton_step(*rotated(at), scale, free) / scale


class Control(NamedTuple):
    """How far the next step may go."""

    size: jax.Array
    """The damping of Levenberg and Marquardt, or the radius of the trust region, ()."""

    growth: jax.Array
    """By what the damping is multiplied after a rejection, ()."""

    scale: jax.Array
    """The unit of each variable is 1 over this, (n,): the longest that its column of the Jacobian has been."""


class State(NamedTuple):
    """A search between two steps."""

    z: jax.Array
    """The accepted point, (n,)."""

    at: Any
    """The evaluation there."""

    trial: jax.Array
    """The next point to evaluate, (n,)."""

    control: Control


class Region(Protocol):
    """A region in which the linearized residuals are believed."""

    def control(self, scale: jax.Array) -> Control:
        """At the start."""

    def proposed(
        self, r: jax.Array, target: jax.Array, gradient: jax.Array, control: Control, free: jax.Array
    ) -> jax.Array:
        """The step of the free variables, (n,), from `R`, `Q^T r` and the gradient."""

    def controlled(
        self, control: Control, ratio: jax.Array, accepted: jax.Array, fine: jax.Array, length: jax.Array
    ) -> Control:
        """After a step of a scaled length that achieved `ratio` of the decrease that the model promised."""


def begin(region: Region, z: jax.Array, first: Any, box: Any) -> State:
    """The state before the first step."""
    at = descent.clean(first)
    state = State(z, at, z, region.control(column_norms(at.jacobian)))
    return state._replace(trial=aimed(region, state, box)[0])


def aimed(region: Region, state: State, box: Any) -> tuple[jax.Array, jax.Array]:
    """The next trial from the accepted point, and the step that the region allows, both (n,)."""
    r, target = rotated(state.at)
    gradient, fixed = state.at.gradient, pinned(state.z, state.at.gradient, box)
    step = unblocked(lambda free: region.proposed(r, target, gradient, state.control, free), state.z, fixed, box)
    return towards(state.z, step, gradient, fixed, box), step


def advance(region: Region, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
    """One step: one call of `evaluate`."""
    trial = state.trial
    tried = evaluate(trial)
    known = descent.clean(tried)
    step = trial - state.z
    accepted = tried.fine & descent.descended(state.at, known, step)
    image = state.at.jacobian @ step
    promised = -(state.at.gradient @ step + 0.5 * image @ image)
    ratio = (state.at.value - known.value) / jnp.where(promised > 0, promised, 1.0)
    length = jnp.linalg.norm(state.control.scale * step)
    control = region.controlled(state.control, ratio, accepted, tried.fine, length)
    new = State(
        z=jnp.where(accepted, trial, state.z),
        at=descent.chosen(accepted, known, state.at),
        trial=trial,
        control=control,
    )
    scale = jnp.where(accepted, jnp.maximum(control.scale, column_norms(new.at.jacobian)), control.scale)
    new = new._replace(control=control._replace(scale=scale))
    ahead, allowed = aimed(region, new, box)
    new = new._replace(trial=jnp.where(tried.fine, ahead, clipped(state.z + 0.25 * step, box)))
    stuck = ~accepted & descent.below_rounding(new.z, jnp.where(tried.fine, allowed, 0.25 * step))
    return new, Iterate(new.z, new.at, trial, tried, accepted, stuck)


@dataclass(frozen=True)
class LevenbergMarquardt:
    """Levenberg and Marquardt's method with More's scaling and Nielsen's damping: the first choice for fits. Static."""

    damping: float = 1e-3
    """At the start, as a part of the squared length of each column of the Jacobian."""

    needs: ClassVar[str] = "residuals"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: `damping` is not a positive number.
        """
        check_positive("damping", self.damping, "1e-3")

    def init(self, z: jax.Array, first: Any, box: Any) -> State:
        """The state before the first step."""
        return begin(self, z, first, box)

    def step(self, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        return advance(self, state, evaluate, box)

    def control(self, scale: jax.Array) -> Control:
        """The damping at the start."""
        return Control(jnp.full((), self.damping, scale.dtype), jnp.full((), 2.0, scale.dtype), scale)

    def proposed(
        self, r: jax.Array, target: jax.Array, gradient: jax.Array, control: Control, free: jax.Array
    ) -> jax.Array:
        """The minimum of the model plus the damped square of the scaled step."""
        n = gradient.size
        masked = jnp.where(free, r / control.scale, 0.0)
        rows = jnp.concatenate([masked, jnp.sqrt(control.size) * jnp.eye(n, dtype=r.dtype)])
        q, upper = jnp.linalg.qr(rows)
        right = -(q[: r.shape[0]].T @ target)
        step = jax.scipy.linalg.solve_triangular(upper, right)
        return jnp.where(free, step / control.scale, 0.0)

    def controlled(
        self, control: Control, ratio: jax.Array, accepted: jax.Array, fine: jax.Array, length: jax.Array
    ) -> Control:
        """Nielsen's rule."""
        good = control.size * jnp.clip(1 - (2 * ratio - 1) ** 3, 0.1, 2.0)
        bad = control.size * jnp.where(fine, control.growth, 4.0)
        least = rounding(control.size) ** 2
        size = jnp.clip(jnp.where(accepted, good, bad), least, LARGEST)
        growth = jnp.where(accepted, 2.0, jnp.where(fine, jnp.minimum(2 * control.growth, 1e6), control.growth))
        return Control(size, growth.astype(size.dtype), control.scale)


@dataclass(frozen=True)
class Dogleg:
    """Powell's dogleg between the steepest and the Gauss-Newton step, in a trust region with More's scaling. Static."""

    radius: float = 1.0
    """At the start, in units of the length of a step of 1 in every variable."""

    needs: ClassVar[str] = "residuals"
    bounded: ClassVar[bool] = True
    constrained: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: `radius` is not a positive number.
        """
        check_positive("radius", self.radius, "1.0")

    def init(self, z: jax.Array, first: Any, box: Any) -> State:
        """The state before the first step."""
        return begin(self, z, first, box)

    def step(self, state: State, evaluate: Callable[[jax.Array], Any], box: Any) -> tuple[State, Iterate]:
        """One step: one evaluation."""
        return advance(self, state, evaluate, box)

    def control(self, scale: jax.Array) -> Control:
        """The radius at the start."""
        return Control(self.radius * jnp.linalg.norm(scale), jnp.ones((), scale.dtype), scale)

    def proposed(
        self, r: jax.Array, target: jax.Array, gradient: jax.Array, control: Control, free: jax.Array
    ) -> jax.Array:
        """Along the dogleg as far as the radius."""
        newton = newton_step(r, target, control.scale, free)
        slope = jnp.where(free, gradient / control.scale, 0.0)
        image = r @ (slope / control.scale)
        square = image @ image
        cauchy = -slope * (slope @ slope / jnp.where(square > 0, square, 1.0))
        short, long = jnp.linalg.norm(cauchy), jnp.linalg.norm(newton)
        leg = newton - cauchy
        a, b, c = leg @ leg, cauchy @ leg, short**2 - control.size**2
        part = (-b + jnp.sqrt(jnp.maximum(b**2 - a * c, 0.0))) / jnp.where(a > 0, a, 1.0)
        inside = cauchy + part * leg
        edge = cauchy * (control.size / jnp.where(short > 0, short, 1.0))
        step = jnp.where(long <= control.size, newton, jnp.where(short >= control.size, edge, inside))
        return jnp.where(free, step / control.scale, 0.0)

    def controlled(
        self, control: Control, ratio: jax.Array, accepted: jax.Array, fine: jax.Array, length: jax.Array
    ) -> Control:
        """The radius: a quarter of a step that failed, twice one that did well."""
        grown = jnp.where(ratio > 0.75, jnp.maximum(control.size, 2 * length), control.size)
        kept = jnp.where(ratio < 0.25, 0.5 * length, grown)
        return control._replace(size=jnp.where(accepted, kept, 0.25 * length))
