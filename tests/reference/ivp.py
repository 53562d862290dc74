"""Initial value problems: stiff ones by Kvaerno's method of order 5, the others by Dormand and Prince's of order 8."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ops.ode import solve
from pipelines import arenstorf, hires, kepler, lorenz, oregonator, robertson, van_der_pol
from tests.reference.answers import Answer

LONG = 1_000_000


def solved(field: Any, y0: Any, args: Any, t1: float, names: str, **settings: Any) -> Answer:
    """The state at `t1`, of which the parts that are named."""
    found = jax.jit(lambda: solve(field, y0, args, t1=t1, max_steps=LONG, **settings))()
    assert int(found.status) == 0, f"status {found.status} after {found.steps} steps"
    state = np.concatenate([np.atleast_1d(part) for part in jax.tree_util.tree_leaves(found.y)])
    values = {name: float(part) for name, part in zip(names.split(), state, strict=True) if name != "-"}
    return Answer(values, tolerance=settings["rtol"], steps=int(found.steps))


def ivp_robertson_1e11() -> Answer:
    start = robertson.Concentrations(1.0, 0.0, 0.0)
    stiff = {"method": "kvaerno5", "rtol": 1e-11, "atol": 1e-22}
    return solved(robertson.vector_field, start, (0.04, 3e7, 1e4), 1e11, "y1 y2 y3", **stiff)


def ivp_robertson_40() -> Answer:
    start = robertson.Concentrations(1.0, 0.0, 0.0)
    stiff = {"method": "kvaerno5", "rtol": 1e-12, "atol": 1e-18}
    return solved(robertson.vector_field, start, (0.04, 3e7, 1e4), 40.0, "y1 y2 y3", **stiff)


def ivp_hires() -> Answer:
    names = "y1 y2 y3 y4 y5 y6 y7 y8"
    stiff = {"method": "kvaerno5", "rtol": 1e-12, "atol": 1e-16}
    return solved(hires.vector_field, jnp.array(hires.START), (0.0007, 280.0), 321.8122, names, **stiff)


def ivp_vdpol_eps1e_6() -> Answer:
    start = van_der_pol.State(2.0, 0.0)
    return solved(van_der_pol.vector_field, start, 1e-6, 2.0, "y1 y2", method="kvaerno5", rtol=1e-12, atol=1e-14)


def ivp_oregonator() -> Answer:
    start = oregonator.Species(1.0, 2.0, 3.0)
    stiff = {"method": "kvaerno5", "rtol": 1e-11, "atol": 1e-13}
    return solved(oregonator.vector_field, start, (77.27, 8.375e-6, 0.161), 360.0, "y1 y2 y3", **stiff)


def dae_chemakzo() -> Answer:
    """Of the sixth species there is an equilibrium instead of a rate."""

    def field(t: Any, y: Any, args: Any) -> list[Any]:
        r1, r2, r3 = 18.7 * y[0] ** 4 * jnp.sqrt(y[1]), 0.58 * y[2] * y[3], 0.58 / 34.4 * y[0] * y[4]
        r4, r5 = 0.09 * y[0] * y[3] ** 2, 0.42 * y[5] ** 2 * jnp.sqrt(y[1])
        inflow = 3.3 * (0.9 / 737 - y[1])
        rates = [-2 * r1 + r2 - r3 - r4, -0.5 * r1 - r4 - 0.5 * r5 + inflow, r1 - r2 + r3, -r2 + r3 - 2 * r4]
        return [*rates, r2 - r3 + r5, 115.83 * y[0] * y[3] - y[5]]

    start = jnp.array([0.444, 0.00123, 0.0, 0.007, 0.0, 0.0])  # the last one is found
    fine = {"method": "rodas5p", "rtol": 1e-11, "atol": 1e-14}
    return solved(field, start, None, 180.0, "y1 y2 y3 y4 y5 y6", mass_matrix=[1.0] * 5 + [0.0], **fine)


def ivp_beam() -> Answer:
    """Imaginary eigenvalues up to 6400i, which an explicit method of high order resolves; the force ends at pi."""
    n = 40
    inner = jnp.ones(n - 1)
    ends = jnp.full(n, 2.0).at[0].set(1.0).at[-1].set(3.0)

    def field(t: Any, y: Any, args: Any) -> Any:
        angle, rate = y[:n], y[n:]
        force = jnp.where(t < jnp.pi, 1.5 * jnp.sin(t) ** 2, 0.0)
        before = jnp.concatenate(
            [-angle[:1], angle[:-1]]
        )  # clamped: the angle at the wall is zero between -angle and angle
        after = jnp.concatenate([angle[1:], angle[-1:]])
        v = n**4 * (before - 2 * angle + after) + n**2 * force * (jnp.cos(angle) + jnp.sin(angle))
        between = jnp.diff(angle)
        cosine, sine = jnp.cos(between) * inner, jnp.sin(between)
        low, high = jnp.concatenate([jnp.zeros(1), -cosine]), jnp.concatenate([-cosine, jnp.zeros(1)])
        # D is antisymmetric: -sin(th_l - th_{l-1}) before the diagonal, sin(th_{l+1} - th_l) after it, both of the place l.
        d_low, d_high = jnp.concatenate([jnp.zeros(1), -sine]), jnp.concatenate([sine, jnp.zeros(1)])

        def times(low: Any, diagonal: Any, high: Any, x: Any) -> Any:
            down, up = jnp.concatenate([jnp.zeros(1), x[:-1]]), jnp.concatenate([x[1:], jnp.zeros(1)])
            return low * down + diagonal * x + high * up

        w = times(d_low, 0.0, d_high, v) + rate**2
        z = jax.lax.linalg.tridiagonal_solve(low, ends, high, w[:, None])[:, 0]
        return jnp.concatenate([rate, times(low, ends, high, v) + times(d_low, 0.0, d_high, z)])

    names = " ".join({0: "y1", 9: "y10", 19: "y20", 39: "y40", 40: "y41", 79: "y80"}.get(i, "-") for i in range(2 * n))
    return solved(field, jnp.zeros(2 * n), None, 5.0, names, method="dopri8", rtol=1e-10, atol=1e-12, jumps=[np.pi])


def satellite(speed: float, period: float) -> Answer:
    """Of its last state x and y': an error made near the moon is a million times as large at the end."""
    start = arenstorf.State(0.994, 0.0, 0.0, speed)
    fine = {"method": "dopri8", "rtol": 1e-13, "atol": 1e-15}
    return solved(arenstorf.vector_field, start, 0.012277471, period, "x - - vy", **fine)._replace(amplification=100)


def ivp_arenstorf() -> Answer:
    return satellite(-2.00158510637908252240537862224, 17.0652165601579625588917206249)


def ivp_arenstorf_small() -> Answer:
    return satellite(-2.0317326295573368357302057924, 11.124340337266085134999734047)


def ivp_brusselator() -> Answer:
    def field(t: Any, y: Any, args: Any) -> list[Any]:
        return [1 + y[0] ** 2 * y[1] - 4 * y[0], 3 * y[0] - y[0] ** 2 * y[1]]

    return solved(field, jnp.array([1.5, 3.0]), None, 20.0, "y1 y2", method="dopri8", rtol=1e-13, atol=1e-15)


def ivp_lorenz_orbit_AB() -> Answer:
    start = lorenz.State(-13.763610682134200525, -19.578751942451795539, 27.0)
    fine = {"method": "dopri8", "rtol": 1e-13, "atol": 1e-15}
    return solved(lorenz.vector_field, start, (10.0, 28.0, 8 / 3), 1.5586522107161747276, "y1 y2 y3", **fine)


def ivp_kepler_e09() -> Answer:
    start = kepler.State(0.1, 0.0, 0.0, 19**0.5)
    return solved(kepler.vector_field, start, None, 20.0, "x y - -", method="dopri8", rtol=1e-14, atol=1e-16)


def ivp_rigid_body() -> Answer:
    """Its quarter period K is when y2, the elliptic cosine, is zero for the first time."""

    def field(t: Any, y: Any, args: Any) -> list[Any]:
        return [y[1] * y[2], -y[0] * y[2], -0.51 * y[0] * y[1]]

    start, fine = jnp.array([0.0, 1.0, 1.0]), {"method": "dopri8", "rtol": 1e-14, "atol": 1e-16}
    answer = solved(field, start, None, 12.0, "y1 y2 y3", **fine)
    quarter = jax.jit(lambda: solve(field, start, t1=12.0, event=lambda t, y, args: y[1], **fine))()
    return answer._replace(values=answer.values | {"K": float(quarter.event_time)})
