"""How far a model is from data: least squares, robust losses, likelihoods, distances of trajectories. Each is a scalar to be minimized.

`model` and `data` are arrays of the same shape, or pytrees of such arrays, which are summed over; a list of equal parts counts as one
array, so that data may stand in a config. Nothing is broadcast between them: (n, 1) against (n,) is refused.

Missing data are NaN, or null in a config. With `missing="refuse"`, the default, they are refused where they are known, and make the
loss NaN where JAX traces them; with `missing="omit"` such an entry adds nothing, neither to the loss nor to its derivatives, and does
not count. Only data can be missing: a model value that is not finite makes the loss so, whether there is data for it or not. No data at
all give NaN.

Every loss has finite derivatives of every order where model and data agree; the norms there have the derivative zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from ops import safe
from ops.arrays import floats, one_of, positive, times
from ops.observations import Pair, count, for_each, pair_up, scales, summed, total


def sum_of_squares(
    model: Any, data: Any, *, sigma: Any = None, covariance: Any = None, missing: str = "refuse"
) -> jax.Array:
    """The sum of squared residuals; with `sigma` or `covariance` chi squared.

    Args:
        model: values of the model.
        data: measured values, of the same shapes.
        sigma: standard deviations of the data, for all, or an array (or a pytree of arrays) for each.
        covariance: the covariance matrix of the entries along the last axis of the data, instead of sigma; entries along other axes
            are independent of each other.
        missing: `refuse` or `omit`. What is left out of the data is left out of the covariance.

    Returns:
        sum ((model - data) / sigma)^2, or r^T covariance^-1 r.

    Raises:
        ValueError: the shapes differ, data are missing and `missing` is `refuse`, or an argument is out of its range.

    >>> float(sum_of_squares([1.0, 2.0, 5.0], [1.0, 4.0, float("nan")], sigma=2.0, missing="omit"))
    1.0
    """
    pairs = pair_up(model, data, missing)
    if covariance is None:
        return _weighted(pairs, jnp.square, sigma)
    if sigma is not None:
        raise ValueError("`sigma` must be left out where `covariance` is given, but both are. Scale the covariance.")
    return total(pairs, [pair.correlated(covariance) for pair in pairs])


def mean_square(model: Any, data: Any, *, sigma: Any = None, missing: str = "refuse") -> jax.Array:
    """The mean of the squared residuals, over the entries that there are. Arguments as of `sum_of_squares`.

    >>> float(mean_square([1.0, 2.0, 5.0], [1.0, 4.0, float("nan")], missing="omit"))
    2.0
    """
    pairs = pair_up(model, data, missing)
    return _weighted(pairs, jnp.square, sigma) / count(pairs)


def root_mean_square(model: Any, data: Any, *, sigma: Any = None, missing: str = "refuse") -> jax.Array:
    """The square root of `mean_square`; its derivative is zero where every residual is.

    >>> import jax
    >>> float(root_mean_square([1.0, 2.0], [1.0, 4.0])) ** 2
    2.0000000000000004
    >>> jax.grad(root_mean_square)(jnp.ones(2), jnp.ones(2)).tolist()
    [0.0, 0.0]
    """
    return safe.sqrt(mean_square(model, data, sigma=sigma, missing=missing))


def robust(
    model: Any, data: Any, *, loss: str = "huber", scale: Any = 1.0, sigma: Any = None, missing: str = "refuse"
) -> jax.Array:
    """A loss that large residuals pull on less, named and scaled as by `scipy.optimize.least_squares`.

    Args:
        model: values of the model.
        data: measured values, of the same shapes.
        loss: `linear` z | `soft_l1` 2 (sqrt(1 + z) - 1) | `huber` z up to 1, then 2 sqrt(z) - 1 | `cauchy` log(1 + z) | `arctan` |
            `tukey`, the biweight (1 - (1 - z)^3) / 3 up to 1, then 1 / 3, which SciPy does not have.
        scale: SciPy's `f_scale`, the residual (in units of sigma) at which the loss begins to bend.
        sigma: standard deviations of the data, as of `sum_of_squares`.
        missing: `refuse` or `omit`.

    Returns:
        sum 1/2 scale^2 rho((r / scale)^2): half the sum of squares where residuals are small. `huber` and `tukey` are continuous in
        their first derivative, not in their second.

    >>> float(robust([0.5, 3.0], [0.0, 0.0], loss="huber"))
    2.625
    """
    one_of("loss", loss, ROBUST)
    width, rho = positive("scale", scale), ROBUST[loss]
    return _weighted(pair_up(model, data, missing), lambda r: 0.5 * width**2 * rho((r / width) ** 2), sigma)


def normal(model: Any, data: Any, *, sigma: Any, missing: str = "refuse") -> jax.Array:
    """The negative log-likelihood of data that are normal about the model. `sigma` may be a parameter that is found with the others.

    >>> round(float(normal([1.0], [2.0], sigma=2.0)), 6)
    1.737086
    """

    def term(model: Any, data: Any, sigma: Any) -> Any:
        return 0.5 * ((model - data) / sigma) ** 2 + jnp.log(sigma) + 0.5 * np.log(2 * np.pi)

    pairs = pair_up(model, data, missing)
    return summed(pairs, term, scales("sigma", sigma, pairs))


def student_t(model: Any, data: Any, *, scale: Any, df: Any, missing: str = "refuse") -> jax.Array:
    """The negative log-likelihood of data about the model by Student's t distribution of a scale and `df` degrees of freedom.

    >>> round(float(student_t([0.0], [1.0], scale=1.0, df=1.0)), 6)
    1.837877
    """

    def term(model: Any, data: Any, scale: Any, df: Any) -> Any:
        heavy = 0.5 * (df + 1) * jnp.log1p(((model - data) / scale) ** 2 / df)
        return heavy + jnp.log(scale) + 0.5 * jnp.log(np.pi * df) + gammaln(0.5 * df) - gammaln(0.5 * (df + 1))

    pairs = pair_up(model, data, missing)
    return summed(pairs, term, scales("scale", scale, pairs), scales("df", df, pairs))


def log_normal(model: Any, data: Any, *, sigma: Any, missing: str = "refuse") -> jax.Array:
    """The negative log-likelihood of positive data whose logarithm is normal about the logarithm of the model, which is their median.

    NaN where the model is negative, infinite where it is zero.

    >>> round(float(log_normal([1.0], [2.0], sigma=0.5)), 6)
    1.879845
    """

    def term(model: Any, data: Any, sigma: Any) -> Any:
        return 0.5 * ((jnp.log(model) - jnp.log(data)) / sigma) ** 2 + jnp.log(sigma * data) + 0.5 * np.log(2 * np.pi)

    pairs = pair_up(model, data, missing)
    _check(pairs, lambda data: data > 0, "positive for log_normal")
    return summed(pairs, term, scales("sigma", sigma, pairs))


def poisson(model: Any, data: Any, *, missing: str = "refuse") -> jax.Array:
    """The negative log-likelihood of counts whose expected values are the model.

    Where the model is zero it is zero for a count of zero, and infinite for any other; where the model is negative it is NaN.

    >>> round(float(poisson([2.0], [3])), 6)
    1.712318
    """

    def term(rate: Any, count: Any) -> Any:
        possible = jnp.where(rate >= 0, rate, jnp.nan)
        return _impossible(count, jnp.inf) + possible - _times_log(count, rate) + gammaln(count + 1)

    pairs = pair_up(model, data, missing)
    _check(pairs, _is_count, "counts for poisson, integers of at least 0")
    return summed(pairs, term)


def binomial(model: Any, data: Any, *, trials: Any, missing: str = "refuse") -> jax.Array:
    """The negative log-likelihood of successes out of `trials`, whose probabilities are the model. NaN outside 0 to 1.

    >>> round(float(binomial([0.5], [1], trials=2)), 6)
    0.693147
    """

    def term(p: Any, count: Any, trials: Any) -> Any:
        possible = jnp.where((p >= 0) & (p <= 1), 0.0, jnp.nan)
        ways = gammaln(trials + 1) - gammaln(count + 1) - gammaln(trials - count + 1)
        others = _times_log(trials - count, 1 - p)
        return possible + _impossible(count, trials) - ways - _times_log(count, p) - others

    pairs = pair_up(model, data, missing)
    _check(pairs, _is_count, "counts for binomial, integers of at least 0")
    most = for_each("trials", trials, pairs)
    for pair, each in zip(pairs, most, strict=True):
        pair.check(lambda data, each: data <= each, "at most trials", each)
    return summed(pairs, term, most)


def l2_distance(model: Any, data: Any, t: Any, *, squared: bool = False, missing: str = "refuse") -> jax.Array:
    """The distance of two trajectories, sqrt(integral |model - data|^2 dt), by the trapezoid rule over their common times.

    Args:
        model: values with a leading time axis; other axes, and the leaves of a pytree, are components.
        data: the other trajectory, of the same shapes.
        t: the times, strictly ascending or descending.
        squared: return the integral itself.
        missing: with `omit`, a component is integrated over the intervals both of whose ends are there.

    Returns:
        The distance; its derivative is zero where the trajectories agree.

    >>> t = jnp.linspace(0.0, 4.0, 9)
    >>> float(l2_distance(3.0 + t, t, t))
    6.0
    """
    pairs = pair_up(model, data, missing)
    integral, intervals = jnp.zeros(()), jnp.zeros((), int)
    for pair in pairs:
        squares = jnp.atleast_1d(pair.terms(lambda model, data: (model - data) ** 2))
        widths = jnp.abs(jnp.diff(times(t, len(squares)))).reshape(-1, *(1,) * (squares.ndim - 1))
        whole = pair.present[1:] & pair.present[:-1]
        areas = jnp.where(whole, 0.5 * widths * (squares[1:] + squares[:-1]), 0.0)
        integral += jnp.sum(areas) + jnp.sum(
            0.0 * squares
        )  # the model's values at the ends left out, if they are no numbers
        intervals += jnp.sum(whole)
    integral = jnp.where(intervals > 0, integral, jnp.nan)
    return integral if squared else safe.sqrt(integral)


def soft_dtw(first: Any, second: Any, *, gamma: float = 1.0, divergence: bool = False) -> jax.Array:
    """The distance of two sequences that may run at different speeds: dynamic time warping with a soft minimum.

    Args:
        first: (n,) or (n, components).
        second: (m,) or (m, components), finite like the first: there is no sequence with gaps.
        gamma: the softness, in units of the squared distance; the smaller, the closer to dynamic time warping itself.
        divergence: subtract half of what each sequence has from itself, so that the result is never negative, and zero for equal
            sequences only; the plain value may be negative.

    Returns:
        -gamma log sum exp(-cost / gamma) over all monotone alignments, each costing the sum of its squared distances.

    Source: M. Cuturi and M. Blondel, Soft-DTW, ICML (2017); M. Blondel, A. Mensch and J.-P. Vert, AISTATS (2021), for the divergence.

    >>> round(float(soft_dtw([0.0, 1.0, 1.0, 2.0], [0.0, 1.0, 2.0], gamma=1e-3)), 6)
    0.0
    """
    softness = positive("gamma", gamma)
    x, y = _sequence("first", first), _sequence("second", second)
    if x.shape[1:] != y.shape[1:]:
        raise ValueError(f"`second` must have the components of first, {x.shape[1:]}, but has {y.shape[1:]}.")
    between = _alignments(x, y, softness)
    return between - 0.5 * (_alignments(x, x, softness) + _alignments(y, y, softness)) if divergence else between


def _alignments(x: jax.Array, y: jax.Array, gamma: Any) -> jax.Array:
    """The soft minimum over alignments. One antidiagonal after the other: its entries do not depend on each other."""
    n, m = len(x), len(y)
    costs = jnp.sum((x[:, None] - y[None, :]) ** 2, axis=-1)
    rows = np.arange(n)
    columns = np.arange(n + m - 1)[:, None] - rows  # of each antidiagonal
    inside = (columns >= 0) & (columns < m)
    skewed = jnp.where(inside, costs[rows, np.clip(columns, 0, m - 1)], 0.0)

    def shifted(diagonal: Any) -> Any:
        return jnp.concatenate([jnp.full(1, jnp.inf), diagonal[:-1]])

    def soft_minimum(options: Any) -> Any:
        reached = jnp.isfinite(options)
        least = jax.lax.stop_gradient(jnp.min(options, axis=0))
        least = jnp.where(jnp.isfinite(least), least, 0.0)
        powers = jnp.where(reached, jnp.exp(-(jnp.where(reached, options, 0.0) - least) / gamma), 0.0)
        total = jnp.sum(powers, axis=0)
        return jnp.where(total > 0, least - gamma * jnp.log(jnp.where(total > 0, total, 1.0)), jnp.inf)

    def step(last_two: Any, row: Any) -> Any:
        before, last = last_two
        cost, within, first = row
        reached = soft_minimum(jnp.stack([shifted(before), shifted(last), last]))
        new = jnp.where(within, cost + jnp.where(first, 0.0, reached), jnp.inf)
        return (last, new), None

    nowhere = jnp.full(n, jnp.inf, costs.dtype)
    start = np.zeros((n + m - 1, n), bool)
    start[0, 0] = True
    (_, end), _ = jax.lax.scan(step, (nowhere, nowhere), (skewed, inside, start))
    return end[-1] + 0.0 * jnp.sum(costs)  # a value that is no number shows, on the way or not


def _huber(z: Any) -> Any:
    return jnp.where(z <= 1, z, 2 * jnp.sqrt(jnp.where(z <= 1, 1, z)) - 1)


def _tukey(z: Any) -> Any:
    return (1 - (1 - jnp.minimum(z, 1)) ** 3) / 3


ROBUST: dict[str, Callable[[Any], Any]] = {
    "linear": lambda z: z,
    "soft_l1": lambda z: 2 * z / (1 + jnp.sqrt(1 + z)),  # without the cancellation of 2 (sqrt(1 + z) - 1)
    "huber": _huber,
    "cauchy": jnp.log1p,
    "arctan": jnp.arctan,
    "tukey": _tukey,
}
"""Functions of the squared residual, in units of the scale, with the slope 1 at zero."""


def _weighted(pairs: list[Pair], term: Callable[[Any], Any], sigma: Any) -> jax.Array:
    """The sum of a term of the residuals in units of sigma."""
    widths = scales("sigma", 1.0 if sigma is None else sigma, pairs)
    return summed(pairs, lambda model, data, width: term((model - data) / width), widths)


def _check(pairs: list[Pair], right: Callable[[Any], Any], words: str) -> None:
    """Data that are known must be possible."""
    for pair in pairs:
        pair.check(right, words)


def _is_count(data: Any) -> Any:
    """Whether data are integers of at least 0."""
    return (data >= 0) & (data == np.round(data))


def _impossible(data: Any, most: Any) -> Any:
    """Infinite for what cannot be a count."""
    return jnp.where((data >= 0) & (data == jnp.round(data)) & (data <= most), 0.0, jnp.inf)


def _times_log(data: Any, x: Any) -> Any:
    """The count times log(x), which is 0 for a count of 0 at x = 0 too, with its derivatives by x."""
    return jnp.where(data == 0, 0.0, data * jnp.log(jnp.where(data == 0, 1.0, x)))


def _sequence(name: str, value: Any) -> Any:
    """A sequence of vectors."""
    array = floats(name, value)
    if array.ndim not in (1, 2) or not array.shape[0]:
        raise ValueError(f"`{name}` must be a sequence of numbers or of vectors, but has the shape {array.shape}.")
    return array if array.ndim == 2 else array[:, None]
