"""A European call option on a share whose price follows geometric Brownian motion.

    dS = r S dt + sigma S dW    (Itô)

S is the price of the share, K the strike, both in one currency; r, the riskless rate, per year; sigma, the volatility, per
square root of a year. W is integrated beside the price, dW = 1 dW, so that each path has its exact end,
S(T) = S(0) exp((r - sigma^2 / 2) T + sigma W(T)). Its mean is S(0) exp(r T), its variance S(0)^2 exp(2 r T) (exp(sigma^2 T) - 1).

The discounted payoff exp(-r T) max(S(T) - K, 0) has the option's price as its mean, and its pathwise derivatives have delta, vega and
rho as theirs (dp/dS0, dp/dsigma, dp/dr). For S(0) = K = 100, r = 0.05, sigma = 0.2 and T = 1 the price is 10.450583572185565,
delta 0.6368306511756191, vega 37.52403469169379, rho 53.232481545376345.

Sources: F. Black and M. Scholes, J. Polit. Econ. 81, 637 (1973); M. Broadie and P. Glasserman, Manage. Sci. 42, 269 (1996), for the
pathwise derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ops.sde import solve


class Share(NamedTuple):
    """The price at the end by the solver, by the closed form along the same path, and the solver's status."""

    price: Any
    exact: Any
    status: Any


def share(
    spot: Any, rate: Any, volatility: Any, *, key: Any, maturity: float = 1.0, step: float = 0.05, method: str = "auto"
) -> Share:
    """The share's price at `maturity` [year], from `spot` at time 0, with steps of `step` [year]."""
    found = solve(
        lambda t, y, args: {"price": args[0] * y["price"], "w": 0.0 * y["w"]},
        lambda t, y, args: {"price": args[1] * y["price"], "w": jnp.ones_like(y["w"])},
        {"price": spot, "w": 0.0},
        (rate, volatility),
        key=key,
        t1=maturity,
        step=step,
        method=method,
        noise="scalar",
    )
    exact = spot * jnp.exp((rate - volatility**2 / 2) * maturity + volatility * found.y["w"])
    return Share(found.y["price"], exact, found.status)


def call(price: Any, rate: Any, strike: Any, *, maturity: float = 1.0) -> jax.Array:
    """The payoff of the option, discounted to time 0."""
    return jnp.exp(-rate * maturity) * jnp.maximum(price - strike, 0.0)
