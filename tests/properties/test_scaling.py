"""Laws of the scaling of variables: there and back, within the bounds to the last bit, with the right slopes."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scaling import Variable, make_scaling

POWERS = st.integers(-15, 15)


def variables(powers: list[int], seed: int) -> list[Variable]:
    """Of magnitudes that are powers of ten apart: some bounded, some on a logarithmic scale, some arrays."""
    random = np.random.default_rng(seed)
    found = []
    for i, power in enumerate(powers):
        shape = [(), (3,), (2, 2)][i % 3]
        start = 10.0**power * random.uniform(0.5, 2.0, shape)
        free = random.random() < 0.3
        lower = np.full(shape, -np.inf) if free else start * random.uniform(0.01, 1.0, shape)
        upper = np.full(shape, np.inf) if free else start * random.uniform(1.0, 1e4, shape)
        found.append(Variable(f"v{i}", start, lower, upper, str(random.choice(["auto", "log", "linear"]))))
    return found


@given(powers=st.lists(POWERS, min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_there_and_back(powers: list[int], seed: int) -> None:
    made = variables(powers, seed)
    scaling = make_scaling(made)
    x = scaling.gathered({v.name: v.start for v in made})
    z = scaling.scaled(x)
    np.testing.assert_allclose(scaling.unscaled(z), x, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(scaling.unscaled(jnp.asarray(z))), scaling.unscaled(z), rtol=1e-14)
    parts = scaling.parted(x)
    for v in made:
        np.testing.assert_array_equal(parts[v.name], v.start)


@given(powers=st.lists(POWERS, min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_values_never_leave_the_bounds(powers: list[int], seed: int) -> None:
    scaling = make_scaling(variables(powers, seed))
    lower, upper = scaling.box
    for end in (lower, upper):
        z = np.where(np.isfinite(end), end, 0.0)
        for nudged in (z, np.nextafter(z, -np.inf), np.nextafter(z, np.inf)):
            x = scaling.unscaled(nudged)
            assert ((x >= scaling.lower) & (x <= scaling.upper)).all()


@given(powers=st.lists(POWERS, min_size=1, max_size=4), seed=st.integers(0, 2**16))
def test_slopes_are_the_derivative(powers: list[int], seed: int) -> None:
    made = variables(powers, seed)
    scaling = make_scaling(made)
    z = jnp.asarray(scaling.scaled(scaling.gathered({v.name: v.start for v in made})))
    open_ended = np.full(scaling.n, np.inf)
    unclipped = replace(scaling, lower=-open_ended, upper=open_ended)
    found = jax.jacfwd(unclipped.unscaled)(z)
    np.testing.assert_allclose(np.diag(found), scaling.slopes(z), rtol=1e-12)


@pytest.mark.parametrize(
    ("start", "bounds", "scale", "size", "logarithmic"),
    [
        (1.5e11, (-np.inf, np.inf), "auto", 1.5e11, False),
        (0.0, (-2.0, 3.0), "auto", 5.0, False),
        (0.0, (0.0, np.inf), "auto", None, False),
        (0.0, (-np.inf, 40.0), "auto", 40.0, False),
        (1.0, (1e-3, 1e3), "auto", 1.0, True),
        (1.0, (1e-3, 0.5e1), "auto", 1.0, True),
        (5.0, (0.0, 10.0), "linear", 1.0, False),
        (5.0, (0.0, np.inf), 1e3, 1e3, False),
        (100.0, (99.0, 101.0), "auto", 2.0, False),
    ],
)
def test_the_size_is_that_of_start_or_bounds(
    start: float, bounds: tuple[float, float], scale: str | float, size: float | None, logarithmic: bool
) -> None:
    variable = Variable("k", np.array(start), np.array(bounds[0]), np.array(bounds[1]), scale)
    assert (variable.size, variable.logarithmic) == (size, logarithmic)
