"""A plate that is heated evenly and cooled on a part of one edge: where to put a dear material that conducts well.

    div(k grad T) + 1 = 0 on the unit square,    k = 0.01 + 0.99 r,    T = 0 on the middle tenth of the left edge, two cells at least,
    no flux elsewhere

r in [0, 1] is the part of the good conductor in each cell, and is paid for: minimize mean(T) + price mean(r). All quantities are
dimensionless. The conductance between cells is the harmonic mean of theirs, which is concave in r, and mean(T) is the maximum over T of
a function that is convex in r: the problem is convex, and f(r) + min over s in [0, 1] of grad f(r) (s - r) is a bound below its optimum.

Sources: A. Bejan, Constructal-theory network of conducting paths for cooling a heat generating volume, Int. J. Heat Mass Transfer 40, 799
(1997); M. P. Bendsoe, O. Sigmund, Topology Optimization (2003), sections 1.2 and 5.1.6.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Plate(NamedTuple):
    """The temperature of each cell, its mean, and the part of the good conductor."""

    temperature: Float[Array, "x y"]
    mean: Any
    material: Any


def even(n: int, part: float) -> Float[Array, "x y"]:
    """The same part of the good conductor in each of n by n cells: a start."""
    return jnp.full((n, n), part)


def conductances(k: Float[Array, "x y"]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Between neighbours along x and along y, and from the left edge: to the sink, at half a cell, or 0."""
    n = k.shape[1]
    middle = (jnp.arange(n) + 0.5) / n
    to_sink = jnp.where(jnp.abs(middle - 0.5) < max(0.05, 0.51 / n), 2.0 * k[0], 0.0)
    along, across = (2 * a * b / (a + b) for a, b in ((k[1:], k[:-1]), (k[:, 1:], k[:, :-1])))
    return along, across, to_sink


def plate(r: Float[Array, "x y"], *, low: float = 0.01, high: float = 1.0) -> Plate:
    """The steady temperatures, by finite volumes and Cholesky's decomposition."""
    n = r.size
    along, across, sink = conductances(low + (high - low) * r)
    number = jnp.arange(n).reshape(r.shape)
    matrix = jnp.zeros((n, n))
    for g, one, two in ((along, number[1:], number[:-1]), (across, number[:, 1:], number[:, :-1])):
        matrix = matrix.at[one, one].add(g).at[two, two].add(g).at[one, two].add(-g).at[two, one].add(-g)
    matrix = matrix.at[number[0], number[0]].add(sink)
    heat = jnp.full(n, 1.0 / n)
    temperature = jax.scipy.linalg.solve(matrix, heat, assume_a="pos")
    return Plate(temperature.reshape(r.shape), jnp.mean(temperature), jnp.mean(r))


def cost(mean: Any, material: Any, price: Any) -> Any:
    """The mean temperature, and what the good conductor costs."""
    return mean + price * material
