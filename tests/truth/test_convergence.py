"""`converge`: what is not resolved is found, what is resolved passes, and the figures are those of closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

import engine
from engine.accuracy import knobs, turned
from engine.convergence import Convergence, Row, fit, refines
from engine.draft import make_draft
from engine.errors import ConfigError, PlanError
from tests.project import Project

CIRCLE = """\
    from ops.ode import Solver, solve


    def motion(x0, *, t1=1.0, solver=Solver(rtol=1e-4, atol=1e-4)):
        found = solve(lambda t, y, _: [y[1], -y[0]], [x0, 0.0], t1=t1, solver=solver)
        return {"x": found.y[0], "v": found.y[1], "steps": found.steps, "status": found.status}
"""
CASE = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: circle
    parameters: {x0: 1.0}
    stages: {motion: {_target_: model.motion, solver: "${solver}", t1: 628.3185307179587}}
    outputs: {x: motion.x, v: motion.v}
"""


def converge(project: Project, *overrides: str, **options: object) -> Convergence:
    return engine.converge(project.config, overrides, **options)  # type: ignore[arg-type]


def rows(found: Convergence) -> dict[tuple[str, str], Row]:
    return {(row.output, row.by): row for row in found}


def test_a_tolerance_that_looks_fine_is_found(project: Project) -> None:
    """scipy/scipy#18039: x'' = -x over a hundred turns ends at (1, 0); 1e-3 gives (1.5907, -0.5841)."""
    project.model(CIRCLE).yaml(CASE)
    loose = converge(project, "solver.rtol=1e-3", "solver.atol=1e-3")
    assert not loose.passes
    assert {row.verdict for row in loose} == {"not resolved"}
    np.testing.assert_allclose([row.largest or 0 for row in loose], [1.5907, 0.5841], rtol=0.01)
    assert {(one.key, one.before) for one in loose.varied} == {
        ("stages.motion.solver.rtol", 1e-3),
        ("stages.motion.solver.atol", 1e-3),
    }
    tight = converge(project, "solver.rtol=1e-9", "solver.atol=1e-9")
    assert tight.passes
    assert [row.verdict for row in tight] == ["ok", "near zero"]
    assert [row.change for row in tight] == pytest.approx([9e-8, 4.1e-8], rel=0.15)  # the errors, (0.99999991, -4.1e-8)


@pytest.mark.parametrize(
    ("stage", "overrides", "keys"),
    [
        ("{_target_: model.motion}", [], ["motion.solver.atol", "motion.solver.rtol"]),
        ('{_target_: model.motion, solver: {_target_: ops.ode.Solver, rtol: 1e-7}}', [],
         ["motion.solver.atol", "motion.solver.rtol"]),
        ('{_target_: model.motion, solver: "${constants.s}"}', ["constants.s.rtol=1e-7"], ["motion.solver.rtol"]),
        ("{_target_: model.plain, rtol: 1e-7, more: {deep: [{tol: 1e-7}]}}", [], ["motion.more.deep.0.tol", "motion.rtol"]),
        ("{_target_: model.plain, rtol: 1e-7, more: {_target_: model.own, _partial_: true, reltol: 1e-6}}", [],
         ["motion.more.reltol", "motion.rtol"]),
        ("{_target_: model.plain, rtol: 1e-7, more: {_target_: model.own}}", [], ["motion.more.reltol", "motion.rtol"]),
    ],
    ids=["signature", "node", "interpolation", "nested", "partial", "default"],
)  # fmt: skip
def test_tolerances_are_found_wherever_they_are(
    project: Project, stage: str, overrides: list[str], keys: list[str]
) -> None:
    more = """

    def own(reltol=1e-6):
        return {"reltol": reltol}


    def plain(x0, rtol, more):
        return x0 * (1 + rtol)
"""
    project.model(CIRCLE + more).yaml(f"""\
        defaults: [engine, _self_]
        name: found
        parameters: {{x0: 1.0}}
        constants: {{s: {{_target_: ops.ode.Solver, rtol: 1e-6, atol: 0.0}}}}
        stages: {{motion: {stage}}}
    """)
    plan = project.load(*overrides)
    found = [knob for knob in knobs(plan.config, plan.draft.pipeline) if knob.kind == "tolerance"]
    assert sorted(knob.key.removeprefix("stages.") for knob in found) == keys
    again = make_draft(turned(plan.config, [(knob, knob.value / 10) for knob in found]))
    after = {knob.key: knob.value for knob in knobs(again.config, again.pipeline)}
    assert {knob.key: knob.value / 10 for knob in found}.items() <= after.items()


def test_a_default_of_the_signature_is_varied(project: Project) -> None:
    project.model(CIRCLE).yaml("""\
        defaults: [engine, _self_]
        name: left
        parameters: {x0: 1.0}
        stages: {motion: {_target_: model.motion}}
        outputs: {x: motion.x}
    """)
    (row,) = converge(project)
    assert 0 < (row.change or 0) < 1e-3


def test_the_order_of_a_fixed_step_and_the_error_that_it_tells_of(project: Project) -> None:
    """Euler's y' = -k y is (1 - k h)^n: the changes with half and a quarter of the step are known to the last digit. The solver is
    the user's own."""
    project.model("""\
        import dataclasses

        import jax


        @dataclasses.dataclass(frozen=True)
        class RungeSolver:
            dt: float
            order: int = 1


        def decay(k, solver):
            h = solver.dt
            factor = 1 - k * h + (solver.order == 2) * (k * h) ** 2 / 2
            return {"y": jax.lax.fori_loop(0, round(1 / h), lambda i, y: factor * y, 1.0)}
    """).yaml("""\
        defaults: [engine, _self_]
        name: decay
        parameters: {k: 1.0}
        stages: {decay: {_target_: model.decay, solver: {_target_: model.RungeSolver, dt: 0.01}}}
        outputs: {y: decay.y}
        sweep: {axes: {k: [1.0, 2.0, 0.5]}}
        derivatives: {d: {of: y, wrt: k, mode: forward}}
    """)
    found = rows(converge(project))
    steps = np.array([100, 200, 400])
    ends = np.array([(1 - k / steps) ** steps for k in (1.0, 2.0, 0.5)])
    slopes = np.array([-((1 - k / steps) ** (steps - 1)) for k in (1.0, 2.0, 0.5)])
    for name, exact in (("y", ends), ("d.k", slopes)):
        row = found[name, "step"]
        changes = np.abs(np.diff(exact, axis=1)).max(axis=0)
        assert row.order == pytest.approx(math.log2(changes[0] / changes[1]), abs=0.006)
    y = found["y", "step"]
    assert (y.sample, y.verdict) == (1, "not resolved")  # 1.0 % of it at k = 2, by twice the change
    assert y.change == pytest.approx(ends[1, 1] - ends[1, 0], rel=1e-9)
    second = rows(converge(project, "+stages.decay.solver.order=2"))["y", "step"]
    assert (second.order, second.verdict) == (pytest.approx(2, abs=0.05), "ok")


@pytest.mark.slow
def test_twice_the_points_of_a_grid(project: Project) -> None:
    """Heat in a rod: the change of exp(-lambda D t) is known for both grids, and fields are compared at common points."""
    found = engine.converge(
        "conf/heat.yaml",
        ["sweep.axes.diffusivity=[0.5,1.5]", "solver=tsit5", "solver.rtol=1e-8", "stages.rod.n=7", "~derivatives"],
    )
    varied = {one.key: (one.before, one.after) for one in found.varied if one.by == "resolution"}
    assert varied == {"stages.rod.n": (7, 15), "stages.rod.points": (11, 21)}

    def end(n: int, d: float) -> float:
        return math.exp(-((2 * math.sin(math.pi / (n + 1) / 2) * (n + 1)) ** 2) * d * 0.1)

    middle, u = rows(found)["middle", "resolution"], rows(found)["u", "resolution"]
    assert (middle.sample, middle.verdict, u.verdict) == (1, "not resolved", "ok")  # u is 1 at the start
    assert middle.relative == pytest.approx(1 - end(15, 1.5) / end(7, 1.5), rel=1e-4)
    assert u.change == pytest.approx(max(end(7, d) - end(15, d) for d in (0.5, 1.5)), rel=0.2)
    assert rows(found)["middle", "tolerance"].verdict == "ok"


GRID = """\
    import dataclasses

    import jax.numpy as jnp


    @dataclasses.dataclass(frozen=True)
    class Grid:
        cells: int


    def field(a, grid):
        x = (jnp.arange(grid.cells) + 0.5) / grid.cells
        return {"x": x, "u": a * x**2, "w": a * x, "mean": jnp.mean(a * x**2)}
"""


def test_cells_are_compared_by_their_means_and_what_has_no_coordinate_is_not(project: Project) -> None:
    project.model(GRID).yaml("""\
        defaults: [engine, _self_]
        name: cells
        parameters: {a: 3.0}
        stages: {f: {_target_: model.field, grid: {_target_: model.Grid, cells: 20}}}
        outputs: {u: {from: f.u, dims: [x]}, w: {from: f.w, dims: [other]}, mean: f.mean}
        coords: {x: f.x}
    """)
    found = rows(converge(project))
    h = 1 / 20
    assert found["u", "resolution"].change == pytest.approx(
        3 * h**2 / 16
    )  # the mean of two squares, a quarter cell away
    assert found["mean", "resolution"].change == pytest.approx(3 * h**2 / 12 * (1 - 1 / 4))
    assert found["w", "resolution"].verdict == "not compared: other has 20 and 40 points, and no coordinate"


def test_points_in_common() -> None:
    nodes = np.linspace(0, 1, 11)
    whole = fit(nodes, np.linspace(0, 1, 21))
    assert not isinstance(whole, str)
    assert whole.whole
    assert whole.theirs.tolist() == list(range(0, 21, 2))
    assert not isinstance(back := fit(nodes[::-1], np.linspace(1, 0, 21)), str)
    assert back.theirs.tolist() == list(range(0, 21, 2))
    cells = (np.arange(10) + 0.5) / 10
    assert fit(cells, (np.arange(20) + 0.5) / 20) == "pairs"
    assert fit(nodes, np.linspace(0, 1, 20)) == "none"
    assert refines(nodes, np.linspace(0, 1, 21))
    assert not refines(nodes, np.linspace(0, 2, 21))
    assert not refines(np.arange(10), np.arange(20))  # more members are no finer grid


def test_integers_that_are_no_resolution_are_left_alone(project: Project) -> None:
    project.model("""\
        import jax.numpy as jnp


        def f(a, members, power=4, rtol=1e-6):
            return {"member": jnp.arange(members), "y": a ** power * jnp.ones(members) * (1 + rtol)}
    """).yaml("""\
        defaults: [engine, _self_]
        name: members
        parameters: {a: 1.5}
        stages: {f: {_target_: model.f, members: 4}}
        outputs: {y: {from: f.y, dims: [member]}}
        coords: {member: f.member}
    """)
    assert [one.key for one in converge(project).varied] == ["stages.f.rtol"]


def test_a_named_key_is_varied_in_place_of_what_is_recognised(project: Project) -> None:
    """The rectangle rule for the integral of x^2: its error is 1/(2 n) - 1/(6 n^2), and h is 1/n."""
    project.model("""\
        import jax.numpy as jnp


        def area(a, n, dx):
            x = jnp.arange(n) / n
            steps = jnp.round(1 / dx)
            return {"by_n": a * jnp.mean(x**2), "by_dx": a * (1 / 3 - 1 / (2 * steps) + 1 / (6 * steps**2))}
    """).yaml("""\
        defaults: [engine, _self_]
        name: area
        parameters: {a: 1.0, dx: 0.125}
        constants: {n: 10}
        stages: {area: {_target_: model.area, n: "${constants.n}"}}
        sweep: {axes: {a: [1.0, 2.0]}}
    """)

    def area(n: int) -> float:
        return 1 / 3 - 1 / (2 * n) + 1 / (6 * n**2)

    doubled = rows(converge(project, double=["constants.n"]))
    assert doubled["area.by_n", "resolution"].change == pytest.approx(2 * (area(20) - area(10)))
    assert doubled["area.by_dx", "resolution"].change == 0
    halved = rows(converge(project, halve=["parameters.dx"]))["area.by_dx", "step"]
    assert halved.change == pytest.approx(2 * (area(16) - area(8)))
    assert halved.order == pytest.approx(math.log2((area(16) - area(8)) / (area(32) - area(16))), abs=0.006)
    with pytest.raises(PlanError, match=r"none is recognised\. .* --tenth, --halve or --double"):
        converge(project)
    for key, words in (("constant.n", "'constants.n'"), ("name", "is 'area'"), ("parameters.a", "must not be swept")):
        with pytest.raises(ConfigError, match=words):
            converge(project, double=[key])


def test_samples_that_fail_are_told_of(project: Project) -> None:
    """A sample that fails alike in both runs is left out; one that fails in one of them only is a finding."""
    project.model("""\
        import jax.numpy as jnp


        def f(t1, rtol):
            finer = jnp.where((t1 < 0.2) & (rtol < 1e-6), 4, 0)
            return {"y": 1 / (1 - t1) * (1 + rtol), "status": jnp.where(t1 > 1, 2, finer)}
    """).yaml("""\
        defaults: [engine, _self_]
        name: pole
        parameters: {t1: 0.5}
        stages: {f: {_target_: model.f, rtol: 1e-6}}
        outputs: {y: f.y}
        sweep: {axes: {t1: [0.1, 0.5, 2.0]}}
    """)
    found = converge(project)
    assert [(one.sample, one.why) for one in found.left_out] == [(2, "failed with status max_steps")]
    assert [(one.sample, one.before, one.after) for one in found.turned] == [(0, "ok", "solver")]
    assert [row.verdict for row in found] == ["ok"]
    assert not found.passes
    with pytest.raises(PlanError, match="all 1 that were tried failed: sample 0"):
        converge(project, "sweep.axes.t1=[2.0]")


def test_a_tenth_that_the_precision_cannot_resolve_is_not_tried(project: Project) -> None:
    project.model(CIRCLE).yaml(CASE)
    with pytest.raises(PlanError, match="float32 cannot resolve a tenth of it; write precision=float64"):
        converge(project, "precision=float32", "solver.rtol=1e-6", "stages.motion.t1=1.0")
