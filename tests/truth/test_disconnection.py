"""A derivative that is zero at every sample is told before the run, with the line that cuts the path; any other is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.project import Project

MODEL = """\
    import jax
    import jax.numpy as jnp
    from ops.ode import solve


    @jax.custom_jvp
    def rounded(x):
        return jnp.round(x)


    rounded.defjvp(lambda primals, tangents: (rounded(*primals), tangents[0]))


    def f(n, k):
        near = jnp.round(k)
        return {expression}
"""
LINE = 16
CONFIG = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: case
    parameters: {n: 2.3, k: 0.5}
    stages: {f: {_target_: model.f}}
    outputs: {energy: f}
    sweep: {axes: {k: [0.1, 0.2]}}
    derivatives:
      d: {of: energy, wrt: [k, n]}
"""
CUT = {
    "floor": ("jnp.floor(n) * k", "floor"),
    "round": ("jnp.round(n) * k", "round"),
    "floor division": ("n // 2 * k", "floor_divide"),
    "sign": ("jnp.sign(n) * k", "sign"),
    "comparison": ("jnp.where(n > 1, k, 2 * k)", "a comparison"),
    "boolean": ("(n > 1) * k", "a comparison"),
    "conversion": ("n.astype(int) * k", "a conversion to integers"),
    "look-up": ("k * jnp.arange(5.0)[n.astype(int)]", "a conversion to integers"),
    "argmax": ("jnp.argmax(jnp.stack([n, 1.0])) * k", "argmax"),
    "stop_gradient": ("jax.lax.stop_gradient(n) * k", "stop_gradient"),
    "scan": ("jax.lax.scan(lambda c, _: (c * jnp.ceil(n), None), k, None, length=3)[0]", "ceil"),
    "loop": ("jax.lax.fori_loop(0, n.astype(int), lambda i, c: c * k, 1.0)", "a conversion to integers"),
    "branch": ("jax.lax.cond(n > 1, lambda: k, lambda: 2 * k)", "a comparison"),
    "vector field": ("solve(lambda t, y, a: -jnp.floor(a) * y, k, n, t1=1.0).y", "floor"),
}
MOVED = {
    "product": "n * k",
    "sum": "jnp.floor(n) * k + 1e-9 * n",
    "straight through": "(n + jax.lax.stop_gradient(jnp.round(n) - n)) * k",
    "own rule": "rounded(n) * k",
    "scan": "jax.lax.scan(lambda c, _: (c * n, None), k, None, length=3)[0]",
    "loop": "jax.lax.while_loop(lambda c: c < 9, lambda c: c * n, k)",
    "argument of a loop": "jax.lax.fori_loop(0, 3, lambda i, c: c * jnp.sin(n), k)",
    "clip": "jnp.clip(n, 0, 3) * k",
    "modulo": "(n % 2) * k",
    "vector field": "solve(lambda t, y, a: -a * y, k, n, t1=1.0).y",
    "jit": "jax.jit(lambda a, b: a * b)(n, k)",
}


def warnings(project: Project, expression: str, *overrides: str) -> list[str]:
    project.model(MODEL.replace("{expression}", expression)).yaml(CONFIG)
    return [w for w in project.load(*overrides).warnings if "derivative" in w]


@pytest.mark.parametrize("case", CUT)
def test_a_cut_path_names_its_line(project: Project, case: str) -> None:
    expression, name = CUT[case]
    (warning,) = warnings(project, expression)
    assert warning.startswith(
        "`derivatives.d.wrt.1` should be a parameter that moves 'energy', but the derivative by 'n' is 0"
    )
    assert f"cut by {name} at model.py:{LINE}. " in warning
    assert "remove it from wrt" in warning


@pytest.mark.parametrize("case", ["floor", "comparison", "conversion", "scan"])
def test_such_a_derivative_is_zero(project: Project, case: str) -> None:
    project.model(MODEL.replace("{expression}", CUT[case][0])).yaml(CONFIG)
    found = project.run()
    assert not np.any(found["d.n"].values)
    assert np.any(found["d.k"].values)


@pytest.mark.parametrize("case", MOVED)
def test_a_derivative_that_moves_is_no_matter(project: Project, case: str) -> None:
    assert warnings(project, MOVED[case]) == []


@pytest.mark.parametrize("kind", ["gradient", "jacobian", "hessian"])
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_an_unused_parameter_is_told_in_every_mode(project: Project, kind: str, mode: str) -> None:
    (warning,) = warnings(project, "2 * k", f"+derivatives.d.kind={kind}", f"+derivatives.d.mode={mode}")
    assert "`derivatives.d.wrt.1`" in warning
    assert "it is not used. Remove it from wrt." in warning


def test_arguments_that_a_vector_field_ignores_are_told_at_the_call(project: Project) -> None:
    (warning,) = warnings(project, "solve(lambda t, y, a: -y, k, n, t1=1.0).y")
    assert f"cut inside the call at model.py:{LINE}, or it is not used there. `python -m engine check-grad`" in warning


def test_the_second_derivative_of_a_linear_output_is_no_matter(project: Project) -> None:
    assert warnings(project, "2 * n + k", "+derivatives.d.kind=hessian") == []


def test_a_direction_without_a_part_along_the_parameter_is_no_matter(project: Project) -> None:
    jvp = ["+derivatives.d.kind=jvp", "+derivatives.d.direction={k: 1.0, n: 0.0}"]
    assert warnings(project, "jnp.floor(n) * k", *jvp) == []
    jvp[1] = "+derivatives.d.direction={k: 1.0, n: 2.0}"
    assert len(warnings(project, "jnp.floor(n) * k", *jvp)) == 1


def test_each_output_has_its_own_paths(project: Project) -> None:
    """Of several outputs, whose order in the program is not that of the config, only those that are cut are told."""
    project.model(
        "import jax.numpy as jnp\n\n\ndef f(n, k):\n    return {'z': n * k, 'a': jnp.floor(n) * k}\n"
    ).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {n: 2.3, k: 0.5}
        stages: {f: {_target_: model.f}}
        outputs: {z: f.z, a: f.a}
        derivatives:
          d: {of: z, wrt: [n, k]}
          e: {of: a, wrt: [n, k]}
    """)
    (warning,) = project.load().warnings
    assert "`derivatives.e.wrt.0` should be a parameter that moves 'a'" in warning


def test_plan_and_run_say_it(project: Project) -> None:
    project.model(MODEL.replace("{expression}", "jnp.floor(n) * k")).yaml(CONFIG)
    plan, run = project.cli("plan", "case.yaml"), project.cli("run", "case.yaml")
    assert (plan.code, run.code) == (0, 0)
    assert "warning: `derivatives.d.wrt.1` should" in plan.out
    assert "warning: `derivatives.d.wrt.1` should" in run.err
