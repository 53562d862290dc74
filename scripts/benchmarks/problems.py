"""Initial value problems with parameters that differ between samples, and answers that do not come from what is measured:
closed forms, or SciPy at tight tolerances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import gammaln

Array = np.ndarray


@dataclass(frozen=True)
class Problem:
    """dy/dt = field(t, y, p) from y0 at t = 0 to t1, for each row p of parameters."""

    field: Callable[[Any, Any, Any], Any]
    y0: Array
    t1: float
    parameters: Array
    """[samples, parameters]"""

    first_step: float | None = None
    """The size of the first step of all that are compared; None for their own estimates."""


def oscillator(samples: int) -> Problem:
    """x'' + 2 zeta omega x' + omega**2 x = 0 from x = 1, over 0.4 to 64 periods: about 370 steps on average, 2,000 at most."""

    def field(t: Any, y: Any, p: Any) -> Any:
        import jax.numpy as jnp

        x, v = y
        omega, zeta = p
        return jnp.stack([v, -omega * omega * x - 2 * zeta * omega * v])

    rng = np.random.default_rng(0)
    parameters = np.stack([rng.uniform(0.5, 20.0, samples), rng.uniform(0.0, 0.5, samples)], 1)
    return Problem(field, np.array([1.0, 0.0]), 20.0, parameters, first_step=0.01)


def motion(parameters: Array, t: Any) -> Array:
    """The oscillator's x and v, the last axis, at each time."""
    omega, zeta = (p.reshape(-1, *(1,) * np.ndim(t)) for p in parameters.T)
    damped = omega * np.sqrt(1 - zeta**2)
    decay, phase = np.exp(-zeta * omega * t), damped * t
    x = decay * (np.cos(phase) + zeta * omega / damped * np.sin(phase))
    return np.stack([x, -decay * omega**2 / damped * np.sin(phase)], -1)


def lorenz(samples: int) -> Problem:
    """Lorenz's equations with rho from 0 to 21, for a time of 1: about 70 steps at a tolerance of 1e-8.

    Source: the ensembles of U. Utkarsh et al., Comput. Methods Appl. Mech. Eng. 419, 116591 (2024).
    """

    def field(t: Any, y: Any, p: Any) -> Any:
        import jax.numpy as jnp

        return jnp.stack(lorenz_rates(y, p))

    rng = np.random.default_rng(0)
    parameters = np.stack([np.full(samples, 10.0), rng.uniform(0.0, 21.0, samples), np.full(samples, 8 / 3)], 1)
    return Problem(field, np.array([1.0, 0.0, 0.0]), 1.0, parameters)


def lorenz_rates(y: Any, p: Any) -> list[Any]:
    """Lorenz's equations."""
    sigma, rho, beta = p
    return [sigma * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - beta * y[2]]


def lorenz_gradient(problem: Problem, count: int) -> Array:
    """Of the first samples, the gradient of y0 + y1 + y2 at the end by the parameters, from the variational equations."""

    def rates(t: float, state: Array, p: Array) -> Array:
        y, s = state[:3], state[3:].reshape(3, 3)
        jacobian = np.array([[-p[0], p[0], 0], [p[1] - y[2], -1, -y[0]], [y[1], y[0], -p[2]]])
        by_p = np.array([[y[1] - y[0], 0, 0], [0, y[0], 0], [0, 0, -y[2]]])
        return np.concatenate([lorenz_rates(y, p), (jacobian @ s + by_p).ravel()])

    start = np.concatenate([problem.y0, np.zeros(9)])
    return np.stack([tight(rates, start, problem.t1, p)[3:].reshape(3, 3).sum(0) for p in problem.parameters[:count]])


def robertson(samples: int) -> Problem:
    """Robertson's reaction to t = 1e4, with k1 from 1e-3 to 1.

    Source: H. H. Robertson, in J. Walsh (ed.), Numerical Analysis: An Introduction, Academic Press (1966), 178.
    """

    def field(t: Any, y: Any, p: Any) -> Any:
        import jax.numpy as jnp

        return jnp.stack(robertson_rates(y, p[0]))

    rng = np.random.default_rng(0)
    return Problem(field, np.array([1.0, 0.0, 0.0]), 1e4, 10 ** rng.uniform(-3.0, 0.0, (samples, 1)))


def robertson_rates(y: Any, k1: Any) -> list[Any]:
    """Robertson's rates."""
    net, pair = k1 * y[0] - 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return [-net, net - pair, pair]


def robertson_answers(problem: Problem, count: int) -> Array:
    """Of the first samples, by an implicit method at tight tolerances."""
    return np.stack(
        [
            tight(lambda t, y, p: np.array(robertson_rates(y, p[0])), problem.y0, problem.t1, p, "Radau", 1e-11, 1e-16)
            for p in problem.parameters[:count]
        ]
    )


def chain(samples: int, states: int = 50) -> Problem:
    """A chain of first-order reactions of one rate from 0.5 to 5: y_i' = k (y_{i-1} - y_i), from y_0 = 1."""

    def field(t: Any, y: Any, p: Any) -> Any:
        import jax.numpy as jnp

        return p[0] * (jnp.concatenate([jnp.zeros(1), y[:-1]]) - y)

    rng = np.random.default_rng(0)
    return Problem(field, np.eye(states)[0], 10.0, rng.uniform(0.5, 5.0, (samples, 1)))


def chain_answers(problem: Problem) -> Array:
    """Poisson's distribution with the mean k t."""
    i, mean = np.arange(len(problem.y0)), problem.parameters * problem.t1
    return np.exp(-mean + i * np.log(mean) - gammaln(i + 1))


def gray_scott(samples: int, n: int = 64) -> Problem:
    """Two reacting and diffusing substances on n by n points of a periodic square, over the rates of feed and removal.

    Source: J. E. Pearson, Science 261, 189 (1993).
    """
    from ops.pde import Grid, laplacian

    spacing = 2.5 / 256
    grid = Grid([(0.0, n * spacing)] * 2, (n, n), periodic=True)

    def field(t: Any, y: Any, p: Any) -> Any:
        import jax.numpy as jnp

        u, v = y
        feed, kill = p
        reaction = u * v**2
        rates = jnp.stack([feed * (1 - u) - reaction, reaction - (feed + kill) * v])
        return jnp.array([2e-5, 1e-5])[:, None, None] * laplacian(y, grid) + rates

    rng = np.random.default_rng(0)
    inside = np.abs(np.arange(n) - (n - 1) / 2) < n / 8
    square = inside[:, None] & inside[None, :]
    start = np.stack([np.where(square, 0.5, 1.0), np.where(square, 0.25, 0.0)]) * (
        1 + rng.uniform(-0.01, 0.01, (2, n, n))
    )
    parameters = np.stack([rng.uniform(0.03, 0.05, samples), rng.uniform(0.058, 0.064, samples)], 1)
    return Problem(field, start, 50.0, parameters, first_step=0.1)


def gray_scott_answers(problem: Problem, count: int) -> Array:
    """Of the first samples, with the Laplacian written out in NumPy."""
    shape, spacing = problem.y0.shape, 2.5 / 256

    def rates(t: float, state: Array, p: Array) -> Array:
        y = state.reshape(shape)
        around = sum(np.roll(y, shift, axis) for axis in (1, 2) for shift in (1, -1))
        reaction = y[0] * y[1] ** 2
        growth = np.stack([p[0] * (1 - y[0]) - reaction, reaction - (p[0] + p[1]) * y[1]])
        return (np.array([2e-5, 1e-5])[:, None, None] * (around - 4 * y) / spacing**2 + growth).ravel()

    return np.stack(
        [
            tight(rates, problem.y0.ravel(), problem.t1, p, "DOP853", 1e-10, 1e-12).reshape(shape)
            for p in problem.parameters[:count]
        ]
    )


def by_scipy(problem: Problem, rates: Callable[[Any, Any], Any], count: int) -> Array:
    """Of the first samples, the state at the end."""
    return np.stack(
        [tight(lambda t, y, p: np.array(rates(y, p)), problem.y0, problem.t1, p) for p in problem.parameters[:count]]
    )


def tight(
    rates: Any, y0: Array, t1: float, p: Array, method: str = "DOP853", rtol: float = 1e-13, atol: float = 1e-14
) -> Array:
    """The state at the end, of SciPy."""
    found = solve_ivp(rates, (0.0, t1), y0, method, args=(p,), rtol=rtol, atol=atol)
    assert found.success, found.message
    end: Array = found.y[:, -1]
    return end
