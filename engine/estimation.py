"""Residuals and their Jacobian at a least-squares optimum → how well the data determine the parameters.

In: r and dr/dz in scaled variables z, and dx/dz. Out: an `Estimate`, in the units of the variables x. To first order in the noise
of the residuals the estimates are normal with covariance s^2 (J^T J)^-1; s is 1 where standard deviations were given (residuals are then
divided by them) and s^2 = r^T r / (m - n) where they were not.

Sources: G. A. F. Seber and C. J. Wild, Nonlinear Regression (1989), sections 2.1.2 and 5.1; for columns of unit length, R. Brun,
P. Reichert and H. R. Künsch, Practical identifiability analysis of large environmental simulation models, Water Resources Research
37 (2001) 1015.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.axes import Array
from engine.directions import Direction, in_words, simplest
from engine.distributions import chi_square_tail, standard_normal, student_quantile
from engine.errors import listed

NULL = 1e-10
"""A direction whose effect is smaller than this part of the greatest is not determined at all."""

WEAK = 1e-3
"""And below this part it is determined badly."""

IMPROBABLE = 1e-3
"""Probability of residuals as large as these, below which the standard deviations that were given are doubted."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """What data say of n variables. A variable at a bound is held there: its entries are NaN, and those of others are conditional on it."""

    names: tuple[str, ...]
    """Of the variables, with an index for an element of an array."""

    values: Array
    """(n,) in the variables' units."""

    standard_errors: Array
    """(n,) in the variables' units; inf where the data do not determine a variable."""

    lower: Array
    """(n,) lower ends of the confidence intervals."""

    upper: Array
    """(n,) upper ends."""

    covariance: Array
    """(n, n) in products of the variables' units."""

    correlation: Array
    """(n, n) of the estimates, from -1 to 1."""

    confidence: float
    """Of the intervals: Student's t where the residuals gave the variance, else normal."""

    sum_of_squares: float
    """Of the (weighted) residuals."""

    degrees_of_freedom: int
    """Values that are compared, less the variables that are free."""

    residual_deviation: float
    """s: of one residual, in its units, or 1 expected where standard deviations were given."""

    probability: float
    """Of a larger sum of squares, if the model and the given standard deviations are right; NaN without these."""

    condition: float
    """Of the Jacobian in scaled variables, over those that are free."""

    warnings: tuple[str, ...]
    """What the data do not determine, in words."""


def estimate(
    residuals: Array,
    jacobian: Array,
    *,
    values: Array,
    scales: Array,
    names: Sequence[str],
    fixed: Array | None = None,
    known_sigma: bool = False,
    confidence: float = 0.95,
) -> Estimate:
    """Standard errors, intervals, correlation and identifiability at a least-squares optimum.

    Args:
        residuals: (m,) at the optimum; divided by their standard deviations if these are known.
        jacobian: (m, n) of the residuals by the scaled variables.
        values: (n,) the variables in their units.
        scales: (n,) dx/dz at the optimum, never 0.
        names: n names.
        fixed: (n,) whether a variable is at a bound and held there.
        known_sigma: whether standard deviations were given.
        confidence: of the intervals, between 0 and 1.
    """
    r, jac = np.asarray(residuals, float), np.asarray(jacobian, float)
    x, by = np.asarray(values, float), np.asarray(scales, float)
    free = np.ones(len(x), bool) if fixed is None else ~np.asarray(fixed, bool)
    degrees = len(r) - int(free.sum())
    rss = float(r @ r)
    deviation = float(np.sqrt(rss / degrees)) if degrees > 0 else np.nan
    inverse, directions, condition = inverse_of_normal(jac[:, free])
    covariance = np.full((len(x), len(x)), np.nan)
    variance = 1.0 if known_sigma else deviation**2
    covariance[np.ix_(free, free)] = variance * inverse * np.outer(by[free], by[free])
    errors = np.sqrt(np.diag(covariance))
    half = float(quantile(confidence, degrees, known_sigma)) * errors
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = covariance / np.outer(errors, errors)
    probability = chi_square_tail(rss, degrees) if known_sigma and degrees > 0 else np.nan
    told = [Direction(size, expanded(vector, free) * by) for size, vector in directions]
    return Estimate(
        names=tuple(names),
        values=x,
        standard_errors=errors,
        lower=x - half,
        upper=x + half,
        covariance=covariance,
        correlation=np.clip(correlation, -1.0, 1.0),
        confidence=confidence,
        sum_of_squares=rss,
        degrees_of_freedom=degrees,
        residual_deviation=deviation,
        probability=probability,
        condition=condition,
        warnings=tuple(doubts(names, x, free, told, degrees, known_sigma, deviation, probability)),
    )


def inverse_of_normal(jacobian: Array) -> tuple[Array, list[tuple[float, Array]], float]:
    """(J^T J)^-1, the directions that are hardly or not determined with their relative sizes, and the condition number of J.

    An element of the inverse that a direction without any effect takes part in is inf on the diagonal, else NaN.
    """
    n = jacobian.shape[1]
    if n == 0:
        return np.zeros((0, 0)), [], 1.0
    # Columns of unit length, so that what counts as no effect does not depend on the units.
    lengths = np.linalg.norm(jacobian, axis=0)
    silent = lengths == 0
    lengths = np.where(silent, 1.0, lengths)
    # With fewer rows than columns, rows of zeros make the directions that are left over appear.
    padded = np.vstack([jacobian / lengths * ~silent, np.zeros((max(n - len(jacobian), 0), n))])
    _, sizes, vectors = np.linalg.svd(padded, full_matrices=False)
    parts = sizes / sizes[0] if sizes[0] > 0 else sizes
    null = parts <= NULL
    kept = vectors[~null] / sizes[~null, None]
    inverse = kept.T @ kept / np.outer(lengths, lengths)
    lost = (np.abs(vectors[null]) > 1e-6).any(axis=0)
    inverse[lost, :] = np.nan
    inverse[:, lost] = np.nan
    inverse[lost, lost] = np.inf
    directions = [(float(p), v / lengths) for p, v in zip(parts, vectors, strict=True) if p <= WEAK]
    plain = np.linalg.svd(jacobian, compute_uv=False) if len(jacobian) >= n else np.array([1.0, 0.0])
    return inverse, directions, float(plain[0] / plain[-1]) if plain[-1] > 0 else np.inf


def quantile(confidence: float, degrees: int, known_sigma: bool) -> float:
    """Half the width of an interval in standard errors."""
    tail = (1 + confidence) / 2
    if known_sigma:
        return float(standard_normal(np.asarray(tail)))
    return student_quantile(tail, degrees) if degrees > 0 else np.nan


def expanded(vector: Array, free: Array) -> Array:
    """A vector over the free variables, with 0 for those that are held."""
    whole = np.zeros(len(free))
    whole[free] = vector
    return whole


def doubts(
    names: Sequence[str],
    values: Array,
    free: Array,
    directions: Sequence[Direction],
    degrees: int,
    known_sigma: bool,
    deviation: float,
    probability: float,
) -> Iterator[str]:
    """What a reader of the estimate must know."""
    if not free.all():
        held = listed(name for name, at in zip(names, free, strict=True) if not at)
        yield f"{held}: at a bound and held there; the other standard errors take it as known."
    if degrees <= 0 and not known_sigma:
        yield (
            f"There are {degrees + int(free.sum())} values for {int(free.sum())} free variables: nothing is left to estimate the "
            "variance from. Give `sigma`, or measure more."
        )
    for direction in simplest([found for found in directions if found.size <= NULL], values):
        yield in_words(direction, names, values, none=True)
    for direction in directions:
        if direction.size > NULL:
            yield in_words(direction, names, values, none=False)
    if probability < IMPROBABLE:
        yield (
            f"The residuals are {deviation:.3g} times as large as `sigma` says (probability {probability:.1g}): the model misses "
            "something, or `sigma` is too small; the standard errors are too small then."
        )
