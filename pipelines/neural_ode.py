"""A network as the vector field of an ordinary differential equation, beside the spiral that it is to learn (dimensionless).

    y' = network(y),    against y' = [[-damping, turning], [-turning, -damping]] y

The spiral is y(t) = exp(-damping t) R(turning t) y(0) with the rotation R, clockwise. The network's weights are parameters of the
pipeline: an equinox module, whose parts are swept and differentiated by dotted names.

Source: R. T. Q. Chen, Y. Rubanova, J. Bettencourt and D. Duvenaud, Neural Ordinary Differential Equations, NeurIPS (2018).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ops.ode import Solver, solve


class Path(NamedTuple):
    """Times, the points at them, and the solver's status."""

    t: Float[Array, " time"]
    y: Float[Array, "time 2"]
    status: Any


def network(width: int = 16, depth: int = 1, seed: int = 0) -> eqx.nn.MLP:
    """A perceptron from the plane to the plane with `depth` hidden layers of tanh."""
    return eqx.nn.MLP(2, 2, width, depth, activation=jnp.tanh, key=jax.random.key(seed))


def path(net: Any, start: Any, *, t1: float = 5.0, points: int = 51, solver: Solver = Solver()) -> Path:
    """The solution with the network as vector field, at `points` equal times from 0 to `t1`."""
    ts = jnp.linspace(0.0, t1, points)
    weights, rest = eqx.partition(net, eqx.is_array)
    found = solve(
        lambda t, y, weights: eqx.combine(weights, rest)(y), jnp.asarray(start, float), weights, ts=ts, solver=solver
    )
    return Path(ts, found.y, found.status)


def spiral(t: Any, start: Any, damping: Any, turning: Any) -> Float[Array, "time 2"]:
    """The spiral at the times `t`."""
    start = jnp.asarray(start, float)
    cos, sin = jnp.cos(turning * t), jnp.sin(turning * t)
    turned = jnp.stack([cos * start[0] + sin * start[1], cos * start[1] - sin * start[0]], axis=-1)
    return jnp.exp(-damping * t)[:, None] * turned
