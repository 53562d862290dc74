"""`check-grad`: right derivatives pass, wrong ones and cut paths are found, and said to be so."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import PlanError
from engine.gradient_check import check_gradients, ridders
from tests.project import Project

CONFIG = """\
    defaults: [engine, _self_]
    name: case
    parameters: {a: 0.7, b: 1.3, c: [0.5, 2.0]}
    stages:
      f: {_target_: model.f}
    outputs: {s: f.s, v: f.v}
    sweep: {axes: {a: {linspace: [0.0, 2.0, 7]}}}
    derivatives:
      g: {of: s, wrt: [a, b, c]}
      j: {of: v, wrt: [a, c], kind: jacobian, mode: reverse}
      h: {of: s, wrt: [a, c], kind: hessian}
      hv: {of: s, wrt: [a, c], kind: hvp, direction: {a: 1.0, c: [2.0, -1.0]}}
      t: {of: v, wrt: [a, b], kind: jvp, direction: {a: 1.0, b: -2.0}}
      w: {of: v, wrt: [c], kind: vjp, direction: [1.0, 3.0]}
      d3: {of: s, wrt: [a, b], order: 3}
"""
RIGHT = """\
    import jax.numpy as jnp


    def f(a, b, c):
        return {"s": jnp.sin(a * b) + c[0] ** 2 * c[1] * a, "v": jnp.stack([a * b * c[0], a**3 + c[1] ** 2])}
"""


def verdicts(project: Project, *overrides: str) -> dict[str, str]:
    return {row.derivative: row.verdict for row in check_gradients(project.load(*overrides))}


def test_right_derivatives_of_every_kind(project: Project) -> None:
    found = verdicts(project.model(RIGHT).yaml(CONFIG))
    assert set(found.values()) == {"ok"}, found
    assert {"g.a", "j.c", "h.a.c", "hv.c", "t", "w.c", "d3.b"} <= set(found)


def test_a_wrong_rule_is_found(project: Project) -> None:
    project.model("""\
        import jax
        import jax.numpy as jnp


        @jax.custom_jvp
        def square(x):
            return x * x


        square.defjvp(lambda primals, tangents: (primals[0] ** 2, 2.1 * primals[0] * tangents[0]))


        def f(a, b):
            return square(a) + jnp.sin(b)
    """).yaml("""\
        defaults: [engine, _self_]
        name: wrong
        parameters: {a: 0.7, b: 1.3}
        stages: {f: {_target_: model.f}}
        derivatives: {g: {of: f, wrt: [a, b]}}
    """)
    found = verdicts(project)
    assert found == {"g.a": "differs", "g.b": "ok"}


@pytest.mark.parametrize(
    "line", ["jnp.round(100 * k) / 100", "jax.lax.stop_gradient(k)", "jnp.asarray(jnp.int64(1e6 * k)) / 1e6"]
)
def test_a_cut_path_names_its_stage(project: Project, line: str) -> None:
    project.model(f"""\
        import jax
        import jax.numpy as jnp


        def before(k):
            return 3 * k


        def cut(before):
            k = before
            return {line}


        def after(cut, k):
            return cut**2
    """).yaml("""\
        defaults: [engine, _self_]
        name: cut
        parameters: {k: 1.0}
        stages:
          before: {_target_: model.before}
          cut: {_target_: model.cut}
          after: {_target_: model.after}
        outputs: {y: after}
        derivatives: {d: {of: y, wrt: k}}
    """)
    (row,) = check_gradients(project.load())
    assert row.verdict.startswith("disconnected: stage 'cut'"), row


def test_through_an_ode_from_the_command_line(project: Project) -> None:
    project.model("""\
        from ops.ode import solve


        def f(k, solver):
            return solve(lambda t, y, k: -k * y, 2.0, k, t1=1.0, solver=solver).y
    """).yaml("""\
        defaults: [engine, {solver: tsit5}, _self_]
        name: ode
        parameters: {k: 1.0}
        stages: {f: {_target_: model.f, solver: "${solver}"}}
        sweep: {axes: {k: [0.5, 1.0, 2.0]}}
        derivatives:
          g: {of: f, wrt: k}
          r: {of: f, wrt: k, mode: reverse}
          h: {of: f, wrt: k, kind: hessian}
    """)
    answer = project.cli("check-grad", "case.yaml", "solver.rtol=1e-9", "--json")
    assert answer.code == 0, answer.out + answer.err
    assert [row["verdict"] for row in answer.json["derivatives"]] == ["ok"] * 3
    table = project.cli("check-grad", "case.yaml", "solver.rtol=1e-9", "--samples", "2").out
    assert "uncertainty" in table
    assert project.cli("check-grad", "case.yaml", "--samples", "0").code == 2


def test_nothing_to_check(project: Project) -> None:
    project.model(RIGHT).yaml(CONFIG)
    with pytest.raises(PlanError, match=r"`derivatives` must hold at least one"):
        check_gradients(project.load("derivatives={}"))


def test_ridders_extrapolates_and_knows_its_error() -> None:
    h = 0.5 * 1.6 ** -np.arange(10.0)
    slopes = (np.exp(1 + h) - np.exp(1 - h)) / (2 * h)
    best, error = ridders(slopes)
    assert abs(best - np.e) < 1e-11
    assert abs(best - np.e) < 10 * error + 1e-14
