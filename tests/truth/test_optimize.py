"""Designs with closed forms: the optimum, what is claimed of it, and what is said where there is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from engine.reasons import REASONS
from engine.status import OPTIMIZE_STATUS
from tests.project import Project

CODES = {code: name for name, code in REASONS.items()}
WORDS = {code: name for name, code in OPTIMIZE_STATUS.items()}

MODEL = """
import jax.numpy as jnp

def apart(E, d):
    a, b = E / 2e11, d / 3e-3
    return 100 * (a - 1) ** 2 + (b - a) ** 2

def barrier(x): return -jnp.log(1 - x) + 50 * (x - 0.9) ** 2
def corner(x, y): return (x - 3) ** 2 + (y + 1) ** 2
def bowl(x, y): return {"f": x**2 + y**2, "sum": x + y, "both": jnp.stack([x, y])}
def two_wells(x): return (x**2 - 1) ** 2 + 0.3 * x
def scaled(x, at, size): return size * ((x - at) / at) ** 2 + size
def vector(x): return jnp.stack([x, x**2, x**3])
def one_element(x): return (x[None] - 2.0) ** 2
def nowhere(x): return x * jnp.nan
def half(x): return jnp.where(x < 0, jnp.nan, (x - 2.0) ** 2)
def flat(x): return 0 * x + 3.0
def falling(x): return x
def creeping(x): return jnp.exp(-x)
def saddle(x, y): return x**2 - y**2
def kink(x): return jnp.abs(x) + 1.0
def stepped(x): return jnp.round(x) ** 2
def counted(x, n): return (x - n) ** 2 + 0.1 * n
def quartic(x): return (x - 1.0) ** 4
def offset(x): return 1e9 + (x - 2.0) ** 2
def line(u): return jnp.sum((u - jnp.arange(4.0)) ** 2)
def paraboloid(x, y): return {"f": (x - 3) ** 2 + x * y + (y + 4) ** 2 - 3, "sum": x + y}
def rosenbrock(x, y): return (1 - x) ** 2 + 100 * (y - x**2) ** 2
"""


def design(project: Project, function: str, parameters: str, optimize: str, outputs: str = "{loss: loss}") -> Project:
    """A pipeline of one stage, and what is asked of it."""
    return project.model(MODEL).yaml(
        f"""
        defaults: [engine, {{scheduler: synchronous}}, _self_]
        name: design
        parameters: {parameters}
        stages: {{loss: {{_target_: model.{function}}}}}
        outputs: {outputs}
        optimize: {optimize}
        """
    )


def reason(found: Any) -> str:
    return CODES[int(found.reason)]


def status(found: Any) -> str:
    return WORDS[int(found.status)]


@pytest.mark.parametrize("scale", ["auto", "linear, 1e11"])
def test_parameters_that_are_powers_of_ten_apart(project: Project, scale: str) -> None:
    """Unscaled, quasi-Newton methods claim success at 6.25 and leave E where it was."""
    design(project, "apart", "{E: 1.5e11, d: 5.0e-3}", "{minimize: loss, variables: {E: {}, d: {}}}")
    found = project.run()
    assert status(found) == "ok"
    assert float(found.objective) < 1e-10
    assert float(found["variables.E"]) == pytest.approx(2e11, rel=1e-6)
    assert float(found["variables.d"]) == pytest.approx(3e-3, rel=1e-6)


@pytest.mark.parametrize("power", [-15, -9, -3, 0, 6, 12, 15])
@pytest.mark.parametrize("size", [-12, 0, 12])
def test_any_scale_of_variable_and_objective(project: Project, power: int, size: int) -> None:
    design(
        project,
        "scaled",
        f"{{x: 1.0e{power}, at: 3.0e{power}, size: 1.0e{size}}}",
        "{minimize: loss, variables: {x: {}}}",
    )
    found = project.run()
    assert status(found) == "ok"
    assert float(found["variables.x"]) == pytest.approx(3 * 10.0**power, rel=1e-4)


@pytest.mark.parametrize("start", [0.0, 0.2, 0.999999])
def test_a_line_search_never_leaves_the_bounds(project: Project, start: float) -> None:
    design(project, "barrier", f"{{x: {start}}}", "{minimize: loss, variables: {x: {bounds: [0.0, 0.999999]}}}")
    found = project.run()
    assert status(found) == "ok"
    assert float(found["variables.x"]) == pytest.approx(0.8381966011, abs=1e-6)
    assert float(found.objective) == pytest.approx(2.0123562735, abs=1e-10)
    assert (found["history.status"].values[: int(found.steps) + 1] == 1).all()


@pytest.mark.parametrize("start", [(0.0, 2.0), (2.0, 0.0), (1.0, 1.0), (0.0, 0.0), (2.0, 2.0)])
def test_bounds_are_kept_and_starts_on_them_move(project: Project, start: tuple[float, float]) -> None:
    design(
        project,
        "corner",
        f"{{x: {start[0]}, y: {start[1]}}}",
        "{minimize: loss, variables: {x: {bounds: [0, 2]}, y: {bounds: [0, 2]}}}",
    )
    found = project.run()
    assert (float(found["variables.x"]), float(found["variables.y"])) == (2.0, 0.0)
    assert float(found.objective) == 2.0
    assert status(found) == "ok"
    assert (int(found["active.x"]), int(found["active.y"])) == (1, -1)
    # Moving the bound by dx changes the objective by the multiplier times dx.
    assert float(found["multipliers.x"]) == pytest.approx(-2.0)
    assert float(found["multipliers.y"]) == pytest.approx(2.0)


def test_equal_bounds_hold_a_variable(project: Project) -> None:
    design(
        project,
        "corner",
        "{x: 1.5, y: 1.0}",
        "{minimize: loss, variables: {x: {bounds: [1.5, 1.5]}, y: {bounds: [-5, 5]}}}",
    )
    found = project.run()
    assert status(found) == "ok"
    assert float(found["variables.x"]) == 1.5
    assert float(found["variables.y"]) == pytest.approx(-1.0, abs=1e-6)


@pytest.mark.parametrize("method", ["auto", "slsqp", "trust_constr", "augmented_lagrangian"])
def test_a_constraint_with_its_multiplier(project: Project, method: str) -> None:
    design(
        project,
        "bowl",
        "{x: 3.0, y: -1.0}",
        f"{{minimize: f, variables: {{x: {{}}, y: {{}}}}, constraints: {{sum: {{min: 1.0}}}}, method: {method}}}",
        "{f: loss.f, sum: loss.sum}",
    )
    found = project.run()
    assert status(found) == "ok", reason(found)
    assert float(found["variables.x"]) == pytest.approx(0.5, abs=1e-5)
    assert float(found["variables.y"]) == pytest.approx(0.5, abs=1e-5)
    assert float(found.objective) == pytest.approx(0.5, abs=1e-5)
    assert float(found["multipliers.sum"]) == pytest.approx(-1.0, abs=1e-4)
    assert float(found["sum"]) == pytest.approx(1.0, abs=1e-5)


def test_an_equality_of_an_array(project: Project) -> None:
    design(
        project,
        "bowl",
        "{x: 3.0, y: -1.0}",
        "{minimize: f, variables: {x: {}, y: {}}, constraints: {both: {equals: 0.25}}}",
        "{f: loss.f, both: loss.both}",
    )
    found = project.run()
    assert status(found) == "ok"
    np.testing.assert_allclose(found["both"], 0.25, atol=1e-6)
    np.testing.assert_allclose(found["multipliers.both"], -0.5, atol=1e-5)


def test_an_infeasible_problem_is_said_to_be_so(project: Project) -> None:
    design(
        project,
        "bowl",
        "{x: 0.5, y: 0.5}",
        "{minimize: f, variables: {x: {bounds: [0, 1]}, y: {bounds: [0, 1]}}, constraints: {sum: {min: 3.0}}}",
        "{f: loss.f, sum: loss.sum}",
    )
    answer = project.cli("run", str(project.config), "store.path=store.zarr", "--json")
    assert answer.code == 3
    assert answer.json["counts"] == {"infeasible": 1}
    assert answer.json["optima"][0]["infeasibility"] == pytest.approx(1 / 3, rel=1e-3)  # the best sum is 2 of 3


def test_all_minima_are_listed_and_the_best_is_returned(project: Project) -> None:
    design(
        project,
        "two_wells",
        "{x: 0.0}",
        "{minimize: loss, variables: {x: {bounds: [-3, 3]}}, starts: {design: grid, axes: {x: [-2.0, 0.2, 2.0]}}}",
    )
    summary = project.summary()
    (optimum,) = summary.optima
    assert (summary.status, summary.exit_code) == ("complete", 0)
    assert [m.searches for m in optimum.minima] == [1, 2]
    found = [(m.variables["x"], m.objective) for m in optimum.minima]
    np.testing.assert_allclose(found, [(-1.035578, -0.305428), (0.960150, 0.294146)], atol=1e-6)


def test_maximize_reports_the_objective_as_it_is(project: Project) -> None:
    design(project, "two_wells", "{x: 0.1}", "{maximize: loss, variables: {x: {bounds: [-0.9, 0.9]}}}")
    found = project.run()
    assert status(found) == "ok"
    assert float(found["variables.x"]) == pytest.approx(0.0754287, abs=1e-6)  # 4 x^3 - 4 x + 0.3 = 0
    x = float(found["variables.x"])
    assert float(found.objective) == pytest.approx((x**2 - 1) ** 2 + 0.3 * x, rel=1e-12)
    assert float(found["eigenvalues"].max()) < 0


@pytest.mark.parametrize(
    ("function", "start", "bounds", "said"),
    [
        ("nowhere", "1.0", "null", "start_failed"),
        ("half", "-1.0", "[-2, 3]", "start_failed"),
        ("flat", "1.0", "[0, 2]", "flat"),
        ("falling", "1.0", "null", "unbounded"),
        ("stepped", "2.2", "[0, 3]", "flat"),
    ],
)
def test_no_false_claims(project: Project, function: str, start: str, bounds: str, said: str) -> None:
    design(project, function, f"{{x: {start}}}", f"{{minimize: loss, variables: {{x: {{bounds: {bounds}}}}}}}")
    summary = project.summary()
    assert summary.exit_code == 3
    assert summary.failures[0].reason == said


def test_a_minimum_at_infinity_is_none(project: Project) -> None:
    design(project, "creeping", "{x: 1.0}", "{minimize: loss, variables: {x: {}}, max_steps: 400}")
    assert project.summary().exit_code == 3


def test_a_saddle_is_no_minimum(project: Project) -> None:
    design(
        project,
        "saddle",
        "{x: 1.0, y: 0.0}",
        "{minimize: loss, variables: {x: {}, y: {bounds: [-1, 1]}}}",
    )
    assert reason(project.run()) == "saddle"


def test_a_kink_is_not_certified(project: Project) -> None:
    """The slope of |x| jumps at its minimum: the point is kept, and not claimed."""
    design(project, "kink", "{x: 1.3}", "{minimize: loss, variables: {x: {bounds: [-2, 2]}}}")
    found = project.run()
    assert float(found.objective) == pytest.approx(1.0, abs=1e-3)
    if status(found) == "ok":  # found to the last bit, where JAX's slope of |x| is 0 or 1
        assert float(found["variables.x"]) == 0.0


def test_a_failing_start_names_the_stage_and_its_line(project: Project) -> None:
    design(project, "nowhere", "{x: 1.0}", "{minimize: loss, variables: {x: {}}}")
    answer = project.cli("run", str(project.config), "store.path=store.zarr")
    assert answer.code == 3
    assert "stage 'loss'" in answer.out
    assert "def nowhere(x): return x * jnp.nan" in answer.out


def test_nan_on_half_of_the_box_leaves_the_other_starts_alone(project: Project) -> None:
    design(
        project,
        "half",
        "{x: 1.0}",
        "{minimize: loss, variables: {x: {bounds: [-3, 3]}}, starts: {design: grid, axes: {x: [-2.0, -1.0, 1.0, 3.0]}}}",
    )
    found = project.run()
    assert [WORDS[int(code)] for code in found.status] == ["nonfinite", "nonfinite", "ok", "ok"]
    np.testing.assert_allclose(found["variables.x"], [math.nan, math.nan, 2.0, 2.0], atol=1e-6)
    assert int(found.best) in (2, 3)
    assert [CODES[int(code)] for code in found.reason[:2]] == ["start_failed"] * 2


def test_a_large_constant_does_not_end_a_search_early(project: Project) -> None:
    design(project, "offset", "{x: 1.0}", "{minimize: loss, variables: {x: {}}}")
    assert float(project.run()["variables.x"]) == pytest.approx(2.0, abs=1e-4)


def test_a_flat_minimum_is_found(project: Project) -> None:
    design(project, "quartic", "{x: 3.0}", "{minimize: loss, variables: {x: {}}}")
    found = project.run()
    assert status(found) == "ok"
    assert float(found["variables.x"]) == pytest.approx(1.0, abs=5e-3)


def test_an_array_variable_and_its_bounds(project: Project) -> None:
    design(
        project,
        "line",
        "{u: [0.0, 0.0, 0.0, 0.0]}",
        "{minimize: loss, variables: {u: {bounds: [0.5, 2.5], start: 1.0}}}",
    )
    found = project.run()
    np.testing.assert_allclose(found["variables.u"], [0.5, 1.0, 2.0, 2.5], atol=1e-7)
    np.testing.assert_array_equal(found["active.u"], [-1, 0, 0, 1])


def test_integers_are_enumerated_on_request(project: Project) -> None:
    design(
        project,
        "counted",
        "{x: 2, n: 3}",
        "{minimize: loss, variables: {x: {bounds: [-3, 3]}, n: {integer: enumerate, bounds: [1, 4]}}}",
    )
    summary = project.summary()
    (optimum,) = summary.optima
    assert optimum.variables == {"x": pytest.approx(1.0, abs=1e-6), "n": 1}
    assert summary.samples == 4


@pytest.mark.parametrize(
    ("reduce", "at"), [("mean", 2.5), ("sum", 2.5), ("max", 3.0), ({"cvar": 0.5}, 3.0), ({"quantile": 0.5}, None)]
)
def test_robust_design_over_a_sweep(project: Project, reduce: object, at: float | None) -> None:
    """(x - n)^2 over n = 1, 2, 2, 5: the mean is least at 2.5, the worst case at 3; half of the samples lie in the tail there too."""
    project.model(MODEL).yaml(
        f"""
        defaults: [engine, {{scheduler: synchronous}}, _self_]
        name: robust
        parameters: {{x: 0.5, n: 1.0}}
        stages: {{loss: {{_target_: model.offcentre}}}}
        outputs: {{loss: loss}}
        sweep: {{design: zip, axes: {{n: [1.0, 2.0, 2.0, 5.0]}}}}
        optimize: {{minimize: loss, variables: {{x: {{bounds: [0, 10]}}}}, over: sweep, reduce: {reduce}, max_steps: 400}}
        """
    )
    project.model(MODEL + "\ndef offcentre(x, n): return (x - n) ** 2\n")
    found = project.run()
    assert found["loss"].dims == ("sample",)
    losses = (float(found["variables.x"]) - np.array([1.0, 2.0, 2.0, 5.0])) ** 2
    np.testing.assert_allclose(found["loss"], losses, rtol=1e-12)
    if reduce in ("mean", "sum"):
        assert float(found["variables.x"]) == pytest.approx(at, abs=1e-6)
        assert status(found) == "ok"
    elif at is not None:  # the best point is a kink: it is approached, and not claimed
        assert float(found["variables.x"]) == pytest.approx(at, abs=0.05)


def test_a_design_for_each_point_of_a_sweep(project: Project) -> None:
    project.model(MODEL + "\ndef offcentre(x, n): return (x - n) ** 2 + n\n").yaml(
        """
        defaults: [engine, {scheduler: synchronous}, _self_]
        name: each
        parameters: {x: 0.5, n: 1.0}
        stages: {loss: {_target_: model.offcentre}}
        outputs: {loss: loss}
        sweep: {axes: {n: [1.0, 2.0, 5.0]}}
        derivatives: {slope: {of: loss, wrt: n}}
        optimize: {minimize: loss, variables: {x: {bounds: [0, 10]}}, starts: {samples: 2}}
        """
    )
    found = project.run()
    assert found["variables.x"].dims == ("n", "start")
    np.testing.assert_allclose(found["variables.x"], np.repeat([[1.0], [2.0], [5.0]], 2, axis=1), atol=1e-6)
    np.testing.assert_allclose(found["slope.n"], 1.0, atol=1e-5)  # the envelope theorem: only the explicit part counts
    assert found.best.dims == ("n",)


REFUSED: dict[str, tuple[str, str, str]] = {
    "an array": (
        "vector",
        "{minimize: loss, variables: {x: {}}}",
        "has the shape (3,). Write `reduce: mean` or `reduce: sum`",
    ),
    "one element": ("one_element", "{minimize: loss, variables: {x: {}}}", "has the shape (1,). Write `reduce: mean`"),
    "a start outside": (
        "half",
        "{minimize: loss, variables: {x: {bounds: [2, 3]}}}",
        "`optimize.variables.x.start` must lie within its bounds",
    ),
    "bounds the wrong way": (
        "half",
        "{minimize: loss, variables: {x: {bounds: [3, 2]}}}",
        "must be [low, high], but is [3, 2]. Swap them.",
    ),
    "an unknown variable": (
        "half",
        "{minimize: loss, variables: {y: {}}}",
        "`optimize.variables.y` must be a parameter, but 'y' is none.",
    ),
    "an unknown output": ("half", "{minimize: los, variables: {x: {}}}", "Did you mean 'loss'?"),
    "two goals": (
        "half",
        "{minimize: loss, maximize: loss, variables: {x: {}}}",
        "must have one of minimize, maximize or data",
    ),
    "no goal": ("half", "{variables: {x: {}}}", "must have one of minimize, maximize or data, but has none"),
    "an odd key": ("half", "{minimize: loss, variables: {x: {}}, constrains: {}}", "Did you mean 'constraints'?"),
    "empty limits": (
        "half",
        "{minimize: loss, variables: {x: {}}, constraints: {loss: {}}}",
        "must have min, max, both, or equals",
    ),
    "crossed limits": (
        "half",
        "{minimize: loss, variables: {x: {}}, constraints: {loss: {min: 2, max: 1}}}",
        "must have min <= max",
    ),
    "over nothing": ("half", "{minimize: loss, variables: {x: {}}, over: sweep}", "must have a sweep to reduce over"),
    "a logarithm of zero": (
        "half",
        "{minimize: loss, variables: {x: {scale: log, bounds: [0, 2]}}}",
        "must be linear or auto where zero",
    ),
    "starts without bounds": (
        "half",
        "{minimize: loss, variables: {x: {}}, starts: {samples: 4}}",
        "`optimize.starts.axes.x` must be given",
    ),
    "bounds for one that has none": (
        "half",
        "{minimize: loss, variables: {x: {bounds: [0, 2]}}, method: {_target_: optimistix.BFGS, rtol: 1.0e-8, atol: 1.0e-8}}",
        "lbfgs",
    ),
    "an unknown method": ("half", "{minimize: loss, variables: {x: {}}, method: lbgfs}", "Did you mean 'lbfgs'?"),
    "constraints for one that has none": (
        "half",
        "{minimize: loss, variables: {x: {}}, constraints: {loss: {max: 1}}, method: adam}",
        "slsqp",
    ),
    "residuals for one that needs them": (
        "half",
        "{minimize: loss, variables: {x: {}}, method: levenberg_marquardt}",
        "residuals",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(project: Project, case: str) -> None:
    function, optimize, said = REFUSED[case]
    design(project, function, "{x: 1.0}", optimize)
    with pytest.raises(ValueError) as caught:
        project.load()
    assert said in str(caught.value)


ROBUST = """
defaults: [engine, {{scheduler: synchronous}}, _self_]
name: robust
parameters: {{x: 0.5, n: 1.0}}
stages: {{loss: {{_target_: model.some_fail}}}}
outputs: {{loss: loss}}
sweep: {{design: zip, axes: {{n: [1.0, 2.0, 3.0, 9.0]}}}}
optimize: {{minimize: loss, variables: {{x: {{bounds: [0, 10]}}}}, over: sweep, {more}}}
"""
SOME_FAIL = "\ndef some_fail(x, n): return jnp.where(n > 8, jnp.nan, (x - n) ** 2)\n"


def test_failed_samples_are_left_out_only_where_that_is_allowed(project: Project) -> None:
    project.model(MODEL + SOME_FAIL).yaml(ROBUST.format(more="allow_failed: 0.25"))
    found = project.run(store="allowed.zarr")
    assert status(found) == "ok"
    assert float(found["variables.x"]) == pytest.approx(2.0, abs=1e-6)
    assert float(found.objective) == pytest.approx(2 / 3, rel=1e-9)
    assert set(found["history.excluded"].values[: int(found.steps) + 1]) == {1.0}
    assert np.isnan(found["loss"].values[3])
    project.yaml(ROBUST.format(more="allow_failed: 0.2"))
    summary = project.summary(store="refused.zarr")
    assert [f.reason for f in summary.failures] == ["start_failed"]
    assert "some_fail" in str(summary.origins[0])


def test_bad_steps_in_a_row_end_a_search_with_their_place(project: Project) -> None:
    """Finite at the start alone: the start is kept, and nothing is claimed of it."""
    design(project, "only_here", "{x: 1.0}", "{minimize: loss, variables: {x: {bounds: [0.5, 2]}}, max_bad_steps: 7}")
    project.model(
        MODEL + "\ndef only_here(x): return x * jnp.where(jnp.abs(x - 1) < 1e-12, 1.0, jnp.log(-jnp.abs(x)))\n"
    )
    summary = project.summary()
    assert [(f.status, f.reason) for f in summary.failures] == [("not_converged", "bad_steps")]
    assert "only_here" in str(summary.origins[0])
    (optimum,) = summary.optima
    assert (optimum.variables["x"], optimum.objective, optimum.steps) == (1.0, 1.0, 7)


def test_what_is_compiled_does_not_grow_with_the_starts(project: Project) -> None:
    counts = []
    for samples in (2, 40):
        design(
            project,
            "two_wells",
            "{x: 0.0}",
            f"{{minimize: loss, variables: {{x: {{bounds: [-3, 3]}}}}, starts: {{samples: {samples}}}}}",
        )
        counts.append(project.summary(store=f"{samples}.zarr").compilations)
    assert counts[1] <= counts[0] <= 5


def test_the_history_leads_to_the_result(project: Project) -> None:
    design(project, "rosenbrock", "{x: -1.2, y: 1.0}", "{minimize: loss, variables: {x: {bounds: [-2, 2]}, y: {}}}")
    found = project.run()
    steps = int(found.steps)
    assert float(found["history.x"][0]) == -1.2
    assert float(found["history.objective"][0]) == pytest.approx(24.2)
    assert float(found["history.objective"][steps]) == float(found.objective)
    assert np.isnan(found["history.objective"].values[steps + 1 :]).all()
    assert (np.diff(found["history.objective"].values[: steps + 1]) <= 1e-15).all()


SECOND = """
import jax, jax.numpy as jnp, numpy as np

@jax.custom_vjp
def square(x): return x * x

def forward(x): return square(x), x

def backward(x, slope):
    host = lambda x: 2.0 * np.asarray(x)
    return (slope * jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"),)

square.defvjp(forward, backward)

def once(x, y): return {"f": square(x - 1.0) + (y - 2.0) ** 2, "sum": x + y}
"""
DIVIDED = "{minimize: f, variables: {x: {}, y: {}}, constraints: {sum: {max: 2.0}}, method: trust_constr}"


def test_products_with_the_hessian_where_a_stage_has_none(project: Project) -> None:
    """A gradient that the host computes has no derivative: said once, and the search learns the curvature instead."""
    project.model(SECOND).yaml(
        f"""
        defaults: [engine, {{scheduler: synchronous}}, _self_]
        name: once
        parameters: {{x: 0.0, y: 0.0}}
        stages: {{once: {{_target_: model.once}}}}
        outputs: {{f: once.f, sum: once.sum}}
        optimize: {DIVIDED}
        """
    )
    summary = project.summary()
    (said,) = [w for w in summary.warnings if "products with the Hessian" in w]
    assert said.startswith("`optimize.method` trust_constr should get products with the Hessian, but ")
    found = project.run()
    assert float(found["variables.x"]) == pytest.approx(0.5, abs=1e-5)
    assert float(found["variables.y"]) == pytest.approx(1.5, abs=1e-5)


def test_a_plan_says_whether_the_curvature_is_exact(project: Project) -> None:
    design(project, "bowl", "{x: 3.0, y: -1.0}", DIVIDED, "{f: loss.f, sum: loss.sum}")
    told = project.cli("plan", "case.yaml")
    assert "exact, by products with the Hessian" in told.out
    assert "exact, by products" not in project.cli("plan", "case.yaml", "optimize.hessian=false").out


@pytest.mark.parametrize("constrained", [False, True])
def test_the_paraboloid_of_openmdaos_guide(project: Project, constrained: bool) -> None:
    """Published: -27.33333 at (6.66667, -7.33333), and -27 at (7, -7) where 0 <= x + y <= 10; from its start, and from each of 32."""
    bounded = "variables: {x: {bounds: [-50, 50]}, y: {bounds: [-50, 50]}}"
    asked = f"minimize: f, {bounded}" + (", constraints: {sum: {min: 0, max: 10}}" if constrained else "")
    design(project, "paraboloid", "{x: 3.0, y: -4.0}", f"{{{asked}}}", "{f: loss.f, sum: loss.sum}")
    x, y, least = (7.0, -7.0, -27.0) if constrained else (20 / 3, -22 / 3, -82 / 3)
    alone, many = project.run(), project.run("optimize.starts={design: sobol, samples: 32}", store="many.zarr")
    best = int(many.best)
    for name, value in (("variables.x", x), ("variables.y", y), ("objective", least)):
        assert float(alone[name]) == pytest.approx(value, rel=1e-7)
        assert float(many[name][best]) == pytest.approx(value, rel=1e-7)
        np.testing.assert_allclose(many[name], value, rtol=1e-4)
    assert status(alone) == "ok"
    assert (many.status == OPTIMIZE_STATUS["ok"]).all()
