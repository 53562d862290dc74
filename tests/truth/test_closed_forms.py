"""Five systems with a known solution, every kind of derivative, through explicit and implicit solves: to 1e-6 of the largest.

The closed forms are differentiated by JAX on their own, without a solver. The driven pendulum has none: its reference integrates the
variational equations of first and second order, written by hand, with SciPy's DOP853 at 1e-13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from scipy.integrate import solve_ivp

from tests.project import Project

MODEL = """\
    import jax.numpy as jnp

    from ops.ode import solve


    def observed(found, part):
        # The path of one coordinate, its last value, and the solver's status.
        return {"path": part(found.y), "end": part(found.y)[-1], "status": found.status}


    def decay(k, y0, ts, solver):
        return observed(solve(lambda t, y, k: -k * y, y0, k, ts=ts, solver=solver), lambda y: y)


    def logistic(r, capacity, y0, ts, solver):
        found = solve(lambda t, y, p: p[0] * y * (1 - y / p[1]), y0, (r, capacity), ts=ts, solver=solver)
        return observed(found, lambda y: y)


    def oscillator(omega, zeta, x0, ts, solver):
        def field(t, y, p):
            omega, zeta = p
            return [y[1], -2 * zeta * omega * y[1] - omega**2 * y[0]]

        return observed(solve(field, jnp.stack([x0, 0.0]), (omega, zeta), ts=ts, solver=solver), lambda y: y[:, 0])


    def kepler(a, e, ts, solver):
        # From the pericentre, with a gravitational parameter of 1.
        def field(t, y, _):
            position, velocity = y
            return velocity, -position / jnp.sum(position**2) ** 1.5

        start = jnp.stack([a * (1 - e), 0.0]), jnp.stack([0.0, jnp.sqrt((1 + e) / (1 - e) / a)])
        return observed(solve(field, start, ts=ts, solver=solver), lambda y: y[0][:, 1])


    def pendulum(damping, drive, theta0, ts, solver):
        def field(t, y, p):
            damping, drive = p
            return [y[1], -damping * y[1] - jnp.sin(y[0]) + drive * jnp.cos(2 / 3 * t)]

        return observed(solve(field, jnp.stack([theta0, 0.0]), (damping, drive), ts=ts, solver=solver), lambda y: y[:, 0])
"""
CASE = """\
    defaults: [engine, {{solver: {solver}}}, _self_]
    name: {name}
    parameters: {{{nominal}}}
    solver: {{rtol: {rtol}, atol: 1.0e-13}}
    stages: {{system: {{_target_: model.{name}, ts: {ts}, solver: "${{solver}}"}}}}
    outputs: {{end: system.end, path: {{from: system.path, dims: [time]}}}}
    derivatives:
      g: {{of: end, wrt: [{names}]}}
      r: {{of: end, wrt: [{names}], mode: reverse}}
      j: {{of: path, wrt: [{names}], kind: jacobian}}
      h: {{of: end, wrt: [{names}], kind: hessian}}
      jv: {{of: path, wrt: [{names}], kind: jvp, direction: {{{direction}}}}}
      vj: {{of: path, wrt: [{names}], kind: vjp, direction: {weights}}}
      hv: {{of: end, wrt: [{names}], kind: hvp, direction: {{{direction}}}}}
"""
WEIGHTS = [1.0, -2.0, 0.5]

Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The path at the times, its Jacobian (time, parameter) and its second derivatives (time, parameter, parameter)."""


@dataclass(frozen=True)
class System:
    """A stage of the model and what is known of it."""

    name: str
    nominal: dict[str, float]
    ts: list[float]
    exact: Callable[[np.ndarray], Derivatives]
    """Of the parameters, in the order of `nominal`."""

    sweep: str

    def yaml(self, solver: str, rtol: str) -> str:
        """The config that asks for everything."""
        return CASE.format(
            solver=solver, rtol=rtol, name=self.name, ts=self.ts, weights=WEIGHTS, names=", ".join(self.nominal),
            nominal=", ".join(f"{p}: {v}" for p, v in self.nominal.items()),
            direction=", ".join(f"{p}: {v}" for p, v in zip(self.nominal, self.direction, strict=True)),
        )  # fmt: skip

    @property
    def direction(self) -> np.ndarray:
        """The tangent of jvp and hvp."""
        return np.array([1.0, -0.5, 0.25])[: len(self.nominal)]

    def truth(self, point: np.ndarray) -> dict[str, np.ndarray]:
        """Everything that the config asks for."""
        path, first, second = self.exact(point)
        names, v, hv = list(self.nominal), self.direction, second[-1] @ self.direction
        found = {"path": path, "end": path[-1], "jv": first @ v}
        for i, p in enumerate(names):
            found |= {f"g.{p}": first[-1, i], f"r.{p}": first[-1, i], f"j.{p}": first[:, i], f"hv.{p}": hv[i]}
            found |= {f"vj.{p}": WEIGHTS @ first[:, i]}
            found |= {f"h.{p}.{q}": second[-1, i, j] for j, q in enumerate(names)}
        return found


# ---- closed forms


def closed(path: Callable[[jax.Array, jax.Array], jax.Array], ts: list[float]) -> Callable[[np.ndarray], Derivatives]:
    """A closed form in the parameters and the time, with its derivatives."""
    of = lambda p: jax.vmap(lambda t: path(p, t))(jnp.array(ts))  # noqa: E731
    call = jax.jit(lambda p: (of(p), jax.jacfwd(of)(p), jax.jacfwd(jax.jacfwd(of))(p)))
    return lambda point: tuple(np.asarray(value) for value in call(point))  # type: ignore[return-value]


def decay(p: jax.Array, t: jax.Array) -> jax.Array:
    """y0 exp(-k t)."""
    k, y0 = p
    return y0 * jnp.exp(-k * t)


def logistic(p: jax.Array, t: jax.Array) -> jax.Array:
    """Verhulst: K / (1 + (K / y0 - 1) exp(-r t))."""
    r, capacity, y0 = p
    return capacity / (1 + (capacity / y0 - 1) * jnp.exp(-r * t))


def oscillator(p: jax.Array, t: jax.Array) -> jax.Array:
    """Released at x0, underdamped: x0 exp(-zeta w t) (cos(wd t) + zeta w / wd sin(wd t)), wd = w sqrt(1 - zeta^2)."""
    w, zeta, x0 = p
    wd = w * jnp.sqrt(1 - zeta**2)
    return x0 * jnp.exp(-zeta * w * t) * (jnp.cos(wd * t) + zeta * w / wd * jnp.sin(wd * t))


def kepler(p: jax.Array, t: jax.Array) -> jax.Array:
    """y = a sqrt(1 - e^2) sin E with Kepler's equation E - e sin E = t / a^(3/2), solved by Newton's method to the end."""
    a, e = p
    mean = t / a**1.5
    eccentric = mean
    for _ in range(12):
        eccentric -= (eccentric - e * jnp.sin(eccentric) - mean) / (1 - e * jnp.cos(eccentric))
    return a * jnp.sqrt(1 - e**2) * jnp.sin(eccentric)


# ---- the driven pendulum


def driven_pendulum(ts: list[float]) -> Callable[[np.ndarray], Derivatives]:
    """theta'' = -c theta' - sin theta + A cos(2 t / 3) from (theta0, 0), with p = (c, A, theta0) and u = (theta, theta').

    With s_i = du/dp_i and s_ij = d2u/dp_i dp_j, and J = df/du = ((0, 1), (-cos theta, -c)):
        s_i'  = J s_i + df/dp_i,                 df/dc = (0, -theta'), df/dA = (0, cos(2 t / 3)), df/dtheta0 = 0
        s_ij' = J s_ij + (0, sin(theta) s_i[0] s_j[0]) + (df/du dp_i) s_j + (df/du dp_j) s_i,    (df/du dc) s = (0, -s[1])
    """

    def field(t: float, z: np.ndarray, c: float, drive: float) -> np.ndarray:
        u, s, ss = z[:2], z[2:8].reshape(2, 3), z[8:].reshape(2, 3, 3)
        jacobian = np.array([[0.0, 1.0], [-np.cos(u[0]), -c]])
        ds = jacobian @ s
        ds[1] += [-u[1], np.cos(2 / 3 * t), 0.0]
        dss = np.einsum("ab,bij->aij", jacobian, ss)
        dss[1] += np.sin(u[0]) * np.outer(s[0], s[0])
        dss[1, 0, :] -= s[1]
        dss[1, :, 0] -= s[1]
        du = [u[1], -c * u[1] - np.sin(u[0]) + drive * np.cos(2 / 3 * t)]
        return np.concatenate([du, ds.ravel(), dss.ravel()])

    def exact(point: np.ndarray) -> Derivatives:
        c, drive, theta0 = point
        start = np.zeros(26)
        start[0], start[4] = theta0, 1.0
        z = solve_ivp(field, (0, ts[-1]), start, "DOP853", ts, args=(c, drive), rtol=1e-13, atol=1e-14).y.T
        return z[:, 0], z[:, 2:5], z[:, 8:17].reshape(-1, 3, 3)

    return exact


SYSTEMS = {
    system.name: system
    for system in (
        System(
            "decay", {"k": 1.3, "y0": 2.0}, [0.5, 1.0, 2.0], closed(decay, [0.5, 1.0, 2.0]),
            "{axes: {k: [0.5, 1.3, 2.0], y0: [-1.0, 3.0]}}",
        ),
        System(
            "logistic", {"r": 0.8, "capacity": 10.0, "y0": 0.5}, [1.0, 3.0, 6.0], closed(logistic, [1.0, 3.0, 6.0]),
            "{design: random, samples: 5, axes: {r: {uniform: [0.3, 1.2]}, y0: {lognormal: [0.0, 0.5]}}}",
        ),
        System(
            "oscillator", {"omega": 2.0, "zeta": 0.1, "x0": 1.0}, [1.0, 3.0, 5.0], closed(oscillator, [1.0, 3.0, 5.0]),
            "{axes: {omega: [0.7, 2.0, 3.0], zeta: [0.02, 0.5]}}",
        ),
        System(
            "kepler", {"a": 1.2, "e": 0.3}, [1.0, 3.0, 5.0], closed(kepler, [1.0, 3.0, 5.0]),
            "{design: random, samples: 4, axes: {a: {uniform: [0.8, 1.5]}, e: {uniform: [0.05, 0.5]}}}",
        ),
        System(
            "pendulum", {"damping": 0.5, "drive": 0.8, "theta0": 0.3}, [2.0, 5.0, 10.0], driven_pendulum([2.0, 5.0, 10.0]),
            "{axes: {drive: [0.5, 0.9], theta0: [-0.4, 1.2]}}",
        ),
    )
}  # fmt: skip
METHODS = {"explicit": ("dopri8", "1.0e-11"), "implicit": ("kvaerno5", "3.0e-12")}
CELLS = [
    "decay-implicit-single", "decay-explicit-sweep", "logistic-explicit-single", "logistic-implicit-sweep",
    "oscillator-explicit-sweep", "kepler-explicit-single", "pendulum-explicit-sweep",
]  # fmt: skip
"""Every system, and both kinds of method, alone and in a sweep: the whole product takes minutes more, and says nothing new."""


def expected(ds: xarray.Dataset, system: System) -> dict[str, np.ndarray]:
    """The truth at every sample of a store, in its shape."""
    lead = ds["status"].shape
    values = xarray.broadcast(ds["status"], *(ds.get(p, xarray.DataArray(v)) for p, v in system.nominal.items()))[1:]
    points = np.stack([np.ravel(value) for value in values], axis=-1)
    samples = [system.truth(point) for point in points]
    return {name: np.reshape([s[name] for s in samples], (*lead, *samples[0][name].shape)) for name in samples[0]}


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_every_kind_of_derivative(project: Project, cell: str) -> None:
    name, method, sweep = cell.split("-")
    system = SYSTEMS[name]
    project.model(MODEL).yaml(system.yaml(*METHODS[method]))
    ds = project.run(*([f"+sweep={system.sweep}"] if sweep == "sweep" else []))
    assert (ds["status"] == 1).all()
    for variable, want in expected(ds, system).items():
        close = 1e-6 * max(np.abs(want).max(), 1e-3)
        np.testing.assert_allclose(ds[variable], want, rtol=0, atol=close, err_msg=variable)
