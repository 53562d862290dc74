"""Derivatives through solves, asked for in a config and computed by the engine."""

from __future__ import annotations

import functools
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ops.adjoints import default_adjoint
from ops.ode import Solver, solve
from pipelines import lotka_volterra, oscillator, robertson, sir
from pipelines.bouncing_ball import bounces
from tests.reference.answers import Answer


def run(config: str, *overrides: str) -> Any:
    """The results of a config, in memory."""
    import engine

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.yaml"
        path.write_text(textwrap.dedent(config), encoding="utf-8")
        return engine.run(path, [f"store.path={folder}/case.zarr", *overrides]).load()


def answer(ds: Any, names: dict[str, str], tolerance: float, **more: Any) -> Answer:
    """The variables of a store by the names of the table; `y.0` is the first element of `y`."""
    assert (ds["status"] == 1).all()

    def value(name: str) -> float:
        stem, _, index = name.rpartition("@")
        return float(ds[stem].values.ravel()[int(index)] if stem else ds[name].values.ravel()[-1])

    return Answer({key: value(name) for key, name in names.items()}, tolerance, int(ds["steps"].sum()), **more)


# ---- Robertson's reaction: p1 = k1, p2 = k3, p3 = k2 in the notation of SUNDIALS

ROBERTSON = """\
    defaults: [engine, {solver: kvaerno5}, _self_]
    name: robertson
    parameters: {k1: 0.04, k2: 3.0e7, k3: 1.0e4, y0: [1.0, 0.0, 0.0]}
"""
RATES = {"p1": "k1", "p2": "k3", "p3": "k2"}


def reaction(k1: Any, k2: Any, k3: Any, y0: Any, *, ts: list[float], solver: Any) -> dict[str, Any]:
    """The three species at some times."""
    found = solve(robertson.vector_field, robertson.Concentrations(*y0), (k1, k2, k3), ts=ts, solver=solver)
    return {"y": jnp.stack(found.y, axis=-1), "steps": found.steps, "status": found.status}


def total(k1: Any, k2: Any, k3: Any, y0: Any, *, of: Any, t1: float, solver: Any) -> dict[str, Any]:
    """The integral of a function of the species from 0 to t1, as a state of its own."""

    def field(t: Any, state: Any, k: Any) -> Any:
        return robertson.vector_field(t, state[0], k), of(state[0])

    start = robertson.Concentrations(*y0), jnp.zeros(())
    found = solve(field, start, (k1, k2, k3), t1=t1, solver=solver)
    return {"g": found.y[1], "steps": found.steps, "status": found.status}


def third(y: Any) -> Any:
    """The product."""
    return y.c


def square(y: Any) -> Any:
    """Half the square of the state."""
    return 0.5 * (y.a**2 + y.b**2 + y.c**2)


@functools.cache
def sensitivities() -> Any:
    """The state and its Jacobian by the rates, at both times."""
    return run(
        ROBERTSON
        + """\
    solver: {rtol: 1e-10, atol: 1e-14}
    stages: {reaction: {_target_: tests.reference.gradient.reaction, ts: [0.4, 40.0], solver: "${solver}"}}
    outputs: {y: {from: reaction.y, dims: [time, species]}, steps: reaction.steps}
    derivatives: {dy: {of: y, wrt: [k1, k3, k2], kind: jacobian}}
    """
    )


def at(time: int) -> Answer:
    """Of the first time or of the second."""
    names = {f"y{i + 1}": f"y@{3 * time + i}" for i in range(3)}
    names |= {f"dy{i + 1}_d{p}": f"dy.{k}@{3 * time + i}" for i in range(3) for p, k in RATES.items()}
    return answer(sensitivities(), names, 1e-10, recomputed=8)


def grad_robertson_fsa_t0_4() -> Answer:
    return at(0)


def grad_robertson_fsa_t40() -> Answer:
    return at(1)


def grad_robertson_asa_4e7() -> Answer:
    """In reverse mode, as the adjoint of the source."""
    ds = run(
        ROBERTSON
        + """\
    solver: {rtol: 1e-9, atol: 1e-14, max_steps: 4096}
    stages:
      total:
        _target_: tests.reference.gradient.total
        of: {_target_: tests.reference.gradient.third, _partial_: true}
        t1: 4.0e7
        solver: ${solver}
    outputs: {g: total.g, steps: total.steps}
    derivatives: {dg: {of: g, wrt: [k1, k3, k2, y0], mode: reverse}}
    """
    )
    names = {"G": "g"} | {f"dG_d{p}": f"dg.{k}" for p, k in RATES.items()}
    return answer(ds, names | {f"dG_dy{i + 1}": f"dg.y0@{i}" for i in range(3)}, 1e-9, recomputed=7)


def grad_hessian_robertson_80() -> Answer:
    """The Hessian of the table is by differences of a gradient, and good to 2e-6."""
    ds = run(
        ROBERTSON
        + """\
    solver: {rtol: 1e-9, atol: 1e-14, max_steps: 4096}
    stages:
      total:
        _target_: tests.reference.gradient.total
        of: {_target_: tests.reference.gradient.square, _partial_: true}
        t1: 80.0
        solver: ${solver}
    outputs: {g: total.g, steps: total.steps}
    derivatives:
      dg: {of: g, wrt: [k1, k3]}
      hg: {of: g, wrt: [k1, k3], kind: hessian, mode: forward}
    """
    )
    assert abs(float(ds["hg.k1.k3"] / ds["hg.k3.k1"]) - 1) < 1e-9
    names = {"G": "g", "dG_dp1": "dg.k1", "dG_dp2": "dg.k3", "H11": "hg.k1.k1", "H12": "hg.k1.k3", "H22": "hg.k3.k3"}
    return answer(ds, names, 1e-9, recomputed=5.7)


# ---- others


def terminal(
    alpha: Any, beta: Any, gamma: Any, delta: Any, prey: Any, predators: Any, *, solver: Any
) -> dict[str, Any]:
    """The populations at 10, and how far they are from (1, 1)."""
    start = lotka_volterra.Populations(prey, predators)
    found = solve(lotka_volterra.vector_field, start, (alpha, beta, gamma, delta), t1=10.0, solver=solver)
    x, y = found.y
    return {"x": x, "y": y, "cost": 0.5 * ((1 - x) ** 2 + (1 - y) ** 2), "steps": found.steps, "status": found.status}


def grad_lotka_volterra_terminal(mode: str = "forward") -> Answer:
    """The recomputed values are sharper than the 6.5 digits of the source, which it agrees with."""
    ds = run(f"""\
        defaults: [engine, {{solver: dopri8}}, _self_]
        name: cost
        parameters: {{alpha: 1.5, beta: 1.0, gamma: 3.0, delta: 1.0, prey: 1.0, predators: 1.0}}
        solver: {{rtol: 1e-12, atol: 1e-14}}
        stages: {{end: {{_target_: tests.reference.gradient.terminal, solver: "${{solver}}"}}}}
        outputs: {{x: end.x, y: end.y, cost: end.cost, steps: end.steps}}
        derivatives: {{g: {{of: cost, wrt: [prey, predators, alpha, beta, gamma, delta], mode: {mode}}}}}
    """)
    names = {"dx0": "prey", "dy0": "predators", "dp0": "alpha", "dp1": "beta", "dp2": "gamma", "dp3": "delta"}
    names = {"x": "x", "y": "y"} | {f"dg_{key}": f"g.{name}" for key, name in names.items()}
    return answer(ds, names, 1e-12, recomputed=9)


def grad_damped_oscillator() -> Answer:
    ds = run("""\
        defaults: [engine, {solver: dopri8}, _self_]
        name: oscillator
        parameters: {omega: 2.0, zeta: 0.1, x0: 1.0}
        solver: {rtol: 1e-13, atol: 1e-15}
        stages: {end: {_target_: tests.reference.gradient.released, solver: "${solver}"}}
        outputs: {x: end.x, steps: end.steps}
        derivatives: {dx: {of: x, wrt: [omega, zeta, x0]}}
    """)
    return answer(ds, {"x": "x", "dx_dw": "dx.omega", "dx_dzeta": "dx.zeta", "dx_dx0": "dx.x0"}, 1e-13)


def released(omega: Any, zeta: Any, x0: Any, *, solver: Any) -> dict[str, Any]:
    """The oscillator's displacement at 5, from rest."""
    found = solve(oscillator.vector_field, oscillator.State(x0, 0.0 * x0), (omega, zeta), t1=5.0, solver=solver)
    return {"x": found.y.x, "steps": found.steps, "status": found.status}


def growth(r: Any, capacity: Any, start: Any, *, solver: Any) -> dict[str, Any]:
    """Verhulst's population at 6."""
    found = solve(lambda t, y, args: args[0] * y * (1 - y / args[1]), start, (r, capacity), t1=6.0, solver=solver)
    return {"y": found.y, "steps": found.steps, "status": found.status}


def grad_logistic() -> Answer:
    ds = run("""\
        defaults: [engine, {solver: dopri8}, _self_]
        name: logistic
        parameters: {r: 0.8, capacity: 10.0, start: 0.5}
        solver: {rtol: 1e-13, atol: 1e-15}
        stages: {growth: {_target_: tests.reference.gradient.growth, solver: "${solver}"}}
        outputs: {y: growth.y, steps: growth.steps}
        derivatives: {dy: {of: y, wrt: [r, capacity, start]}}
    """)
    return answer(ds, {"y": "y", "dy_dr": "dy.r", "dy_dK": "dy.capacity", "dy_dy0": "dy.start"}, 1e-13)


def outbreak(beta: Any, gamma: Any, *, solver: Any) -> dict[str, Any]:
    """What an epidemic has removed after 400 days."""
    start = sir.Fractions(jnp.array(1 - 1e-6), jnp.array(1e-6), jnp.zeros(()))
    found = solve(sir.vector_field, start, (beta, gamma), t1=400.0, solver=solver)
    return {"size": found.y.removed, "steps": found.steps, "status": found.status}


def grad_sir_final_size() -> Answer:
    ds = run("""\
        defaults: [engine, {solver: dopri8}, _self_]
        name: sir
        parameters: {beta: 0.5, gamma: 0.25}
        solver: {rtol: 1e-12, atol: 1e-16}
        stages: {outbreak: {_target_: tests.reference.gradient.outbreak, solver: "${solver}"}}
        outputs: {size: outbreak.size, steps: outbreak.steps}
        derivatives: {dsize: {of: size, wrt: [beta]}}
    """)
    return answer(ds, {"R_inf": "size", "dR_dbeta": "dsize.beta"}, 1e-12)


def grad_bouncing_ball_events() -> Answer:
    """Impact times of a bouncing ball, with their derivatives by restitution and gravity."""

    def found(p: Any) -> Any:
        ball = bounces(10.0, p[0], p[1], count=5, longest=20.0, solver=Solver(rtol=1e-10, atol=1e-12))
        return jnp.stack([ball.time[0], ball.last, ball.rest]), ball.steps

    with default_adjoint("forward"):
        p = jnp.array([9.81, 0.9])
        (values, steps), slopes = jax.jit(lambda p: (found(p), jax.jacfwd(lambda p: found(p)[0])(p)))(p)
    return Answer(
        {
            "t1": float(values[0]),
            "t5": float(values[1]),
            "dt5_de": float(slopes[1, 1]),
            "dt1_dg": float(slopes[0, 0]),
            "t_inf": float(values[2]),
        },
        1e-10,
        int(steps),
    )
