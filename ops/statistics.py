"""Numbers that sum up a trajectory, or an axis of any array: moments, quantiles, extremes, periods, correlations, sensitivity indices.

Times `t` need not be equally spaced: with them, averages are integrals by the trapezoid rule over the time that the trajectory lasts;
without, every entry counts alike. A statistic that does not exist is NaN, never a number: the period of what crosses its level once,
the skewness of a constant. A NaN among the values makes the result NaN.

Derivatives at ties follow the entry that is taken, and it is the first: of two equal maxima, the derivative is that of the first one
alone (`jnp.max` shares it out), and of equal entries in a quantile, that of the one which a stable sort puts there. To the other side
of such a kink the derivative is another; finite differences see it, and `check-grad` tells.

Lyapunov exponents, of flows and of maps, are in `ops.lyapunov`, and here by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ops import safe
from ops.arrays import floats, one_of, times, whole
from ops.lyapunov import Lyapunov as Lyapunov
from ops.lyapunov import lyapunov_flow as lyapunov_flow
from ops.lyapunov import lyapunov_map as lyapunov_map

DIRECTIONS = ("up", "down", "both")
EVENTS = ("up", "down", "peaks")
REFINEMENTS = ("parabola", "none")


class Extreme(NamedTuple):
    """A largest or smallest value, and its time (without times, its place along the axis, counted from 0)."""

    value: jax.Array
    at: jax.Array


class Sensitivity(NamedTuple):
    """Mean and variance of an output, and for each input the parts of the variance that are due to it alone, and to it at all."""

    mean: jax.Array
    variance: jax.Array
    first: jax.Array
    total: jax.Array


def mean(x: Any, t: Any = None, *, axis: int = 0) -> jax.Array:
    """The mean along an axis; with times, the time average.

    >>> float(mean([0.0, 1.0, 1.0], t=[0.0, 1.0, 4.0]))
    0.875
    """
    x = _first_axis(x, axis)
    return jnp.tensordot(_weights(t, len(x)), x, 1)


def variance(x: Any, t: Any = None, *, axis: int = 0, ddof: int = 0) -> jax.Array:
    """The variance along an axis, with `ddof=1` that of a sample; with times, the time average of the squared deviation.

    >>> round(float(variance([1.0, 2.0, 3.0])), 6), float(variance([1.0, 2.0, 3.0], ddof=1))
    (0.666667, 1.0)
    """
    if ddof not in (0, 1) or (ddof and t is not None):
        raise ValueError(f"`ddof` must be 0 or 1, and 0 with times, but is {ddof!r}.")
    x = _first_axis(x, axis)
    if len(x) <= ddof:
        raise ValueError(f"`x` must have more than {ddof} entries along the axis, but has {len(x)}.")
    (second,) = _moments(x, t, 2)
    return second * (len(x) / (len(x) - ddof))


def std(x: Any, t: Any = None, *, axis: int = 0, ddof: int = 0) -> jax.Array:
    """The standard deviation; its derivative is zero for a constant. Arguments as of `variance`."""
    return safe.sqrt(variance(x, t, axis=axis, ddof=ddof))


def skewness(x: Any, t: Any = None, *, axis: int = 0) -> jax.Array:
    """The third moment about the mean in units of the standard deviation; NaN for a constant.

    >>> round(float(skewness([0.0, 0.0, 3.0])), 6)
    0.707107
    """
    x = _first_axis(x, axis)
    second, third = _moments(x, t, 2, 3)
    return third / _unless_constant(second, x) ** 1.5


def kurtosis(x: Any, t: Any = None, *, axis: int = 0) -> jax.Array:
    """The excess kurtosis, which is 0 for a normal distribution; NaN for a constant.

    >>> float(kurtosis([-1.0, 1.0]))
    -2.0
    """
    x = _first_axis(x, axis)
    second, fourth = _moments(x, t, 2, 4)
    return fourth / _unless_constant(second, x) ** 2 - 3


def quantile(x: Any, q: Any, *, axis: int = 0) -> jax.Array:
    """Quantiles along an axis, linear between neighbours as NumPy's; several `q` give a leading axis.

    >>> float(quantile([3.0, 1.0, 2.0, 10.0], 0.5))
    2.5
    """
    levels = floats("q", q)
    inside = (levels >= 0) & (levels <= 1)
    if isinstance(levels, np.ndarray) and not inside.all():
        raise ValueError(f"`q` must be from 0 to 1, but is {q!r}.")
    return jnp.quantile(_first_axis(x, axis), jnp.where(inside, levels, jnp.nan), axis=0)


def maximum(x: Any, t: Any = None, *, axis: int = 0, refine: str = "parabola") -> Extreme:
    """The largest value along an axis, and when.

    Args:
        x: values.
        t: their times.
        axis: of x.
        refine: `parabola` takes the top of the parabola through the largest entry and its two neighbours, which a smooth trajectory
            reaches between two entries; `none` takes the entry. At an end of the axis it is always the entry.

    Returns:
        The value and its time. Where two entries tie for the largest, both are those of the first.

    >>> value, at = maximum([0.0, 3.0, 4.0, 3.0])
    >>> float(value), float(at)
    (4.0, 2.0)
    """
    one_of("refine", refine, REFINEMENTS)
    return Extreme(*_each_column(lambda x, t: _top(x, t, refine), x, t, axis))


def minimum(x: Any, t: Any = None, *, axis: int = 0, refine: str = "parabola") -> Extreme:
    """The smallest value along an axis, and when. Arguments as of `maximum`."""
    value, at = maximum(-floats("x", x), t, axis=axis, refine=refine)
    return Extreme(-value, at)


def amplitude(x: Any, t: Any = None, *, axis: int = 0, refine: str = "parabola") -> jax.Array:
    """Half of what lies between the largest and the smallest value along an axis. Arguments as of `maximum`.

    >>> float(amplitude([0.0, 1.0, 0.0, -3.0, 0.0], refine="none"))
    2.0
    """
    high, low = (f(x, t, axis=axis, refine=refine).value for f in (maximum, minimum))
    return (high - low) / 2


def crossings(x: Any, t: Any = None, *, level: Any = 0.0, direction: str = "up", axis: int = 0) -> jax.Array:
    """The times at which a trajectory crosses a level, by linear interpolation between its entries.

    Args:
        x: values. An entry that equals the level counts as above it.
        t: their times.
        level: a number.
        direction: `up`, `down` or `both`, along the axis.
        axis: of x.

    Returns:
        Times in ascending order, then NaN: one place fewer than entries.

    >>> crossings([-1.0, 1.0, -1.0, 3.0]).tolist()
    [0.5, 2.25, nan]
    """
    one_of("direction", direction, DIRECTIONS)
    found: jax.Array = _each_column(lambda x, t: _crossings(x, t, level, direction), x, t, axis)
    return found


def peaks(x: Any, t: Any = None, *, axis: int = 0) -> jax.Array:
    """The times of the local maxima inside a trajectory, each the top of the parabola through three entries.

    Returns:
        Times in ascending order, then NaN: two places fewer than entries. A flat top counts once, where it begins.

    >>> peaks([0.0, 1.0, 0.0, 1.0, 1.0, 2.0, 0.0, 3.0])[:3].round(3).tolist()
    [1.0, 4.833, nan]
    """
    found: jax.Array = _each_column(_peaks, x, t, axis)
    return found


def period(x: Any, t: Any = None, *, of: str = "up", level: Any = None, axis: int = 0) -> jax.Array:
    """The mean time from one crossing, or peak, to the next.

    Args:
        x: values.
        t: their times.
        of: `up` or `down`, the crossings of `level`, or `peaks`.
        level: a number; left out, the time average.
        axis: of x.

    Returns:
        The period; NaN where there are fewer than two crossings or peaks.

    >>> t = jnp.linspace(0.0, 10.0, 101)
    >>> round(float(period(jnp.cos(2 * jnp.pi * t / 3), t)), 4), float(period(t, t))
    (3.0, nan)
    """
    one_of("of", of, EVENTS)
    if of == "peaks" and level is not None:
        raise ValueError(f"`level` must be left out for peaks, but is {level!r}. Write of: up.")

    if len(_first_axis(x, axis)) < 2:
        raise ValueError("`x` must have at least two entries along the axis, but has one.")

    def one(x: Any, t: Any) -> Any:
        at = mean(x, t) if level is None and of != "peaks" else level
        when = jnp.append(_peaks(x, t) if of == "peaks" else _crossings(x, t, at, of), jnp.nan)
        count = jnp.sum(jnp.isfinite(when))
        last = when[jnp.maximum(count - 1, 0)]
        return jnp.where(count > 1, (last - when[0]) / jnp.maximum(count - 1, 1), jnp.nan)

    found: jax.Array = _each_column(one, x, t, axis)
    return found


def autocovariance(x: Any, lags: int, *, axis: int = 0) -> jax.Array:
    """The covariance of a series with itself `0, 1, ..., lags` entries later, divided by the number of entries.

    The entries must be equally spaced in time.

    >>> autocovariance([1.0, -1.0, 1.0, -1.0], 2).round(6).tolist()
    [1.0, -0.75, 0.5]
    """
    x = _first_axis(x, axis)
    n = len(x)
    lags = whole("lags", lags, 0, n - 1, ", one less than the entries")
    size = 1 << (n + lags - 1).bit_length()  # so long that no end meets the other
    waves = jnp.fft.rfft(x - jnp.mean(x, axis=0), size, axis=0)
    return jnp.fft.irfft(jnp.real(waves * jnp.conj(waves)), size, axis=0)[: lags + 1] / n


def autocorrelation(x: Any, lags: int, *, axis: int = 0) -> jax.Array:
    """The autocovariance in units of the variance; NaN for a constant. Arguments as of `autocovariance`."""
    found = autocovariance(x, lags, axis=axis)
    return found / _unless_constant(found[0], _first_axis(x, axis))


def sobol_indices(f_a: Any, f_b: Any, f_ab: Any) -> Sensitivity:
    """Sobol's indices from samples: of two independent designs a and b, and of a with one input after the other taken from b.

    Args:
        f_a: the output for design a, (n,).
        f_b: the output for design b, (n,).
        f_ab: for each input, the output for a with that input of b, (inputs, n).

    Returns:
        Mean and variance over both designs; the first indices by Saltelli's estimator, the total ones by Jansen's.

    Source: A. Saltelli et al., Comput. Phys. Commun. 181, 259 (2010), table 2, (b) and (f).
    """
    a, b, ab = floats("f_a", f_a), floats("f_b", f_b), floats("f_ab", f_ab)
    if a.ndim != 1 or a.shape != b.shape or ab.shape[1:] != a.shape:
        raise ValueError(
            f"`f_ab` must have a row for each input, each of the shape of f_a and f_b, but has {ab.shape}; they have "
            f"{a.shape} and {b.shape}."
        )
    both = jnp.concatenate([a, b])
    (spread,) = _moments(both, None, 2)
    spread = _unless_constant(spread, both)
    return Sensitivity(
        jnp.mean(both),
        spread,
        jnp.mean(b * (ab - a), axis=1) / spread,
        jnp.mean((a - ab) ** 2, axis=1) / (2 * spread),
    )


def sobol_indices_of_grid(f: Any, weights: Sequence[Any]) -> Sensitivity:
    """Sobol's indices of an output on the grid of a quadrature rule, such as Gauss and Legendre's: exact where the rule is.

    Args:
        f: the output, with an axis for each input.
        weights: for each input the weights of its points, in any scale.

    >>> found = sobol_indices_of_grid([[0.0, 1.0], [2.0, 3.0]], [[1.0, 1.0], [1.0, 1.0]])
    >>> [round(float(s), 6) for s in found.first]
    [0.8, 0.2]
    """
    values = jnp.asarray(floats("f", f))
    rules = [floats(f"weights[{i}]", w) for i, w in enumerate(weights)]
    if values.shape != tuple(w.size for w in rules) or any(w.ndim != 1 for w in rules):
        raise ValueError(
            f"`weights` must hold a list for each axis of f, as long as it, {values.shape}, but are {[w.shape for w in rules]}."
        )
    rules = [w / w.sum() for w in rules]

    def averaged(of: jax.Array, inputs: set[int]) -> jax.Array:
        for i in inputs:
            shape = [-1 if j == i else 1 for j in range(values.ndim)]
            of = jnp.sum(of * rules[i].reshape(shape), axis=i, keepdims=True)
        return of

    every = set(range(values.ndim))
    centre = averaged(values, every)
    deviation = values - centre

    def part(kept: set[int]) -> jax.Array:
        return jnp.squeeze(averaged(averaged(deviation, every - kept) ** 2, every))

    spread = _unless_constant(part(every), values)
    first = jnp.stack([part({i}) for i in sorted(every)]) / spread
    rest = jnp.stack([part(every - {i}) for i in sorted(every)]) / spread
    return Sensitivity(jnp.squeeze(centre), spread, first, 1 - rest)


def _first_axis(x: Any, axis: int) -> jax.Array:
    """The values with the axis in front."""
    values = jnp.asarray(floats("x", x))
    if not values.ndim:
        raise ValueError("`x` must have an axis, but is one number.")
    axis = whole("axis", axis, -values.ndim, values.ndim - 1, f": x has {values.ndim}")
    if not values.shape[axis]:
        raise ValueError("`x` must have at least one entry along the axis, but has none.")
    return jnp.moveaxis(values, axis, 0)


def _weights(t: Any, n: int) -> jax.Array:
    """What each entry counts in an average: alike, or by the trapezoid rule."""
    if t is None:
        return jnp.full(n, 1 / n)
    widths = jnp.abs(jnp.diff(times(t, n)))
    return jnp.convolve(widths, jnp.full(2, 0.5)) / jnp.sum(widths)


def _moments(x: jax.Array, t: Any, *orders: int) -> list[jax.Array]:
    """Moments about the mean, along the first axis."""
    weights = _weights(t, len(x))
    shifted = x - jax.lax.stop_gradient(x[0])  # of a constant exactly zero, which its mean would miss by a rounding
    deviation = shifted - jnp.tensordot(weights, shifted, 1)
    return [jnp.tensordot(weights, deviation**order, 1) for order in orders]


def _unless_constant(spread: jax.Array, x: jax.Array) -> jax.Array:
    """A variance; NaN where it is rounding and nothing else."""
    axes = tuple(range(x.ndim - spread.ndim))
    rounding = 8 * float(np.finfo(x.dtype).eps) * jnp.max(jnp.abs(x), axis=axes)
    return jnp.where(spread > rounding**2, spread, jnp.nan)


def _each_column(function: Callable[[Any, Any], Any], x: Any, t: Any, axis: int) -> Any:
    """A function of one series and its times, applied along an axis."""
    values = _first_axis(x, axis)
    n, rest = values.shape[0], values.shape[1:]
    at = jnp.arange(n, dtype=values.dtype) if t is None else jnp.asarray(times(t, n))
    found = jax.vmap(lambda column: function(column, at), -1, -1)(values.reshape(n, -1))
    return jax.tree_util.tree_map(lambda leaf: leaf.reshape(*leaf.shape[:-1], *rest), found)


def _parabola(x: Any, t: Any, i: Any) -> tuple[jax.Array, jax.Array]:
    """The top of the parabola through entry `i` and its neighbours; the entry itself where they lie on a line."""
    before, after = t[i] - t[i - 1], t[i + 1] - t[i]
    rise, fall = (x[i] - x[i - 1]) / before, (x[i + 1] - x[i]) / after
    slope = (rise * after + fall * before) / (before + after)
    bend = (fall - rise) / (before + after)
    move = safe.divide(-slope, 2 * bend)
    return x[i] + 0.5 * slope * move, t[i] + move


def _top(x: Any, t: Any, refine: str) -> tuple[jax.Array, jax.Array]:
    """The largest value and its time."""
    i = jnp.argmax(x)
    value, at = x[i], t[i]
    if refine == "parabola" and len(x) > 2:
        inside = (i > 0) & (i < len(x) - 1)
        refined = _parabola(x, t, jnp.clip(i, 1, len(x) - 2))
        value, at = (jnp.where(inside, better, plain) for better, plain in zip(refined, (value, at), strict=True))
    return value, jnp.where(jnp.isnan(value), jnp.nan, at)


def _crossings(x: Any, t: Any, level: Any, direction: str) -> jax.Array:
    """The times of crossings of one series."""
    excess = x - level
    above = excess >= 0
    up, down = ~above[:-1] & above[1:], above[:-1] & ~above[1:]
    crosses = {"up": up, "down": down, "both": up | down}[direction]
    part = excess[:-1] / jnp.where(crosses, excess[:-1] - excess[1:], 1.0)
    return _listed(crosses, t[:-1] + jnp.where(crosses, part, 0.0) * jnp.diff(t), excess)


def _peaks(x: Any, t: Any) -> jax.Array:
    """The times of the local maxima of one series."""
    if len(x) < 3:
        return jnp.zeros(0)
    steps = jnp.sign(jnp.diff(x))
    onward = jax.lax.associative_scan(lambda later, step: jnp.where(step == 0, later, step), steps, reverse=True)
    rising, falling = steps[:-1] > 0, onward[1:] < 0
    _, at = jax.vmap(lambda i: _parabola(x, t, i))(jnp.arange(1, len(x) - 1))
    return _listed(rising & falling, at, x)


def _listed(keep: jax.Array, at: jax.Array, values: jax.Array) -> jax.Array:
    """The times to keep in ascending order, then NaN; nothing but NaN if a value is no number."""
    keep = keep & jnp.all(jnp.isfinite(values))
    return jnp.sort(jnp.where(keep, at, jnp.nan))
