"""`ops.forcing` against closed forms: values, solutions with jumps, and their derivatives by the times of the jumps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from engine.gradient_check import check_gradients
from ops import forcing
from ops.ode import default_adjoint, solve
from tests.project import REPOSITORY, Project

DECAY, END = 0.05, 60.0


def field(t: Any, y: Any, u: Any) -> Any:
    return -DECAY * y + u(t)


def pulsed(start: Any, width: Any, height: Any, end: float = END) -> Any:
    """y(end) of y' = -DECAY y + pulse, y(0) = 0, for the part of the pulse between 0 and end."""
    first, last = jnp.clip(start, 0.0, end), jnp.clip(start + width, 0.0, end)
    return height / DECAY * (jnp.exp(-DECAY * (end - last)) - jnp.exp(-DECAY * (end - first)))


def test_values() -> None:
    """At a jump a forcing has the value after it, `left` the one before."""
    t = np.array([-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    pulse = forcing.pulse([0.0, 1.5], [1.0, 0.5], [2.0, 7.0])
    assert pulse(t).tolist() == [0, 2, 2, 0, 7, 0, 0]
    assert pulse(t, left=True).tolist() == [0, 0, 2, 2, 0, 7, 0]
    assert forcing.step([0.5, 2.0], [1.0, 2.0])(t).tolist() == [0, 0, 1, 1, 1, 3, 3]
    wave = forcing.square_wave(1.0, 0.25, -1.0, 1.0)
    assert wave(t + 0.125).tolist() == [-1, 1, -1, 1, -1, 1, -1]
    assert forcing.square_wave(1.0, 0.5, cycles=2)(t).tolist() == [0, 1, 0, 1, 0, 0, 0]
    held = forcing.piecewise_constant([0.0, 1.0, 2.0], [3.0, 4.0, 5.0], outside=-1.0)
    assert held(t).tolist() == [-1, 3, 3, 4, 4, -1, -1]
    assert held(t, left=True).tolist() == [-1, -1, 3, 3, 4, 4, -1]
    lines = forcing.piecewise_linear([0.0, 1.0, 1.0, 2.0], [[0.0, 1.0], [1.0, 0.0], [5.0, 4.0], [5.0, 2.0]])
    np.testing.assert_array_equal(lines(t), [[np.nan] * 2, [0, 1], [0.5, 0.5], [5, 4], [5, 3], [5, 2], [np.nan] * 2])
    np.testing.assert_array_equal(lines(1.0, left=True), [1.0, 0.0])
    assert forcing.piecewise_linear([0.0, 1.0], [1.0, 2.0], outside="hold")(t).tolist() == [1, 1, 1.5, 2, 2, 2, 2]


def test_arithmetic() -> None:
    u = 2.0 - forcing.step(1.0, 3.0) * forcing.pulse(0.0, 2.0) / 2.0 + np.array([0.0, 10.0])
    np.testing.assert_array_equal(u(np.array([0.5, 1.5, 2.5])), [[2, 12], [0.5, 10.5], [2, 12]])
    assert sorted(u.jumps().tolist()) == [0.0, 1.0, 2.0]


def test_spline() -> None:
    """The natural spline of SciPy, and its derivatives by a value, which are those of a spline through a unit vector."""
    from scipy.interpolate import CubicSpline

    times, values = np.array([0.0, 0.4, 1.0, 1.5, 2.5, 3.0]), np.array([1.0, -2.0, 0.5, 3.0, 2.0, 2.5])
    query = np.linspace(0.0, 3.0, 31)
    np.testing.assert_allclose(
        forcing.cubic(times, values)(query), CubicSpline(times, values, bc_type="natural")(query), atol=1e-13
    )
    slopes = jax.jacrev(lambda v: forcing.cubic(times, v)(query))(jnp.array(values))
    np.testing.assert_allclose(slopes, CubicSpline(times, np.eye(6), bc_type="natural")(query), atol=1e-13)


@pytest.mark.parametrize(
    ("mode", "solver", "within"),
    [
        ("checkpointed", "tsit5", 1e-6),
        ("forward", "kvaerno5", 1e-5),
        pytest.param("forward", "tsit5", 1e-6, marks=pytest.mark.slow),
        pytest.param("checkpointed", "kvaerno4", 1e-5, marks=pytest.mark.slow),
    ],
)
def test_a_short_pulse_and_its_derivatives(mode: str, solver: str, within: float) -> None:
    """Under vmap over its start, at the default tolerance.

    The stages of the methods of Kvaerno reach beyond the step, and would see the other side of the jump.
    """
    starts = jnp.array([10.0, 25.5, 40.0])
    derivative = jax.jacfwd if mode == "forward" else jax.grad

    def final(start: Any, width: Any, height: Any) -> Any:
        return solve(field, 0.0, forcing.pulse(start, width, height), t1=END, solver=solver).y

    @jax.jit
    @jax.vmap
    def both(start: Any) -> Any:
        with default_adjoint(mode):
            return final(start, 0.2, 10.0), derivative(final, (0, 1, 2))(start, 0.2, 10.0)

    value, slopes = both(starts)
    np.testing.assert_allclose(value, [0.1649935903, 0.3581337880, 0.7394499701], rtol=within)
    exact = jax.vmap(jax.grad(pulsed, (0, 1, 2)), (0, None, None))(starts, 0.2, 10.0)
    np.testing.assert_allclose(slopes, exact, rtol=10 * within)


def in_args(a: Any, b: Any, u: Any) -> Any:
    return solve(field, 0.0, u(a, b), t1=END, rtol=1e-9, atol=1e-12).y


def closed_over(a: Any, b: Any, u: Any) -> Any:
    made = u(a, b)
    return solve(lambda t, y, args: -DECAY * y + made(t), 0.0, t1=END, rtol=1e-9, atol=1e-12).y


def built_inside(a: Any, b: Any, u: Any) -> Any:
    @jax.jit
    def inner(t: Any, y: Any, p: Any) -> Any:
        return -DECAY * y + jax.lax.cond(p[0] > 0, lambda: u(*p)(t), lambda: 0.0)

    return solve(inner, 0.0, (a, b), t1=END, rtol=1e-9, atol=1e-12).y


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        (in_args, "forward"),
        (closed_over, "forward"),
        (built_inside, "forward"),
        pytest.param(built_inside, "checkpointed", marks=pytest.mark.slow),
    ],
)
def test_two_jumps_at_one_time(place: Any, mode: str) -> None:
    """One pulse ends as another begins, twice as high: the derivative by either start is that of its own pulse."""

    def both(a: Any, b: Any) -> Any:
        return pulsed(a, 10.0, 1.0) + pulsed(b, 10.0, 2.0)

    def final(a: Any, b: Any) -> Any:
        with default_adjoint(mode):
            return place(a, b, lambda a, b: forcing.pulse(a, 10.0, 1.0) + forcing.pulse(b, 10.0, 2.0))

    derivative = jax.jacfwd if mode == "forward" else jax.grad
    value, slopes = jax.jit(lambda a, b: (final(a, b), derivative(final, (0, 1))(a, b)))(10.0, 20.0)
    np.testing.assert_allclose(value, both(10.0, 20.0), rtol=1e-8)
    np.testing.assert_allclose(slopes, jax.grad(both, (0, 1))(10.0, 20.0), rtol=1e-8)


def test_pulses_wherever_they_lie() -> None:
    """Before, at and after either end, across it, without width, and two at once."""
    starts = np.array(
        [[-5.0, 70.0], [0.0, 3.0], [-1.0, 59.0], [57.0, 58.0], [60.0, 0.0], [20.0, 20.0], [20.0, 21.0], [0.3, 0.3]]
    )
    widths = np.array(
        [[1.0, 1.0], [0.5, 0.0], [1.5, 1.0], [3.0, 5.0], [1.0, 60.0], [2.0, 2.0], [3.0, 1.0], [0.0, 59.7]]
    )
    final = jax.jit(
        jax.vmap(lambda s, w: solve(field, 0.0, forcing.pulse(s, w, jnp.array([1.0, 3.0])), t1=END, rtol=1e-8))
    )
    found = final(starts, widths)
    assert found.status.tolist() == [0] * len(starts)
    np.testing.assert_allclose(found.y, pulsed(starts, widths, np.array([1.0, 3.0])).sum(axis=1), rtol=1e-6, atol=1e-9)


def test_a_pulse_that_depends_on_a_swept_parameter() -> None:
    """A dose of 1 given over a time d from d on: y = (exp(-r (T - 2 d)) - exp(-r (T - d))) / (r d)."""

    def exact(d: Any) -> Any:
        return pulsed(d, d, 1.0 / d)

    def final(d: Any) -> Any:
        return solve(lambda t, y, d: -DECAY * y + forcing.pulse(d, d, 1.0 / d)(t), 0.0, d, t1=END, rtol=1e-9).y

    d = jnp.array([0.01, 1.0, 20.0, 29.0])
    value, slope = jax.jit(jax.vmap(jax.value_and_grad(final)))(d)
    np.testing.assert_allclose(value, exact(d), rtol=1e-7)
    np.testing.assert_allclose(slope, jax.vmap(jax.grad(exact))(d), rtol=1e-6)


def test_times_at_and_around_a_jump() -> None:
    ts = jnp.array([9.0, 10.0, 10.1, 10.2, 11.0])
    found = jax.jit(lambda: solve(field, 0.0, forcing.pulse(10.0, 0.2, 10.0), ts=ts, rtol=1e-9))()
    np.testing.assert_allclose(found.y, [pulsed(10.0, 0.2, 10.0, float(t)) for t in ts], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"step": 0.5, "solver": "kvaerno5"}, marks=pytest.mark.slow)], ids=["free", "fixed"]
)
def test_backward_in_time(settings: dict[str, Any]) -> None:
    """From the end back to 0 at t = 0, where dy(0)/dstart = -height (exp(r s) - exp(r (s + w)))."""

    def first(start: Any) -> Any:
        u = forcing.pulse(start, 0.2, 10.0)
        with default_adjoint("checkpointed"):  # the state comes to rest, and asks for no steps itself
            return solve(field, pulsed(40.0, 0.2, 10.0), u, t0=END, t1=0.0, rtol=1e-9, **settings).y

    value, slope = jax.jit(jax.value_and_grad(first))(40.0)
    np.testing.assert_allclose(value, 0.0, atol=1e-6)
    np.testing.assert_allclose(slope, 10.0 * (np.exp(DECAY * 40.0) - np.exp(DECAY * 40.2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "within"),
    [({"step": 1.0}, 1e-4), ({"step": 0.3, "solver": "kvaerno5"}, 1e-4), ({}, 1e-5)],
    ids=["one step each", "implicit", "free"],
)
def test_a_zero_order_hold(settings: dict[str, Any], within: float) -> None:
    """y' = -y + u with u = 2, -1, 4: at t = 3, 2.4670345071."""
    u = forcing.piecewise_constant([0, 1, 2, 3], [2, -1, 4])
    found = jax.jit(lambda: solve(lambda t, y, u: -y + u(t), 0.0, u, t1=3.0, **settings))()
    np.testing.assert_allclose(found.y, 2.4670345071, atol=within)


@pytest.mark.slow
def test_derivatives_with_fixed_steps() -> None:
    final = lambda *p: solve(field, 0.0, forcing.pulse(*p), t1=END, step=2.0).y  # noqa: E731
    slopes = jax.jit(jax.grad(final, (0, 1, 2)))(40.0, 0.2, 10.0)
    np.testing.assert_allclose(slopes, jax.grad(pulsed, (0, 1, 2))(40.0, 0.2, 10.0), rtol=1e-7)


@pytest.mark.slow
def test_a_square_wave() -> None:
    """Many short pulses, each seen, with as many cycles as the interval holds; the derivative by the part that is on."""

    def final(duty: Any) -> Any:
        return solve(field, 0.0, forcing.square_wave(3.0, duty, 0.0, 2.0, 0.5), t1=END, rtol=1e-9).y

    starts = 0.5 + 3.0 * np.arange(20)
    exact = lambda duty: jnp.sum(pulsed(starts, 3.0 * duty, 2.0))  # noqa: E731
    value, slope = jax.jit(jax.value_and_grad(final))(0.02)
    np.testing.assert_allclose(value, exact(0.02), rtol=1e-7)
    np.testing.assert_allclose(slope, jax.grad(exact)(0.02), rtol=1e-7)


def test_a_stiff_model_keeps_its_tolerances() -> None:
    """Robertson's reaction with a forcing that is off, by a solver of diffrax without tolerances of its own."""

    def robertson(t: Any, y: Any, args: Any) -> Any:
        k, u = args
        forward, back, pair = k * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return jnp.array([back - forward + u(t), forward - back - pair, pair])

    def final(k: Any) -> Any:
        u = forcing.pulse(30.0, 5.0, 0.0)
        return solve(robertson, [1.0, 0.0, 0.0], (k, u), t1=100.0, solver=diffrax.Kvaerno5()).y[0]

    found = jax.jit(jax.vmap(final))(jnp.array([0.02, 0.04, 0.08]))
    np.testing.assert_allclose(found, [0.74180636, 0.61723488, 0.46129610], rtol=1e-6)


def test_float32() -> None:
    with jax.enable_x64(False):

        def final(*p: Any) -> Any:
            found = solve(field, 0.0, forcing.pulse(*p), t1=END, rtol=1e-5, atol=1e-7)
            return found.y, found.status

        (value, status), slopes = jax.jit(jax.value_and_grad(final, (0, 1, 2), has_aux=True))(40.0, 0.2, 10.0)
        assert value.dtype == np.float32
        assert int(status) == 0
    np.testing.assert_allclose(value, 0.7394499701, rtol=5e-5)
    np.testing.assert_allclose(slopes, jax.grad(pulsed, (0, 1, 2))(40.0, 0.2, 10.0), rtol=5e-5)


TABLE = "time,u,note\n0,0,a\n1,2,b\n1.5,2,c\n4,0,d\n"


def ramp(u: Any, **settings: Any) -> Any:
    return solve(lambda t, y, u: -0.5 * y + u(t), 0.0, u, t1=4.0, **settings).y


def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """t = 0, 1, 1.5, 4 and u = 0, 2, 2, 0: y(4) = 1.5808256, at a loose tolerance too, as steps end at the knots."""
    (tmp_path / "u.csv").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    u = forcing.table("u.csv", value="u")
    for rtol, within in ((1e-8, 1e-7), (1e-3, 5e-4)):
        np.testing.assert_allclose(jax.jit(lambda u, rtol=rtol: ramp(u, rtol=rtol))(u), 1.5808256, rtol=within)


def test_gaps_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "u.csv").write_text("\ufefftime, u\n0,0\n\n1,NaN\n2,2\n")
    monkeypatch.chdir(tmp_path)
    assert float(forcing.table("u.csv", value="u", nan="interpolate")(0.5)) == 0.5
    assert float(forcing.table("u.csv", value="u", nan="drop", kind="piecewise_constant")(1.5)) == 0.0


def test_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zarr, and Parquet as pandas reads it: the same forcing."""
    import pandas
    import xarray

    frame = pandas.DataFrame({"time": [0, 1, 2], "u": [0.0, np.nan, 2.0], "v": [1.0, 5.0, 1.0]})
    xarray.Dataset.from_dataframe(frame).to_zarr(tmp_path / "u.zarr", consolidated=False)
    (tmp_path / "u.parquet").touch()
    monkeypatch.setattr(pandas, "read_parquet", lambda path: frame)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for path in ("u.zarr", "u.parquet"):
        u = forcing.table(path, value=["u", "v"], nan="interpolate")
        np.testing.assert_array_equal(u(0.5), [0.5, 3.0])


def test_a_comparison_of_time_is_told_with_its_line() -> None:
    """A step, a sign, a floor and measured data in the field are; what is smooth, or compares the state, is not."""
    knots = np.arange(3.0)
    jumping = [
        lambda t, y, a: jnp.where(t < 0.5, 1.0, 0.0) - y,
        lambda t, y, a: jnp.sign(jnp.sin(t)) - y,
        lambda t, y, a: jnp.floor(2 * t) - y,
        lambda t, y, a: jnp.interp(t, knots, knots) - y,
        jax.jit(lambda t, y, a: jax.lax.cond(t < 0.5, lambda: 1.0, lambda: 0.0) - y),
    ]
    for one in jumping:
        line = one.__code__.co_firstlineno if hasattr(one, "__code__") else one.__wrapped__.__code__.co_firstlineno
        with pytest.warns(UserWarning, match=rf"the time is compared in test_forcing\.py:{line}: .*jumps="):
            jax.make_jaxpr(lambda one=one: solve(one, 0.0, t1=1.0))()
    jax.make_jaxpr(lambda: solve(jumping[0], 0.0, t1=1.0, jumps=()))()

    def smooth(t: Any, y: Any, a: Any) -> Any:
        daily = jnp.sin(2 * jnp.pi * (t % 24.0) / 24.0) + jnp.maximum(t, 0.5) + jnp.power(t, 1.5)
        library = (
            jax.nn.sigmoid(t)
            - jax.scipy.special.erf(t)
            + jax.nn.relu(y - t)
            + jax.nn.softplus(t)
            + jnp.sinc(t)
            + jnp.hypot(t, 1.0)
        )
        return daily + library + jnp.where(y > 0.5, -y, y) + jnp.where(y > t, y, 1.0) + jnp.where(a > 0, t, y)

    jax.make_jaxpr(lambda: solve(smooth, 0.0, 1.0, t1=1.0))()


@pytest.mark.slow
def test_the_pulsed_tank(tmp_path: Path) -> None:
    ds = engine.run(REPOSITORY / "conf" / "pulsed_tank.yaml", [f"store.path={tmp_path}/tank.zarr"]).load()
    start = ds["feed.start"].values
    np.testing.assert_allclose(ds.left[:3], [0.1649935903, 0.3581337880, 0.7394499701], rtol=1e-8)
    exact = jax.vmap(jax.grad(pulsed, (0, 1, 2)), (0, None, None))(start, 0.2, 10.0)
    for name, want in zip(("start", "width", "height"), exact, strict=True):
        np.testing.assert_allclose(ds[f"dleft.feed.{name}"], want, rtol=1e-6)
    path = [[pulsed(s, 0.2, 10.0, t) for t in ds.time.values[1:]] for s in start]
    np.testing.assert_allclose(ds.c[:, 1:], path, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_the_derivatives_of_the_pulsed_tank_against_differences() -> None:
    rows = check_gradients(engine.load(REPOSITORY / "conf" / "pulsed_tank.yaml"))
    assert [row.verdict for row in rows] == ["ok"] * 3


def test_a_table_as_a_parameter(project: Project) -> None:
    """The file stands beside the YAML, and its numbers are in the fingerprint."""
    (project.folder / "data").mkdir()
    table = project.folder / "data" / "u.csv"
    table.write_text(TABLE)
    project.model("""
        from ops.ode import solve

        def tank(u, solver):
            found = solve(lambda t, y, u: -0.5 * y + u(t), 0.0, u, t1=4.0, solver=solver)
            return {"y": found.y, "status": found.status}
    """)
    project.yaml("""
        defaults: [engine, {solver: tsit5}, _self_]
        name: case
        parameters:
          u: {_target_: ops.forcing.table, path: data/u.csv, value: u}
        stages:
          tank: {_target_: model.tank, solver: "${solver}"}
        outputs: {y: tank.y}
        solver: {rtol: 1.0e-9}
    """)
    plan = project.load()
    ds = project.run()
    np.testing.assert_allclose(ds.y, 1.5808256, rtol=1e-7)
    table.write_text(TABLE.replace("1.5,2", "1.5,3"))
    assert project.load().draft.fingerprint != plan.draft.fingerprint
