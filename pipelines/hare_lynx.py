"""Predator and prey fitted to history: the pelts of hares and lynxes that the Hudson's Bay Company bought from 1900 to 1920.

    hare' = (a - b lynx) hare,    lynx' = (d hare - c) lynx

Populations in thousands of pelts, rates per year; the populations of 1900 are parameters too. At the least sum of squared residuals
over both species, 594.74456, a = 0.481199, b = 0.0248318, c = 0.926018, d = 0.0275329, hare(1900) = 34.9143, lynx(1900) = 3.86187.

Source: the table of stan-dev/example-models, knitr/lotka-volterra/hudson-bay-lynx-hare.csv. No published digits of the optimum are known;
this one is our own, by two independent methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ops.losses import sum_of_squares
from ops.ode import Solver, solve
from pipelines.lotka_volterra import Populations, vector_field

YEARS = np.arange(1900.0, 1921.0)

HARES = "30.0 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22.0 25.4 27.1 40.3 57.0 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
LYNXES = "4.0 6.1 9.8 35.2 59.4 41.7 19.0 13.0 8.3 9.1 7.4 8.0 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
PELTS: Any = Populations(*(np.array(row.split(), float) for row in (HARES, LYNXES)))  # type: ignore[arg-type]
"""Pelts bought in each year, in thousands."""


class History(NamedTuple):
    """Years, the populations in them, and the solver's status."""

    year: Float[Array, " year"]
    y: Populations
    status: Any


def history(a: Any, b: Any, c: Any, d: Any, hare: Any, lynx: Any, *, solver: Solver = Solver()) -> History:
    """The populations in each year, from those of 1900."""
    start = Populations(jnp.asarray(hare, float), jnp.asarray(lynx, float))
    found = solve(vector_field, start, (a, b, c, d), ts=YEARS, t0=YEARS[0], solver=solver)
    return History(jnp.asarray(YEARS), found.y, found.status)


def misfit(y: Populations) -> jax.Array:
    """The sum of the squared residuals, in thousands squared."""
    return sum_of_squares(y, PELTS)
