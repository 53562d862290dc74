"""Averages over 10,000 paths of stochastic differential equations, with their standard errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.adjoints import default_adjoint
from ops.sde import solve
from pipelines.geometric_brownian_motion import call, share
from pipelines.ornstein_uhlenbeck import velocity
from tests.reference.answers import Answer

PATHS = 10_000


def of(ensemble: Any, seed: int) -> Any:
    """A function of a key, for each of so many keys."""
    return jax.tree_util.tree_map(
        np.asarray, jax.jit(jax.vmap(ensemble))(jax.random.split(jax.random.key(seed), PATHS))
    )


def averages(**samples: Any) -> Answer:
    """Means and their standard errors."""
    return Answer(
        {name: float(x.mean()) for name, x in samples.items()},
        errors={name: float(x.std(ddof=1)) / len(x) ** 0.5 for name, x in samples.items()},
    )


def squares(x: Any, y: Any) -> Any:
    """Samples whose mean is the covariance of two."""
    return (x - x.mean()) * (y - y.mean())


def sde_ou() -> Answer:
    """dX = -1.5 X dt + 0.6 dW from 2; the stationary variance at t = 3, where it has come within 2e-4 of it."""
    early, middle, late = of(lambda key: velocity(1.5, 0.6, 2.0, key=key, points=16).v[jnp.array([2, 5, 15])], 1).T
    return averages(mean=middle, var=squares(middle, middle), cov=squares(early, middle), var_inf=squares(late, late))


def sde_gbm_moments() -> Answer:
    """dX = 0.5 X dt + 0.4 X dW from 1.

    By Itô's reading the method has weak order 1, and the error of a mean is as large as its standard error; twice the average with
    half the step less that with the whole step is of order 2 (D. Talay and L. Tubaro, Stoch. Anal. Appl. 8, 483 (1990)).
    """

    def end(step: Any, calculus: str) -> Any:
        drift, diffusion = lambda t, x, _: 0.5 * x, lambda t, x, _: 0.4 * x
        return of(lambda key: solve(drift, diffusion, 1.0, key=key, t1=1.0, step=step, calculus=calculus).y, 2)

    whole, half, stratonovich = end(0.1, "ito"), end(0.05, "ito"), end(0.1, "stratonovich")
    extrapolated = lambda f: 2 * f(half) - f(whole)  # noqa: E731
    mean, mean_log = extrapolated(lambda x: x), extrapolated(np.log)
    # The variance as the mean of x^2 - 2 m x + m^2: its standard error is that of these samples.
    var = extrapolated(lambda x: (x - mean.mean()) ** 2)
    var_log = extrapolated(lambda x: (np.log(x) - mean_log.mean()) ** 2)
    return averages(mean=mean, var=var, mean_log=mean_log, var_log=var_log, mean_stratonovich=stratonovich)


def sde_black_scholes() -> Answer:
    """A call option with its pathwise derivatives by the spot price, the volatility and the rate."""

    def payoff(market: Any, key: Any) -> Any:
        spot, volatility, rate = market
        paid = call(share(spot, rate, volatility, key=key).price, rate, 100.0)
        return paid, paid

    with default_adjoint("forward"):
        greeks, price = of(lambda key: jax.jacfwd(payoff, has_aux=True)((100.0, 0.2, 0.05), key), 3)
    return averages(price=price, delta=greeks[0], vega=greeks[1], rho=greeks[2])
