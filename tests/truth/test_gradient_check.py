"""`check-grad`: right derivatives pass, wrong ones and cut paths are found, and said to be so."""

from __future__ import annotations

import re

import numpy as np
import pytest

from engine.differences import clear, limit, ridders
from engine.errors import PlanError, StageError
from engine.gradient_check import check_gradients
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
    table = project.cli("check-grad", "case.yaml", "~derivatives.h", "~derivatives.r", "--samples", "2").out
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


def test_a_limit_is_clear_only_where_the_shortest_steps_agree() -> None:
    h = 1.6 ** -np.arange(10.0)
    assert abs(clear(limit(3 + 0.7 * h + 0.1 * h**3)) - 3) < 1e-4
    noise = np.random.default_rng(0).normal(size=(10, 1000)) / h[:, None]
    assert np.count_nonzero(clear(limit(noise))) <= 1
    assert not any(clear(limit(part)) for part in (h, h**3, np.sqrt(h), 1 / h, np.zeros(10)))


def project_of(project: Project, expression: str, wrt: str = "x", **parameters: object) -> Project:
    """One stage of one line, differentiated at given parameters."""
    given = ", ".join(f"{name}: {value}" for name, value in parameters.items())
    project.model(f"""\
        import jax
        import jax.numpy as jnp


        def f({", ".join(parameters)}):
            return {expression}
    """)
    return project.yaml(f"""\
        defaults: [engine, _self_]
        name: one
        parameters: {{{given}}}
        stages: {{f: {{_target_: model.f}}}}
        derivatives: {{g: {{of: f, wrt: [{wrt}]}}}}
    """)


KINKS = {
    "tie": ("jnp.maximum(x, 1.5)", {"x": 1.5}, "0 to the left and 1 to the right. The program gives 0.5"),
    "edge": ("jnp.clip(x, 0.0, 1.5)", {"x": 1.5}, "1 to the left and 0 to the right. The program gives 0.5"),
    "abs": ("jnp.exp(5 * x) * jnp.abs(x)", {"x": 0.0}, "-1 to the left and 1 to the right. The program gives 1"),
    "relu": ("jax.nn.relu(x)", {"x": 0.0}, "0 to the left and 1 to the right. The program gives 0"),
    "one of many": (
        "jnp.sum(jnp.maximum(jnp.linspace(0.0, 2.0, 101), x))",
        {"x": 1.0},
        "50 to the left and 51 to the right. The program gives 50.5",
    ),
}


@pytest.mark.parametrize("case", KINKS)
def test_a_kink_is_told_with_its_two_slopes(project: Project, case: str) -> None:
    expression, at, slopes = KINKS[case]
    (row,) = check_gradients(project_of(project, expression, **at).load())
    assert row.verdict == "kink", row
    assert not row.passes
    assert f"g.x at sample 0 (x={at['x']:g}): f has a kink in x: its slope is {slopes}" in row.explanation


def test_a_kink_of_one_element_at_one_sample(project: Project) -> None:
    project_of(project, "k * jnp.sum(jnp.maximum(x, jnp.ones(3)))", "x", x=[0.5, 1.0, 2.0], k=1.0)
    check = check_gradients(project.load("+sweep.axes.k=[0.0,2.0]"))
    (row,) = check
    assert row.verdict == "kink"
    assert row.explanation.startswith(
        "g.x[1] at sample 1 (k=2): f has a kink in x: its slope is 0 to the left and 2 to"
    )
    answer = project.cli("check-grad", "case.yaml")
    assert answer.code == 3
    assert "g.x[1] at sample 0: f has a kink in x: its slope is 0 to the left and 1 to the right." in answer.out


@pytest.mark.parametrize(
    ("expression", "x"),
    [
        ("x**2 + 3", 0.0),
        ("1 + (x - 0.7) ** 2", 0.7),
        ("jnp.sqrt(x**2 + 1e-12)", 0.0),
        ("jnp.abs(x - 1e-3)", 0.0),
        ("jnp.tanh(1e5 * x)", 0.0),
        ("jnp.sin(1000 * x)", 1.0),
        ("jnp.exp(50 * x)", 0.3),
        ("jnp.where(x > 0, x * x, 0.0)", 0.0),
        ("1e6 + (1 + x) ** 2", 0.0),
        ("jnp.clip(x, 0.0, 1.0)", 2.0),
    ],
)
def test_sharp_bends_and_zero_slopes_are_no_kinks(project: Project, expression: str, x: float) -> None:
    (row,) = check_gradients(project_of(project, expression, x=x).load())
    assert row.verdict == "ok", row
    assert row.explanation == ""


def test_a_jump_has_no_slope(project: Project) -> None:
    (row,) = check_gradients(project_of(project, "jnp.floor(x) + x", x=2.0).load())
    assert row.verdict == "jump"
    assert "g.x at sample 0 (x=2): f jumps there" in row.explanation


def test_a_derivative_that_is_not_finite_is_told_with_its_sample(project: Project) -> None:
    project_of(project, "jnp.linalg.norm(jnp.stack([x, 2 * x]))", x=1.0)
    answer = project.cli("check-grad", "case.yaml", "+sweep.axes.x=[0.0,1.0]", "--json")
    assert answer.code == 3
    (row,) = answer.json["derivatives"]
    assert row["verdict"] == "not finite"
    assert row["difference"] < 1e-9  # at the other sample
    assert row["explanation"].startswith("g.x at sample 0 (x=0) is nan; finite differences give 0.")
    table = project.cli("check-grad", "case.yaml", "parameters.x=0.0")
    assert table.code == 3
    assert table.out.splitlines()[1].split()[4] == "-"


CALLED = """\
    import numpy as np
    from ops.external import callback


    def depth(q):
        if q > 2.5:
            raise ZeroDivisionError(f"no depth for q={q:.1f}")
        return np.array([q, q * q])


    def slope(q):
        return np.array([1.0, 2 * q])


    outside = callback(depth, result=(2,), jacobian=slope)
"""
CALLED_CASE = """\
    defaults: [engine, _self_]
    name: called
    parameters: {q: 1.0}
    stages: {depth: {_target_: model.outside}}
    sweep: {axes: {q: [1.0, 3.0, 2.0]}}
    derivatives: {d: {of: depth, wrt: q, kind: jacobian}}
"""


def test_a_sample_at_which_a_callback_raises_is_left_out(project: Project) -> None:
    project.model(CALLED).yaml(CALLED_CASE)
    answer = project.cli("check-grad", "case.yaml")
    assert answer.code == 0, answer.out + answer.err
    assert answer.err == ""
    assert (
        "left out\n  sample 1 (q=3): raised ZeroDivisionError: no depth for q=3.0 in stage 'depth', model.py:7"
        in answer.out
    )
    check = check_gradients(project.load("sweep.axes.q=[2.49]"))  # the program succeeds, the next point does not
    assert [row.verdict for row in check] == ["unresolved: no value around it"]
    assert [(one.sample, one.derivative) for one in check.left_out] == [(0, "d.q")]


def test_a_callback_that_raises_everywhere_is_an_error(project: Project) -> None:
    project.model(CALLED).yaml(CALLED_CASE)
    with pytest.raises(
        StageError, match=r"`stages\.depth` must run to its end .* at all 2 samples tried: ZeroDivisionError"
    ):
        check_gradients(project.load("sweep.axes.q=[3.0,4.0]"))
    project.model(CALLED.replace("[1.0, 2 * q]", "[1.0, 2 * q, 0.0]"))
    answer = project.cli("check-grad", "case.yaml")
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    assert "`stages.depth` must run" in answer.err
    assert "`jacobian of depth by q` must be float64[2], but is float64[3]" in answer.err


STIFF = """\
    import jax
    import jax.numpy as jnp
    from ops.ode import solve


    @jax.custom_jvp
    def wrong(a):
        return a


    wrong.defjvp(lambda primals, tangents: (primals[0], 1.1 * tangents[0]))


    def field(t, y, a):
        return -a * (y - jnp.sin(t))


    def f(a, solver):
        return solve(field, 0.0, a, t1=5.0, solver=solver).y


    def g(a, solver):
        return solve(field, 0.0, wrong(a), t1=5.0, solver=solver).y


    def h(a):
        return solve(field, 0.0, a, t1=5.0, rtol=1e-4, atol=1e-6).y
"""
STIFF_CASE = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: stiff
    parameters: {a: 20.0}
    solver: {rtol: 1.0e-4, atol: 1.0e-6}
    stages: {f: {_target_: model.f, solver: "${solver}"}}
    derivatives: {d: {of: f, wrt: a}}
"""
EXACT = 4.653e-4
"""dy/da of y' = -a (y - sin t), y(0) = 0, at t = 5, a = 20."""


def test_what_the_tolerance_of_a_solver_leaves_open_is_no_wrong_rule(project: Project) -> None:
    project.model(STIFF).yaml(STIFF_CASE)
    (row,) = check_gradients(project.load())
    assert row.verdict == "within tolerance", row
    assert row.passes
    np.testing.assert_allclose(row.largest, EXACT, rtol=1e-3)
    assert 0.01 < row.difference < 0.02
    assert re.search(r"d\.a is off by 1\.\d % at this tolerance of the solver", row.explanation)


@pytest.mark.parametrize("tolerance", [["solver.rtol=1e-8", "solver.atol=1e-10"], []], ids=["tight", "loose"])
def test_a_wrong_rule_is_found_at_any_tolerance(project: Project, tolerance: list[str]) -> None:
    project.model(STIFF).yaml(STIFF_CASE)
    (row,) = check_gradients(project.load("stages.f._target_=model.g", *tolerance))
    assert row.verdict == "differs", row
    assert 0.08 < row.difference < 0.11


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`solver.adjoint`")
def test_a_derivative_that_a_loose_tolerance_spoils_fails(project: Project) -> None:
    """Backsolve is half off, and right only with tolerances that nobody asked for."""
    project.model(STIFF).yaml(STIFF_CASE)
    (row,) = check_gradients(project.load("solver.adjoint=backsolve"))
    assert row.verdict == "differs", row
    assert 0.3 < row.difference < 0.7
    assert "1000 times tighter both agree: lower `solver.rtol`" in row.explanation


def test_the_roughness_of_a_solve_that_the_config_does_not_know_is_measured(project: Project) -> None:
    project.model(STIFF).yaml(STIFF_CASE)
    (row,) = check_gradients(project.load("stages.f._target_=model.h", "~stages.f.solver"))
    assert row.verdict.startswith("unresolved"), row
    assert row.uncertainty > 0.01


SHARED = """\
    import jax
    import jax.numpy as jnp


    @jax.jit
    def regime(x):
        return jnp.where(jax.nn.relu(x) > 1.0, 2.0, 3.0)


    def smooth(k):
        return k * regime(k) + jax.nn.relu(k) * jnp.where(k > 1.0, 2.0, 3.0)


    def cut(n):
        return {expression}


    def both(smooth, cut):
        return smooth * cut
"""


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("regime(n)", "a comparison at model.py:7"),
        ("jnp.where(jax.nn.relu(n) > 1.0, 2.0, 3.0)", "a comparison at model.py:15"),
        ("jnp.floor(n) * 2", "floor at model.py:15"),
        ("jnp.sign(n)", "sign at model.py:15"),
    ],
)
def test_a_path_that_is_cut_where_no_difference_shows_it(project: Project, expression: str, line: str) -> None:
    """Functions that several stages call are traced once, with the lines of the first, which is `smooth` here."""
    project.model(SHARED.replace("{expression}", expression)).yaml("""\
        defaults: [engine, _self_]
        name: shared
        parameters: {k: 0.4, n: 2.3}
        stages: {smooth: {_target_: model.smooth}, cut: {_target_: model.cut}, both: {_target_: model.both}}
        outputs: {y: both}
        derivatives: {d: {of: y, wrt: [k, n]}}
    """)
    by_k, by_n = check_gradients(project.load())
    assert by_k.verdict == "ok"
    assert by_n.verdict == f"disconnected: stage 'cut' cuts the path ({line})"


def test_a_cut_beside_the_path_is_not_blamed(project: Project) -> None:
    """The derivative is lost by a rule of the user's, of which the traced program does not tell."""
    project.model("""\
        import jax
        import jax.numpy as jnp


        @jax.custom_jvp
        def held(x):
            return x**2


        held.defjvp(lambda primals, tangents: (primals[0] ** 2, 0 * tangents[0]))


        def beside(k):
            return jnp.round(100 * k)


        def lost(k):
            return held(k)
    """).yaml("""\
        defaults: [engine, _self_]
        name: beside
        parameters: {k: 1.3}
        stages: {beside: {_target_: model.beside}, lost: {_target_: model.lost}}
        derivatives: {d: {of: lost, wrt: k}}
    """)
    (row,) = check_gradients(project.load())
    assert row.verdict.startswith("disconnected: stage 'lost'"), row
