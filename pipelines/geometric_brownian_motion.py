"""A European call option on a share whose price follows geometric Brownian motion.

    dS = r S dt + sigma S dW    (Itô)

S is the price of the share, K the strike, both in one currency; r, the riskless rate, per year; sigma, the volatility, per
square root of a year. The discounted payoff exp(-r T) max(S(T) - K, 0) has the option's price as its mean, and its pathwise
derivatives have delta, vega and rho as theirs (dp/dS0, dp/dsigma, dp/dr).

Sources: F. Black and M. Scholes, J. Polit. Econ. 81, 637 (1973); M. Broadie and P. Glasserman, Manage. Sci. 42, 269 (1996), for the
pathwise derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.sde import solve


class Share(NamedTuple):
    """The price at the end, and the solver's status."""

    price: Any
    status: Any


def share(
    spot: Any, rate: Any, volatility: Any, *, key: Any, maturity: float = 1.0, step: float = 0.05, method: str = "auto"
) -> Share:
    """The share's price at `maturity` [year], from `spot` at time 0."""
    found = solve(
        lambda t, s, args: args[0] * s,
        lambda t, s, args: args[1] * s,
        spot,
        (rate, volatility),
        key=key,
        t1=maturity,
        step=step,
        method=method,
    )
    return Share(found.y, found.status)


def call(price: Any, rate: Any, strike: Any, *, maturity: float = 1.0) -> jax.Array:
    """The payoff of the option, discounted to time 0."""
    return jnp.exp(-rate * maturity) * jnp.maximum(price - strike, 0.0)
