"""What a search and the function that it minimizes tell each other: tuples of arrays.

Everything is in scaled variables z of shape (n,). A search is a loop of steps, each with exactly one evaluation, so that searches that
run side by side (under `vmap`) share one compiled simulation and none waits for another's line search.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Evaluation(NamedTuple):
    """What is known at one point z of shape (n,), in scaled variables."""

    value: Any
    """The objective, ()."""

    gradient: Any
    """Its gradient, (n,)."""

    residuals: Any
    """The residuals, (m,); m may be 0. With m > 0 the value is half the sum of their squares."""

    jacobian: Any
    """Their Jacobian, (m, n)."""

    constraints: Any
    """The constrained outputs, (k,); k may be 0. Feasible where `low <= constraints <= high`."""

    constraint_jacobian: Any
    """Their Jacobian, (k, n)."""

    fine: Any
    """Whether everything above is finite and no stage failed, (); if not, the numbers may be NaN."""


class Box(NamedTuple):
    """The limits of a search; infinite where there is none."""

    lower: Any
    """Least scaled variables, (n,)."""

    upper: Any
    """Largest scaled variables, (n,)."""

    low: Any
    """Least constrained outputs, (k,)."""

    high: Any
    """Largest constrained outputs, (k,); equal to `low` for an equality."""


class Iterate(NamedTuple):
    """What one step of a search did."""

    z: Any
    """The point that is now accepted, (n,): never one whose evaluation was not fine."""

    evaluation: Any
    """The `Evaluation` there."""

    trial: Any
    """The point that the step evaluated, (n,)."""

    tried: Any
    """The `Evaluation` there."""

    accepted: Any
    """Whether `z` is now the trial, ()."""

    stalled: Any
    """Whether the method can make no more progress, (): its steps are below rounding."""
