"""What a solve returns, stored by a run: complex states, every step with padding, counts of steps, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from engine.errors import UserError
from engine.gradient_check import check_gradients
from engine.program import fit
from tests.project import Project

MODEL = """\
    from ops.ode import solve


    def decay(k, max_steps):
        return solve(lambda t, y, k: -k * y, 1.0, k, t1=1.0, ts="steps", max_steps=max_steps, rtol=1e-7)


    def spiral(k):
        found = solve(lambda t, y, k: -1j * k * y, 1 + 0j, k, t1=2.0, rtol=1e-9, atol=1e-11, max_steps=512)
        return {"z": found.y, "x": found.y.real, "rejected": found.rejected, "status": found.status}
"""

CASE = """\
    defaults: [engine, _self_]
    name: case
    parameters: {k: 1.0}
    stages:
      decay: {_target_: model.decay, max_steps: 64}
      spiral: {_target_: model.spiral}
    outputs:
      t: {from: decay.t, dims: [step], length: n}
      y: {from: decay.y, dims: [step], length: n}
      n: decay.length
      steps: decay.steps
      z: spiral.z
      x: spiral.x
      rejected: spiral.rejected
    derivatives: {dx: {of: x, wrt: [k]}}
    sweep: {axes: {k: [1.0, 3.0, 500.0]}}
"""


def test_what_a_solve_returns_is_stored(project: Project) -> None:
    """y' = -k y by step, and z' = -i k z: exp(-2 i k), d Re z / dk = -2 sin 2 k. The lane that runs out of steps fails alone."""
    project.model(MODEL).yaml(CASE)
    ds = project.run()
    assert ds.status.values.tolist() == [1, 1, 2]
    for i, k in enumerate((1.0, 3.0)):
        n = int(ds.n[i])
        assert 2 < n < 65 and n - 1 <= int(ds.steps[i])
        np.testing.assert_allclose(ds.y.values[i, :n], np.exp(-k * ds.t.values[i, :n]), rtol=1e-5)
        assert np.isnan(ds.y.values[i, n:]).all() and np.isnan(ds.t.values[i, n:]).all()
    assert not np.isinf(ds.t.values).any()
    assert ds.y.attrs["length"] == "n"
    k = np.array([1.0, 3.0])
    assert ds.z.dtype == np.complex128
    np.testing.assert_allclose(ds.z.values[:2], np.exp(-2j * k), rtol=1e-7)
    np.testing.assert_allclose(ds["dx.k"].values[:2], -2 * np.sin(2 * k), rtol=1e-6)
    assert (ds.rejected.values[:2] >= 0).all()


def test_padding_that_nothing_declares_is_a_failure(project: Project) -> None:
    project.model(MODEL).yaml(CASE.replace(", length: n", ""))
    assert project.run("sweep.axes.k=[1.0]").status.values.tolist() == [3]


@pytest.mark.parametrize(
    ("length", "said"), [("m", "'m' is none"), ("x", r"'x' is float64\[\]"), ("t", r"'t' is float64\[65\]")]
)
def test_a_length_must_be_a_count(project: Project, length: str, said: str) -> None:
    project.model(MODEL).yaml(CASE)
    with pytest.raises(UserError, match=rf"`outputs\.y\.length` must be .*{said}"):
        project.load(f"outputs.y.length={length}")


def test_a_progress_bar_changes_no_number(project: Project) -> None:
    """With derivatives and vmap, as without: progress counts chunks, and is no part of the program."""
    project.model(MODEL).yaml(CASE)
    watched, plain = (project.run(store=f"{on}.zarr", progress=on) for on in (True, False))
    assert watched.drop_attrs().identical(plain.drop_attrs())
    assert "callback" not in str(project.load().sample_jaxpr)


def test_a_sample_that_does_not_fit_is_warned_about(project: Project) -> None:
    """Two buffers of max_steps + 1 numbers: XLA's own account of them decides."""
    project.model(MODEL).yaml(CASE)
    few, many = (
        fit(project.load(f"stages.decay.max_steps={n}", "execution.memory=32 MiB")).plan.warnings
        for n in (64, 4_000_000)
    )
    assert not few
    assert "`execution.memory` should hold a sample" in many[-1]


@pytest.mark.slow
def test_derivatives_by_times_agree_with_finite_differences(project: Project) -> None:
    """y' = -y cos t through `t0`, `t1` and `ts`, the last of every step, and a complex state, as `check-grad` sees them."""
    project.model("""\
        import jax.numpy as jnp

        from ops.ode import solve

        TIGHT = {"rtol": 1e-10, "atol": 1e-12, "max_steps": 512}


        def ends(begin, end):
            field = lambda t, y, args: -y * jnp.cos(t)
            by_step = solve(field, 1.0, t0=begin, t1=end, ts="steps", **TIGHT)
            turned = solve(lambda t, y, w: 1j * w * y, 1 + 0j, end, ts=[0.5, 1.0], **TIGHT)
            return {
                "y": by_step.y[by_step.length - 1] + jnp.sum(turned.y.imag),
                "at": solve(field, 1.0, t0=begin, ts=jnp.stack([(begin + end) / 2, end]), **TIGHT).y,
            }
    """).yaml("""\
        defaults: [engine, _self_]
        name: case
        parameters: {begin: 0.2, end: 1.5}
        stages: {ends: {_target_: model.ends}}
        outputs: {y: ends.y, at: ends.at}
        derivatives:
          dy: {of: y, wrt: [begin, end], mode: reverse}
          dat: {of: at, wrt: [begin, end], kind: jacobian, mode: forward}
    """)
    found = [row.verdict for row in check_gradients(project.load())]
    assert found == ["ok"] * 4
