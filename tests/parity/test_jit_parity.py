"""`execution.jit=false` evaluates the same program op by op, for debugging: the same numbers to 1e-12, values and derivatives."""

from __future__ import annotations

import numpy as np
import pytest

from tests.project import Project

MODEL = """\
    import jax
    import jax.numpy as jnp
    from jax import lax

    from ops.ode import solve


    def wave(a, b, key):
        grown = lax.scan(lambda y, _: (y * jnp.cos(a), y), b, None, length=3)
        branch = lax.cond(a > 0.5, jnp.sin, lambda a: a**2, a)
        found = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * b), (0, a))[1]
        noise = jax.random.normal(key)
        return {"s": jnp.exp(a * b) + branch * noise, "v": jnp.append(grown[1], grown[0] + found), "n": jnp.int32(3) + (a > 0.5)}


    def decay(k, y0, solver):
        return solve(lambda t, y, k: -k * y**2, y0, k, t1=1.0, solver=solver)
"""
WAVE = """\
    defaults: [engine, _self_]
    name: wave
    parameters: {a: 0.7, b: 1.3}
    stages: {wave: {_target_: model.wave}}
    outputs: {s: wave.s, v: wave.v, n: wave.n}
    derivatives:
      g: {of: s, wrt: [a, b]}
      j: {of: v, wrt: [a, b], kind: jacobian}
      h: {of: s, wrt: [a, b], kind: hessian}
      d3: {of: s, wrt: a, order: 3}
      t: {of: v, wrt: [a, b], kind: jvp, direction: {a: 1.0, b: -2.0}}
      p: {of: s, wrt: [a, b], kind: hvp, direction: {a: 1.0, b: -2.0}}
      r: {of: s, wrt: [a, b], mode: reverse}
      w: {of: s, wrt: [a, b], kind: vjp, direction: 3.0}
      hr: {of: s, wrt: [a, b], kind: hessian, mode: reverse}
      pr: {of: s, wrt: [a, b], kind: hvp, mode: reverse, direction: {a: 1.0, b: -2.0}}
"""
DECAY = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: decay
    parameters: {k: 1.3, y0: 2.0}
    solver: {max_steps: 16}
    stages: {decay: {_target_: model.decay, solver: "${solver}"}}
    outputs: {y: decay.y, steps: decay.steps}
    derivatives:
      g: {of: y, wrt: [k, y0]}
      h: {of: y, wrt: [k, y0], kind: hessian}
      t: {of: y, wrt: [k, y0], kind: jvp, direction: {k: 1.0, y0: -2.0}}
      r: {of: y, wrt: [k, y0], mode: reverse}
      p: {of: y, wrt: [k, y0], kind: hvp, direction: {k: 1.0, y0: -2.0}}
"""


def compare(project: Project, *overrides: str, within: float = 1e-12) -> None:
    """Both ways of the same question; the numbers are no accident of one of them."""
    compiled = project.run(*overrides, store="compiled.zarr")
    stepped = project.run(*overrides, "execution.jit=false", store="stepped.zarr")
    assert (compiled["status"] == 1).all()
    assert set(compiled.variables) == set(stepped.variables)
    for name in compiled.variables:
        one, two = compiled[name].values, stepped[name].values
        assert one.dtype == two.dtype
        np.testing.assert_allclose(two, one, rtol=0, atol=within * max(1.0, np.abs(one).max()), err_msg=str(name))


@pytest.mark.parametrize("sweep", [[], ["+sweep={axes: {a: [0.2, 0.7], b: [1.3, -0.5]}}"]], ids=["single", "sweep"])
def test_every_kind_of_derivative(project: Project, sweep: list[str]) -> None:
    project.model(MODEL).yaml(WAVE)
    assert "jit" not in project.load(*sweep, "execution.jit=false").formula
    compare(project, *sweep)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["tsit5", "kvaerno3"])
def test_derivatives_of_a_solve(project: Project, solver: str) -> None:
    project.model(MODEL).yaml(DECAY)
    compare(project, f"solver={solver}", "solver.max_steps=16", "solver.rtol=1e-2", "solver.atol=1e-2", within=1e-11)
