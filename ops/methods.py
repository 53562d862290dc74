"""The methods by name, and the settings of a solve.

In: names and numbers, as a config has them. Out: a diffrax solver, its step size controller, and the vector field in the parts that
the method takes.

Sources: Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I and II; each method names its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, get_origin

import diffrax
import jax
import jax.numpy as jnp

from ops.adjoints import ADJOINTS
from ops.newton import with_newton
from ops.rosenbrock import Rodas5P
from ops.spelling import nearest
from ops.steps import FreeSteps

VectorField = Callable[[Any, Any, Any], Any]


class Method(NamedTuple):
    """A numerical method."""

    scheme: type[diffrax.AbstractSolver[Any]]
    """The diffrax solver."""

    order: int
    """The power of a small fixed step with which the error of the result falls."""


METHODS: dict[str, Method] = {
    "euler": Method(diffrax.Euler, 1),
    "heun": Method(diffrax.Heun, 2),
    "midpoint": Method(diffrax.Midpoint, 2),
    "ralston": Method(diffrax.Ralston, 2),
    "bosh3": Method(diffrax.Bosh3, 3),
    "tsit5": Method(diffrax.Tsit5, 5),
    "dopri5": Method(diffrax.Dopri5, 5),
    "dopri8": Method(diffrax.Dopri8, 8),
    "implicit_euler": Method(diffrax.ImplicitEuler, 1),
    "kvaerno3": Method(diffrax.Kvaerno3, 3),
    "kvaerno4": Method(diffrax.Kvaerno4, 4),
    "kvaerno5": Method(diffrax.Kvaerno5, 5),
    "rodas5p": Method(Rodas5P, 5),
    "sil3": Method(diffrax.Sil3, 2),
    "kencarp3": Method(diffrax.KenCarp3, 3),
    "kencarp4": Method(diffrax.KenCarp4, 4),
    "kencarp5": Method(diffrax.KenCarp5, 5),
    "semi_implicit_euler": Method(diffrax.SemiImplicitEuler, 1),
    "leapfrog_midpoint": Method(diffrax.LeapfrogMidpoint, 2),
    "reversible_heun": Method(diffrax.ReversibleHeun, 2),
}
"""Explicit Runge-Kutta methods; implicit ones for stiff problems; ones that take a stiff part implicitly and the rest explicitly;
symplectic, multistep and reversible ones."""

AUTO, STIFFLY = "auto", "kvaerno5"
"""The name of what begins by tsit5, and goes on by a method for stiff problems where it meets one; and that for problems of any size."""

BOUND = 0.9 * 3.5068
"""The step times a negative eigenvalue at which tsit5 is about to be unstable (C. Rackauckas, Q. Nie, DifferentialEquations.jl)."""


@dataclass(frozen=True)
class Split:
    """The vector field `explicit + implicit`: each a function of `(t, y, args)`, the second one stiff.

    >>> Split(lambda t, y, args: 1.0, lambda t, y, args: -3 * y)(0.0, 2.0, None)
    -5.0
    """

    explicit: VectorField
    implicit: VectorField

    def __call__(self, t: Any, y: Any, args: Any) -> Any:
        """The sum."""
        return jax.tree_util.tree_map(lambda a, b: a + b, self.explicit(t, y, args), self.implicit(t, y, args))

    def each(self, change: Callable[[VectorField], VectorField]) -> Split:
        """With both parts changed."""
        return Split(change(self.explicit), change(self.implicit))

    def terms(self) -> Any:
        """For diffrax."""
        return diffrax.MultiTerm(diffrax.ODETerm(self.explicit), diffrax.ODETerm(self.implicit))


@dataclass(frozen=True)
class Separable:
    """The vector field of a state `(q, p)` in which each half moves the other: `q' = velocity(t, p, args)`, `p' = force(t, q, args)`.

    >>> Separable(lambda t, p, args: p, lambda t, q, args: -q)(0.0, (1.0, 2.0), None)
    (2.0, -1.0)
    """

    velocity: VectorField
    force: VectorField

    def __call__(self, t: Any, y: Any, args: Any) -> Any:
        """Both halves."""
        if not isinstance(y, tuple | list) or len(y) != 2:
            raise ValueError(
                f"`y0` must be a pair (q, p) for a separable vector field, but is a {type(y).__name__}. Write (q, p)."
            )
        q, p = y
        return self.velocity(t, p, args), self.force(t, q, args)

    def each(self, change: Callable[[VectorField], VectorField]) -> Separable:
        """With both parts changed."""
        return Separable(change(self.velocity), change(self.force))

    def terms(self) -> Any:
        """For diffrax."""
        return diffrax.ODETerm(self.velocity), diffrax.ODETerm(self.force)


@dataclass(frozen=True)
class Whole:
    """A vector field in one part."""

    field: VectorField

    def __call__(self, t: Any, y: Any, args: Any) -> Any:
        """Its value."""
        return self.field(t, y, args)

    def each(self, change: Callable[[VectorField], VectorField]) -> Whole:
        """Changed."""
        return Whole(change(self.field))

    def terms(self) -> Any:
        """For diffrax."""
        return diffrax.ODETerm(self.field)


def in_parts(vector_field: Any, scheme: diffrax.AbstractSolver[Any]) -> Split | Separable | Whole:
    """A vector field in the parts that a method takes; what is not split is implicit as a whole.

    Raises:
        ValueError: it cannot be had in those parts.
    """
    structure = scheme.term_structure
    name = type(scheme).__name__
    separates, splits = isinstance(structure, tuple), get_origin(structure) is diffrax.MultiTerm
    if isinstance(vector_field, tuple | list):
        if len(vector_field) != 2 or not all(map(callable, vector_field)):
            raise ValueError(
                f"`vector_field` must be a function of (t, y, args), or a pair of them, but is {vector_field!r:.60}."
            )
        if not separates and not splits:
            raise ValueError(
                f"`vector_field` must be one function of (t, y, args) for {name}, but is a pair. Write ops.ode.Split(explicit, "
                "implicit) or ops.ode.Separable(velocity, force), which every method takes."
            )
        vector_field = Separable(*vector_field) if separates else Split(*vector_field)
    if separates and not isinstance(vector_field, Separable):
        raise ValueError(
            f"`vector_field` must be a pair for {name}, q' = velocity(t, p, args) and p' = force(t, q, args), but is not. "
            "Write (velocity, force), or take another method."
        )
    if isinstance(vector_field, Separable) and separates:
        return vector_field
    if splits:
        return vector_field if isinstance(vector_field, Split) else Split(_nothing, vector_field)
    return Whole(vector_field)


def _nothing(t: Any, y: Any, args: Any) -> Any:
    """The vector field of what stays."""
    return jax.tree_util.tree_map(jnp.zeros_like, y)


@dataclass(frozen=True)
class Solver:
    """A method with its settings. Static: frozen, hashes by value, so that equal settings never recompile.

    Raises:
        ValueError: a setting is out of its range; the message names it.

    >>> Solver("dopri8", rtol=1e-9).rtol
    1e-09
    """

    method: Any = "tsit5"
    """A name of `METHODS`; auto, for tsit5 that gives way to rodas5p, or for a large state kvaerno5, where the problem is stiff; or a
    diffrax solver."""

    rtol: float = 1e-6
    """Relative tolerance of one step."""

    atol: float = 1e-9
    """Absolute tolerance of one step, in the units of the state."""

    max_steps: int = 65_536
    """Steps, accepted and rejected, after which a solve gives up."""

    dt0: float | None = None
    """First step size; None for an estimate (Hairer, Norsett, Wanner, Solving ODEs I, II.4)."""

    step: float | None = None
    """A fixed step size; None for adaptive steps. From one jump to the next, equal steps that are no longer, two at least."""

    adjoint: Any = "auto"
    """auto | forward | checkpointed | direct | backsolve, or a diffrax adjoint."""

    checkpoints: int | None = None
    """States that a checkpointed reverse pass keeps at most: fewer take less memory and more time; None for about sqrt(2 max_steps)."""

    dtmin: float | None = None
    """Shortest step: where the error asks for a shorter one, the solve ends with status 4. No such step is accepted as it is."""

    dtmax: float | None = None
    """Longest step."""

    pcoeff: float = 0.0
    """Proportional part of the step size control (Soderlind, ACM Trans. Math. Softw. 29, 2003); 0.4 with icoeff 0.3 is smooth."""

    icoeff: float = 1.0
    """Integral part."""

    dcoeff: float = 0.0
    """Derivative part."""

    factormin: float = 0.2
    """The most that a step size shrinks at once."""

    factormax: float = 10.0
    """The most that it grows."""

    safety: float = 0.9
    """The part of the step size that the error would allow."""

    max_abs: float | None = None
    """A state with a number larger than this ends the solve with status 3; None for no bound."""

    def __post_init__(self) -> None:
        if isinstance(self.method, str) and self.method not in (AUTO, *METHODS):
            raise ValueError(
                f"`solver.method` must be one of {', '.join((AUTO, *METHODS))}, but is {self.method!r}."
                f"{nearest(self.method, (AUTO, *METHODS))}"
            )
        if not isinstance(self.method, str | diffrax.AbstractSolver):
            raise ValueError(f"`solver.method` must be a name or a diffrax solver, but is {self.method!r}.")
        for name in ("rtol", "atol"):
            if not 0 <= _number(getattr(self, name)) < math.inf:
                raise ValueError(
                    f"`solver.{name}` must be a number of at least 0, but is {getattr(self, name)!r}. Write 1e-6, say."
                )
        if self.rtol == 0 and self.atol == 0:
            raise ValueError("`solver.rtol` must be positive where atol is 0, but both are 0. Write rtol: 1e-6, say.")
        for name in ("max_steps", "checkpoints"):
            value: Any = getattr(self, name)
            if value is None and name == "checkpoints":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                also = ", or null" if name == "checkpoints" else ""
                raise ValueError(f"`solver.{name}` must be a positive integer{also}, but is {value!r}. Write 64, say.")
        self._check_adjoint()
        self._check_steps()

    def _check_adjoint(self) -> None:
        """The adjoint must be known, and keep checkpoints where it is told how many."""
        if isinstance(self.adjoint, str) and self.adjoint not in (*ADJOINTS, "auto"):
            raise ValueError(
                f"`solver.adjoint` must be one of auto, {', '.join(ADJOINTS)}, but is {self.adjoint!r}."
                f"{nearest(self.adjoint, (*ADJOINTS, 'auto'))}"
            )
        if self.checkpoints is not None and self.adjoint not in ("auto", "checkpointed"):
            raise ValueError(
                f"`solver.checkpoints` must be null with an adjoint that keeps none, but is {self.checkpoints}, and adjoint is "
                f"{self.adjoint!r}. Write adjoint: checkpointed."
            )

    def _check_steps(self) -> None:
        """Step sizes and their control must make sense; a size may be an array that is not known yet."""
        for name in ("dt0", "step", "dtmin", "dtmax", "max_abs"):
            value = getattr(self, name)
            if isinstance(value, str | bool) or (
                isinstance(value, int | float) and not (math.isfinite(value) and value > 0)
            ):
                raise ValueError(f"`solver.{name}` must be a positive number, or null, but is {value!r}.")
        if self.step is None and not isinstance(self.scheme, diffrax.AbstractAdaptiveSolver):
            name = self.method if isinstance(self.method, str) else type(self.method).__name__
            raise ValueError(
                f"`solver.step` must be given for {name}, which has no error estimate, but is null. Write a step size."
            )
        if self.step is not None and self.method == AUTO:
            raise ValueError(
                f"`solver.step` must be null for auto, which knows a stiff problem by the steps that the error allows, but is "
                f"{self.step!r}. Leave step out, or write a method."
            )
        for name in ("dtmin", "dtmax"):
            if self.step is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"`solver.{name}` must be null with fixed steps, but is {getattr(self, name)!r}. Leave {name} or step out."
                )
        if _number(self.dtmin) > _number(self.dtmax):
            raise ValueError(
                f"`solver.dtmin` must be at most dtmax, {self.dtmax!r}, but is {self.dtmin!r}. Exchange them."
            )
        for name in ("pcoeff", "icoeff", "dcoeff"):
            if not abs(_number(getattr(self, name))) < math.inf:
                raise ValueError(f"`solver.{name}` must be a number, but is {getattr(self, name)!r}. Write 0.3, say.")
        for name, low, high in (("factormin", 0.0, 1.0), ("safety", 0.0, 1.0), ("factormax", 1.0, math.inf)):
            if not low < _number(getattr(self, name)) <= high or getattr(self, name) == math.inf:
                raise ValueError(
                    f"`solver.{name}` must be a number above {low:g}{'' if high == math.inf else f' and at most {high:g}'}, but is "
                    f"{getattr(self, name)!r}."
                )

    @property
    def scheme(self) -> diffrax.AbstractSolver[Any]:
        """The diffrax solver, its root finder tied to the tolerances if it is implicit; of auto the one that it begins with."""
        if not isinstance(self.method, str):
            solver: diffrax.AbstractSolver[Any] = self.method
            return solver
        kind = METHODS["tsit5" if self.method == AUTO else self.method].scheme
        if issubclass(kind, diffrax.AbstractImplicitSolver):
            implicit: diffrax.AbstractSolver[Any] = with_newton(kind, self.rtol, self.atol)
            return implicit
        return kind()

    def adaptive(self, dtmax: Any, norm: Callable[[Any], Any]) -> FreeSteps:
        """The control of adaptive steps, none longer than `dtmax` if that is given."""
        longest = dtmax if self.dtmax is None else self.dtmax if dtmax is None else jnp.minimum(self.dtmax, dtmax)
        return FreeSteps(
            rtol=self.rtol, atol=self.atol, norm=norm, dtmax=longest, pcoeff=self.pcoeff, icoeff=self.icoeff, dcoeff=self.dcoeff,
            factormin=self.factormin, factormax=self.factormax, safety=self.safety,
        )  # fmt: skip


def _number(value: Any) -> float:
    """A number as it is; NaN, which no comparison holds for, if it is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
