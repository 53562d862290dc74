"""What people met when they differentiated simulations with other tools, as small configs: the right value, or a refusal in words."""

from __future__ import annotations

import io
import math

import jax
import numpy as np
import pytest

from engine.errors import PlanError, StageError, UserError
from engine.progress import Bar
from tests.project import Project

MODEL = """\
    import jax
    import jax.numpy as jnp

    from ops.ode import solve


    def fall(g, solver):
        return solve(lambda t, y, g: [y[1], -g], [20.0, 0.0], g, t1=10.0, event=lambda t, y, g: y[0], solver=solver)


    def decay(k, solver):
        return solve(lambda t, y, k: -k * y, 2.0, k, t1=1.0, solver=solver)


    def enclosed(k, solver):
        # The same with k in the closure of the vector field.
        return solve(lambda t, y, _: -k * y, 2.0, t1=1.0, solver=solver)


    def wave(start, end, solver):
        return solve(lambda t, y, _: -y * jnp.cos(t), 1.0, t0=start, t1=end, solver=solver)


    def sampled(ts, solver):
        found = solve(lambda t, y, _: -3 * y, 1.0, ts=ts, solver=solver)
        return {"sum": jnp.sum(found.y), "status": found.status}


    def contract(a, solver):
        return solve(lambda t, y, a: -a * (y - jnp.sin(t)), 0.0, a, t1=5.0, solver=solver)


    def ball(c, v0, solver, norm):
        return solve(lambda t, v, c: -c * norm(v) * v - jnp.array([0.0, 9.81]), v0, c, t1=1.0, solver=solver)


    def long(k, solver):
        found = solve(lambda t, y, k: -k * y + jnp.roll(y, 1) * jnp.cos(t), jnp.ones(100), k, t1=20.0, solver=solver)
        return {"total": jnp.sum(found.y**2), "status": found.status}


    @jax.custom_vjp
    def reverse_only(k):
        return k**2


    reverse_only.defvjp(lambda k: (k**2, k), lambda k, g: (2 * k * g,))


    def squared(k):
        return reverse_only(k)


    def grown(k):
        return {"end": jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * k), (0, 1.0))[1]}


    def slowed(k, solver):
        return solve(lambda t, y, k: -reverse_only(k) * y, 1.0, k, t1=1.0, solver=solver)


    def branching(k, solver):
        # y' = -k y, then -2 k y.
        def field(t, y, k):
            return jax.lax.cond(t < 0.5, lambda y: -k * y, lambda y: -2 * k * y, y)

        return solve(field, 1.0, k, t1=1.0, solver=solver, jumps=[0.5])


    def inverted(p, solver):
        # y' = -s y with s, the sum of p, as the root that Newton's method finds in a loop.
        def field(t, y, p):
            s = jnp.sum(p)
            root = jax.lax.while_loop(lambda c: jnp.abs(c**2 - s**2) > 1e-13, lambda c: 0.5 * (c + s**2 / c), s + 1.0)
            return -root * y

        return solve(field, 1.0, p, t1=1.0, solver=solver)


    def draw(key, impl):
        return {"key": key, "split": jax.random.split(key, 3), "other": jax.random.key(7, impl=impl), "old": jax.random.PRNGKey(3)}


    def shapes(k):
        return {"three": k * jnp.arange(3.0), "one": jnp.reshape(k**2, (1,))}


    def counted(x, n):
        return n * x**2


    def looked_up(x, n):
        return jnp.array([1.0, 4.0, 9.0])[n] * x


    def rounded(x):
        return {"floor": jnp.floor(100 * x) / 100, "round": jnp.round(x, 2), "smooth": x**2}


    def kinks(x, y):
        return {"abs": jnp.abs(x), "max": jnp.maximum(x, y), "clip": jnp.clip(x, 0.0, 1.0), "beyond": jnp.clip(x - 1, 0.0, 1.0)}
"""
ONE_LINE = "Write adjoint: auto."


def solving(stage: str, parameters: str, outputs: str, derivatives: str) -> str:
    """A config with one stage that solves an ODE."""
    return f"""\
    defaults: [engine, {{solver: tsit5}}, _self_]
    name: {stage}
    parameters: {{{parameters}}}
    solver: {{rtol: 1.0e-9, atol: 1.0e-11, max_steps: 256}}
    stages: {{{stage}: {{_target_: model.{stage}, solver: "${{solver}}"}}}}
    outputs: {{{outputs}}}
    derivatives: {{{derivatives}}}
    """


def plain(stage: str, parameters: str, derivatives: str = "") -> str:
    """A config with one stage that solves nothing."""
    return f"""\
    defaults: [engine, _self_]
    name: {stage}
    parameters: {{{parameters}}}
    stages: {{{stage}: {{_target_: model.{stage}}}}}
    derivatives: {{{derivatives}}}
    """


@pytest.fixture
def project(project: Project) -> Project:
    return project.model(MODEL)


# ---- through a solve


def test_gradient_of_an_event_time(project: Project) -> None:
    """patrick-kidger/diffrax#451: zero. A fall from 20 m takes T = sqrt(40 / g), dT/dg = -T / (2 g), d2T/dg2 = 3 T / (4 g^2)."""
    kinds = "d: {of: T, wrt: g}, r: {of: T, wrt: g, mode: reverse}, h: {of: T, wrt: g, kind: hessian}"
    ds = project.yaml(solving("fall", "g: 9.81", "T: fall.event_time", kinds)).run("+sweep.axes.g=[9.81,1.62]")
    np.testing.assert_allclose(float(ds["T"][0]), 2.0192751094, rtol=1e-9)
    np.testing.assert_allclose(float(ds["d.g"][0]), -0.1029192207, rtol=1e-8)
    g = ds["g"].values
    time = np.sqrt(40 / g)
    for name, exact in {"T": time, "d.g": -time / (2 * g), "r.g": -time / (2 * g), "h.g.g": 0.75 * time / g**2}.items():
        np.testing.assert_allclose(ds[name], exact, rtol=1e-8, err_msg=name)


SECOND = {"h": "kind: hessian", "hv": "kind: hvp, direction: 1.0", "d2": "order: 2"}


@pytest.mark.parametrize("adjoint", ["auto", *(pytest.param(a, marks=pytest.mark.slow) for a in ("forward", "direct"))])
def test_second_derivatives_by_every_adjoint_that_has_them(project: Project, adjoint: str) -> None:
    """diffrax#332, #314, #691: forward mode and second derivatives raise by default. y(1) of y' = -k y from 2 is its own y''."""
    nodes = ", ".join(f"{name}: {{of: y, wrt: k, {kind}}}" for name, kind in SECOND.items())
    if adjoint != "forward":
        nodes += ", back: {of: y, wrt: k, kind: hessian, mode: reverse}"
    project.yaml(solving("decay", "k: 1.3", "y: decay.y", f"g: {{of: y, wrt: k}}, {nodes}"))
    ds = project.run(f"solver.adjoint={adjoint}")
    np.testing.assert_allclose(float(ds["g.k"]), -0.5450635861, rtol=1e-8)
    for name in ("y", "h.k.k", "hv.k", "d2.k", *(["back.k.k"] if adjoint != "forward" else [])):
        np.testing.assert_allclose(float(ds[name]), 0.5450635861, rtol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    "node", ["checkpointed", "backsolve", "diffrax.RecursiveCheckpointAdjoint", "diffrax.BacksolveAdjoint"]
)
@pytest.mark.parametrize("kind", SECOND)
@pytest.mark.filterwarnings("ignore:`solver.adjoint` should be")
def test_second_derivatives_are_refused_where_an_adjoint_has_none(project: Project, kind: str, node: str) -> None:
    project.yaml(solving("decay", "k: 1.3", "y: decay.y", f"d: {{of: y, wrt: k, {SECOND[kind]}}}"))
    adjoint = f"{{_target_: {node}}}" if "." in node else node
    with pytest.raises(PlanError, match=r"^`derivatives\.d\.mode` must suit the adjoint of `stages\.decay`") as caught:
        project.load(f"solver.adjoint={adjoint}")
    assert str(caught.value).endswith(ONE_LINE)
    assert "\n" not in str(caught.value)
    for mode in ("forward", "reverse"):
        if kind != "d2":
            with pytest.raises(PlanError, match="must suit the adjoint"):
                project.load(f"solver.adjoint={adjoint}", f"+derivatives.d.mode={mode}")


def test_a_second_derivative_over_forward_mode_says_which_mode_goes(project: Project) -> None:
    project.yaml(solving("decay", "k: 1.3", "y: decay.y", "d: {of: y, wrt: k, kind: hessian, mode: reverse}"))
    with pytest.raises(
        PlanError, match=r"in reverse mode cannot go through adjoint 'forward'. Write mode: forward, or"
    ):
        project.load("solver.adjoint=forward")
    project.load("solver.adjoint=forward", "derivatives.d.mode=forward")


@pytest.mark.parametrize("mode", ["forward", pytest.param("reverse", marks=pytest.mark.slow)])
def test_gradient_by_the_times(project: Project, mode: str) -> None:
    """diffrax#584, #244; rtqichen/torchdiffeq#166: y(end) = exp(sin start - sin end); the sum of exp(-3 ts)."""
    project.yaml(solving("wave", "start: 0.0, end: 1.5", "y: wave.y", f"d: {{of: y, wrt: [start, end], mode: {mode}}}"))
    ds = project.run("+sweep.axes.start=[0.0,0.2]")
    np.testing.assert_allclose(float(ds["d.end"][0]), -0.0260880313, rtol=1e-7)
    np.testing.assert_allclose(float(ds["d.start"][1]), 0.4408897526, rtol=1e-7)
    project.yaml(solving("sampled", "ts: [0.1, 0.4]", "y: sampled.sum", f"d: {{of: y, wrt: ts, mode: {mode}}}"))
    np.testing.assert_allclose(project.run(store="ts.zarr")["d.ts"], [-2.22245466, -0.90358264], rtol=1e-7)


@pytest.mark.parametrize(("name", "of"), [("start", "wave"), ("end", "wave"), ("ts", "sampled")])
@pytest.mark.filterwarnings("ignore:`solver.adjoint` should be")
def test_a_backward_solve_has_no_gradient_by_the_times(project: Project, name: str, of: str) -> None:
    """The same issues: refused before the run, with the argument and the remedy."""
    parameters, output = {"wave": ("start: 0.0, end: 1.5", "y"), "sampled": ("ts: [0.1, 0.4]", "sum")}[of]
    project.yaml(solving(of, parameters, f"y: {of}.{output}", f"d: {{of: y, wrt: {name}}}"))
    with pytest.raises(StageError) as caught:
        project.load("solver.adjoint=backsolve")
    argument = {"start": "t0", "end": "t1", "ts": "ts"}[name]
    assert f"`stages.{of}` must" in str(caught.value)
    assert (
        f"`{argument}` must not be differentiated with adjoint backsolve, but is. Write adjoint: checkpointed."
        in str(caught.value)
    )
    project.load("solver.adjoint=checkpointed")


@pytest.mark.filterwarnings("ignore:`solver.adjoint` should be")
def test_a_backward_solve_has_no_event(project: Project) -> None:
    project.yaml(solving("fall", "g: 9.81", "T: fall.event_time", "d: {of: T, wrt: g}"))
    with pytest.raises(StageError, match="`event` must be left out with adjoint backsolve"):
        project.load("solver.adjoint=backsolve")


@pytest.mark.slow
def test_a_contracting_system(project: Project) -> None:
    """diffrax#558, #596; SciMLSensitivity.jl#300: y' = -a (y - sin t) solved backwards gives a gradient 32 % off, and says nothing."""
    exact, loose = 4.6532e-4, ["solver.rtol=1e-4", "solver.atol=1e-6"]
    project.yaml(solving("contract", "a: 20.0", "y: contract.y", "d: {of: y, wrt: a}"))
    for mode in ("auto", "reverse"):
        ds = project.run(*loose, f"+derivatives.d.mode={mode}", store=f"{mode}.zarr")
        np.testing.assert_allclose(float(ds["d.a"]), exact, rtol=0.05)
    warns = pytest.warns(UserWarning, match="`solver.adjoint` should be checkpointed or auto, but is backsolve")
    with warns:
        wrong = project.run(*loose, "solver.adjoint=backsolve", store="wrong.zarr")
    with warns:
        plan = project.load(*loose, "solver.adjoint=backsolve")
    assert abs(float(wrong["d.a"]) / exact - 1) > 0.2, "the premise of the warning"
    assert plan.passes[0].reason == "the adjoint 'backsolve' of stage 'contract' allows no other"
    for command in ("plan", "run"):
        answer = project.cli(command, "case.yaml", *loose, "solver.adjoint=backsolve")
        assert answer.code == 0, answer.err
        assert command == "run" or "reverse mode, adjoint 'backsolve': the adjoint 'backsolve' of stage" in answer.out
        assert "inaccurate for contracting systems" in answer.out + answer.err
        assert "Write adjoint: checkpointed." in answer.out + answer.err


def test_drag_on_a_ball_at_rest(project: Project) -> None:
    """jax#3058, #4177: the norm at zero has no derivative. Named where it is met; right where nothing moves it."""
    project.yaml(solving("ball", "c: 0.1, v0: [0.0, 0.0]", "y: ball.y", "d: {of: y, wrt: c, kind: jacobian}"))
    norm = "+stages.ball.norm={_partial_: true, _target_: %s}"
    plain, safe = norm % "jax.numpy.linalg.norm", norm % "ops.safe.norm"
    cases = {"safe": [safe], "plain": [plain], "reverse": [plain, "+derivatives.d.mode=reverse"]}
    for name, overrides in cases.items():
        ds = project.run(*overrides, store=f"{name}.zarr")
        np.testing.assert_allclose(float(ds["y"][1]), -7.5032473660, rtol=1e-8)
        np.testing.assert_allclose(ds["d.c"], [0, 16.6155973614], rtol=1e-7, atol=1e-12)
    summary = project.summary(plain, "derivatives.d.wrt=v0")
    assert summary.counts == {"nonfinite": 1}
    (found,) = summary.nonfinite
    assert (found.variable, found.of, found.by, found.through) == ("d.v0", "y", ("v0",), ("ball",))
    assert "d.v0, the derivative of y by v0 through ball, is not finite in 1 sample" in str(found)


@pytest.mark.parametrize("solver", ["tsit5", pytest.param("kvaerno5", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:`solver.adjoint` should be")
def test_a_backward_solve_where_it_is_accurate(project: Project, solver: str) -> None:
    """dy(1)/dk = -2 exp(-k), whether k is an argument of the vector field or stands in its closure."""
    for stage in ("decay", "enclosed"):
        project.yaml(solving(stage, "k: 1.3", f"y: {stage}.y", "d: {of: y, wrt: k}"))
        found = project.run(
            f"solver={solver}", "solver.rtol=1e-9", "solver.atol=1e-12", "solver.adjoint=backsolve", "+sweep.axes.k=[0.4,1.3]",
            store=f"{stage}.zarr",
        )  # fmt: skip
        np.testing.assert_allclose(found["d.k"], -2 * np.exp([-0.4, -1.3]), rtol=1e-7, err_msg=stage)


# ---- memory of a reverse pass


@pytest.mark.slow
def test_memory_of_a_reverse_pass(project: Project) -> None:
    """It grows like the square root of max_steps, or is what `checkpoints` bounds, at the same gradient."""
    from engine.program import fit

    project.yaml(
        solving("long", "k: [" + ", ".join(["1.0"] * 100) + "]", "y: long.total", "d: {of: y, wrt: k, mode: reverse}")
    )
    size, slopes = {}, []
    for steps, checkpoints in ((256, "null"), (4096, "null"), (256, "8"), (4096, "8")):
        program = fit(project.load(f"solver.max_steps={steps}", f"solver.checkpoints={checkpoints}"))
        program.prepare()
        outputs, status = program.at(np.array([0]))
        assert status.tolist() == [1]
        size[steps, checkpoints] = program.cost.memory["temporaries"]
        slopes.append(outputs["d.k"])
    growth = size[4096, "null"] / size[256, "null"]
    assert 2.5 < growth < 5, f"16 times the steps take about 4 times the memory, not {growth}"
    assert size[4096, "8"] <= 1.01 * size[256, "8"]
    assert size[4096, "8"] < 0.25 * size[4096, "null"]
    for slope in slopes[1:]:
        # far below atol, and by a pool or by diffrax: roundings of the steps show
        np.testing.assert_allclose(slope, slopes[0], rtol=0, atol=1e-7 * np.abs(slopes[0]).max())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("solver.checkpoints=0", ["`solver.checkpoints` must be a positive integer, or null", "0"]),
        ("solver.checkpoints=2.5", ["`solver.checkpoints` must be a positive integer, or null", "2.5"]),
        ("solver.checkpoints=many", ["`solver.checkpoints` must be a positive integer, or null", "'many'"]),
        (
            "solver.adjoint=direct solver.checkpoints=8",
            ["`solver.checkpoints` must be null", "'direct'", "adjoint: checkpointed"],
        ),
        ("solver.checkpoint=8", ["checkpoint", "checkpoints"]),
    ],
)
def test_checkpoints_that_mean_nothing(project: Project, overrides: str, words: list[str]) -> None:
    project.yaml(solving("decay", "k: 1.3", "y: decay.y", "d: {of: y, wrt: k}"))
    with pytest.raises(UserError) as caught:
        project.load(*overrides.split())
    for word in words:
        assert word in str(caught.value), str(caught.value)


# ---- around a pass


def test_a_tangent_through_a_reverse_rule_is_refused_before_the_run(project: Project) -> None:
    """JAX traces it, and raises when the program is compiled."""
    project.yaml(plain("squared", "k: 3.0", "t: {of: squared, wrt: k, kind: jvp, direction: 2.0}"))
    with pytest.raises(PlanError) as caught:
        project.load()
    assert str(caught.value).startswith(
        "`derivatives.t` must go through every stage, but forward mode meets a function that"
    )
    assert "return reverse_only(k)" in str(caught.value)
    assert "Write kind: jacobian with mode: reverse, or define its rule with jax.custom_jvp" in str(caught.value)
    nodes = (
        "derivatives={j: {of: squared, wrt: k, kind: jacobian, mode: reverse}, h: {of: squared, wrt: k, kind: hessian}}"
    )
    ds = project.run(nodes)
    assert (float(ds["j.k"]), float(ds["h.k.k"])) == (6.0, 2.0)
    with pytest.raises(PlanError, match="Write kind: hessian with mode: reverse, or"):
        project.load("derivatives={d: {of: squared, wrt: k, order: 2}}")


KINDS = "g: {of: y, wrt: k}, r: {of: y, wrt: k, mode: reverse}, h: {of: y, wrt: k, kind: hessian}"


@pytest.mark.slow
def test_a_vector_field_with_a_reverse_rule_alone(project: Project) -> None:
    """y(1) = exp(-k^2), though no tangent goes through k^2: neither the user's nor the solver's own."""
    ds = project.yaml(solving("slowed", "k: 0.7", "y: slowed.y", KINDS)).run()
    y, first, second = math.exp(-0.49), -1.4 * math.exp(-0.49), (1.4**2 - 2) * math.exp(-0.49)
    for name, exact in {"y": y, "g.k": first, "r.k": first, "h.k.k": second}.items():
        np.testing.assert_allclose(float(ds[name]), exact, rtol=1e-6, err_msg=name)
    with pytest.raises(PlanError, match=r"`derivatives\.t` must go through every stage, but forward mode"):
        project.load("+derivatives.t={of: y, wrt: k, kind: jvp, direction: 1.0}")


@pytest.mark.slow
def test_control_flow_in_a_vector_field(project: Project) -> None:
    """A branch goes in every mode; a loop of unknown length goes forward, also where there are many parameters."""
    ds = project.yaml(solving("branching", "k: 0.7", "y: branching.y", KINDS)).run()
    y = math.exp(-1.5 * 0.7)
    for name, exact in {"y": y, "g.k": -1.5 * y, "r.k": -1.5 * y, "h.k.k": 2.25 * y}.items():
        np.testing.assert_allclose(float(ds[name]), exact, rtol=1e-7, err_msg=name)
    many = "p: [" + ", ".join(["0.05"] * 20) + "]"
    project.yaml(solving("inverted", many, "y: inverted.y", "g: {of: y, wrt: p}"))
    plan = project.load()
    assert (plan.passes[0].mode, plan.passes[0].reason) == ("forward", "a stage lets no reverse mode through")
    np.testing.assert_allclose(project.run(store="many.zarr")["g.p"], [-math.exp(-1)] * 20, rtol=1e-7)
    with pytest.raises(PlanError, match=r"reverse mode meets a loop of unknown length .* at model\.py:\d+: root = "):
        project.load("+derivatives.g.mode=reverse")


def test_each_derivative_goes_the_way_that_its_own_stages_let_through(project: Project) -> None:
    """A stage with a reverse rule alone beside one with a loop."""
    project.yaml("""\
    defaults: [engine, _self_]
    name: beside
    parameters: {k: 3.0}
    stages: {squared: {_target_: model.squared}, grown: {_target_: model.grown}}
    outputs: {square: squared, cube: grown.end}
    derivatives: {s: {of: square, wrt: k, mode: reverse}, c: {of: cube, wrt: k, mode: forward}}
    """)
    ds = project.run()
    assert (float(ds["s.k"]), float(ds["c.k"])) == (6.0, 27.0)
    with pytest.raises(PlanError, match=r"^`derivatives\.s`, `derivatives\.c` must .* or write the mode of each\."):
        project.load("derivatives.s.mode=auto", "derivatives.c.mode=auto")


def test_progress_changes_no_number(project: Project) -> None:
    """diffrax#396, #87; dynamiqs/dynamiqs#428: a progress display breaks gradients, or batches."""
    project.yaml(solving("decay", "k: 1.3", "y: decay.y", "d: {of: y, wrt: k}"))
    sweep = ["+sweep.axes.k={linspace: [0.5, 2.0, 6]}", "execution.chunk=2"]
    silent = project.run(*sweep, store="silent.zarr")
    shown = project.run(*sweep, store="shown.zarr", progress=True)
    screen = io.StringIO()
    project.summary(*sweep, store="bar.zarr", observers=[Bar(screen)])
    assert "6/6 samples" in screen.getvalue()
    import engine

    drawn = engine.open_store(project.folder / "bar.zarr").load()
    for name in silent.variables:
        assert silent[name].values.tobytes() == shown[name].values.tobytes() == drawn[name].values.tobytes(), name
    np.testing.assert_allclose(silent["d.k"], -2 * np.exp(-silent["k"].values), rtol=1e-7)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_stored_and_restored(project: Project, impl: str) -> None:
    """equinox#1255; jax-ml/jax#18767, #24481: a typed key cannot be made an array."""
    project.yaml(f"""\
    defaults: [engine, _self_]
    name: draw
    seed: 5
    stages: {{draw: {{_target_: model.draw, impl: {impl}}}}}
    sweep: {{replicates: 3}}
    """)
    ds = project.run()

    def restored(name: str) -> jax.Array:
        data = ds[name].values.astype(np.uint32)
        assert (data == ds[name].values).all()
        return jax.random.wrap_key_data(data, impl=ds[name].attrs["prng_impl"])

    keys = restored("draw.key")
    plan = project.load()
    for sample in range(3):
        key = jax.random.fold_in(jax.random.key(5), sample)
        ours = plan.function({}, key)
        assert (jax.random.normal(keys[sample], (4,)) == jax.random.normal(ours["draw.key"], (4,))).all()
        assert (jax.random.key_data(restored("draw.split")[sample]) == jax.random.key_data(ours["draw.split"])).all()
    assert restored("draw.other") == jax.random.key(7, impl=impl)
    assert ds["draw.other"].attrs["prng_impl"] == impl
    assert "prng_impl" not in ds["draw.old"].attrs, "a raw key is an array as any other"
    assert (ds["draw.old"].values == jax.random.PRNGKey(3)).all()


# ---- what is asked


def test_an_objective_that_is_not_scalar(project: Project) -> None:
    """The output, its shape, and both remedies; both problems at once."""
    project.yaml(plain("shapes", "k: 1.0", "g: {of: shapes.three, wrt: k}, h: {of: shapes.one, wrt: k}"))
    with pytest.raises(PlanError) as caught:
        project.load()
    three, one = caught.value.problems
    assert three.startswith("`derivatives.g.of` must be a scalar for a gradient, but 'shapes.three'")
    assert one.startswith("`derivatives.h.of` must be a scalar for a gradient, but 'shapes.one'")
    for problem, shape in ((three, "(3,)"), (one, "(1,)")):
        assert (
            f"has the shape {shape}. Write kind: jacobian, or reduce the output to a scalar in a stage (jnp.sum"
            in problem
        )
    ds = project.run("+derivatives.g.kind=jacobian", "+derivatives.h.kind=jacobian")
    assert ds["g.k"].values.tolist() == [0.0, 1.0, 2.0]
    assert ds["h.k"].values.tolist() == [2.0]


def test_an_integer_in_the_yaml_is_a_number_to_differentiate_by(project: Project) -> None:
    """jax-ml/jax#424, #2215: `x: 2` cannot be differentiated by; n beside it stays an integer."""
    project.yaml(plain("looked_up", "x: 2, n: 1", "d: {of: looked_up, wrt: x}"))
    ds = project.run("+sweep.axes.n=[0,2]")
    assert ds["d.x"].values.tolist() == [1.0, 9.0]
    assert ds["n"].dtype.kind == "i"
    project.yaml(plain("counted", "x: 2, n: 3", "d: {of: counted, wrt: x}"))
    assert float(project.run("+sweep.axes.x=[2,5]", store="x.zarr")["d.x"].sel(x=5)) == 30.0


def test_a_derivative_by_an_index_is_refused(project: Project) -> None:
    project.yaml(plain("looked_up", "x: 2, n: 1", "d: {of: looked_up, wrt: [x, n]}"))
    with pytest.raises(UserError, match=r"`stages\.looked_up`(.|\n)*integer(.|\n)*n: float64\[\]"):
        project.load()


def test_a_rounded_parameter_has_no_gradient_and_it_is_said(project: Project) -> None:
    """floor and round are flat: their gradient is 0, by which no optimizer moves."""
    nodes = ", ".join(f"{name}: {{of: rounded.{name}, wrt: x}}" for name in ("floor", "round", "smooth"))
    ds = project.yaml(plain("rounded", "x: 0.3333", nodes)).run()
    assert [float(ds[f"{name}.x"]) for name in ("floor", "round")] == [0.0, 0.0]
    warned = " ".join(project.load().warnings)
    assert "cut by floor at model.py" in warned
    assert "cut by round at model.py" in warned
    answer = project.cli("check-grad", "case.yaml", "--json")
    assert answer.code == 3
    verdicts = {row["derivative"]: row["verdict"] for row in answer.json["derivatives"]}
    assert verdicts["floor.x"].startswith("disconnected: stage 'rounded' cuts the path")
    assert verdicts["round.x"].startswith("disconnected: stage 'rounded' cuts the path")
    assert verdicts["smooth.x"] == "ok"


def test_a_kink_is_found_by_finite_differences(project: Project) -> None:
    """JAX takes 1 for |x| at 0, the mean at a tie or an edge, 0 beyond; the differences to both sides give 0, the mean, 0."""
    nodes = "a: {of: kinks.abs, wrt: x}, m: {of: kinks.max, wrt: [x, y]}, c: {of: kinks.clip, wrt: x}, b: {of: kinks.beyond, wrt: x}"
    ds = project.yaml(plain("kinks", "x: 0.0, y: 0.0", nodes)).run()
    assert [float(ds[name]) for name in ("a.x", "m.x", "m.y", "c.x", "b.x")] == [1.0, 0.5, 0.5, 0.5, 0.0]
    answer = project.cli("check-grad", "case.yaml", "--json")
    assert answer.code == 3
    verdicts = {row["derivative"]: row["verdict"] for row in answer.json["derivatives"]}
    assert verdicts == {"a.x": "kink", "m.x": "kink", "m.y": "kink", "c.x": "kink", "b.x": "ok"}
    away = project.cli("check-grad", "case.yaml", "parameters.x=0.7", "--json")
    assert away.code == 0, away.out
