"""Worked pipelines that compare a model with data: values and gradients against SciPy, programs by hand and closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import engine
from engine.gradient_check import check_gradients
from tests.project import REPOSITORY

OPTIMUM = ("a", "b", "c", "d", "hare", "lynx")


def run(folder: Path, name: str, *overrides: str) -> Any:
    return engine.run(REPOSITORY / "conf" / f"{name}.yaml", [f"store.path={folder / name}.zarr", *overrides]).load()


def test_hares_and_lynxes_at_the_least_squares(tmp_path: Path) -> None:
    """The sum of squares at the optimum, where its gradient is zero; beside it, both by SciPy."""
    from scipy.integrate import solve_ivp

    problems = json.loads((REPOSITORY / "tests" / "reference" / "problems.json").read_text(encoding="utf-8"))
    (problem,) = [entry for entry in problems if entry["id"] == "inv_hare_lynx"]
    known, data = problem["reference_values"], problem["data"]
    names = ("a", "b", "c", "d", "u0", "v0")
    best = np.array([float(known[name]) for name in names])
    ds = run(tmp_path, "hare_lynx")
    nominal = [ds.attrs["config"]["parameters"][name] for name in OPTIMUM]
    np.testing.assert_allclose(nominal, best, rtol=1e-15)
    np.testing.assert_allclose(float(ds.misfit[1]), float(known["f"]), rtol=1e-9)
    slope = np.array([ds[f"dmisfit.{name}"].values for name in OPTIMUM])
    assert (np.abs(slope[:, 1] * best) < 1e-5 * np.abs(slope[:, 0] * best)).all()

    def misfit(at: Any) -> Any:
        a, b, c, d, *start = at
        field = lambda t, y: [(a - b * y[1]) * y[0], (d * y[0] - c) * y[1]]  # noqa: E731
        found = solve_ivp(field, (0, 20), start, "DOP853", t_eval=np.arange(21.0), rtol=1e-12, atol=1e-12)
        return ((found.y - [data["hare"], data["lynx"]]) ** 2).sum()

    beside = np.array([0.45, *best[1:]])
    np.testing.assert_allclose(float(ds.misfit[0]), misfit(beside), rtol=1e-9)
    differences = [(misfit(beside * (1 + e)) - misfit(beside * (1 - e))) / 2e-5 for e in 1e-5 * np.eye(6)]
    np.testing.assert_allclose(slope[:, 0] * beside, differences, rtol=1e-5)


@pytest.mark.slow
def test_hares_and_lynxes_by_finite_differences() -> None:
    plan = engine.load(REPOSITORY / "conf" / "hare_lynx.yaml", ["sweep.axes.a=[0.45]"])
    assert {row.verdict for row in check_gradients(plan)} == {"ok"}


@pytest.mark.slow
def test_neural_vector_field_by_hand(tmp_path: Path) -> None:
    """Runge and Kutta's method with 1000 steps over the same weights, and `jax.grad` through it."""
    ds = run(tmp_path, "neural_ode")
    plan = engine.load(REPOSITORY / "conf" / "neural_ode.yaml")
    names = [f"net.layers.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")]
    weights = [jnp.asarray(plan.draft.nominal[name]) for name in names]
    t = jnp.linspace(0.0, 5.0, 51)

    def loss(weights: Any, start: Any) -> Any:
        w0, b0, w1, b1 = weights
        field = lambda y: w1 @ jnp.tanh(w0 @ y + b0) + b1  # noqa: E731
        h = 0.005

        def step(y: Any, _: Any) -> Any:
            k1 = field(y)
            k2 = field(y + h / 2 * k1)
            k3 = field(y + h / 2 * k2)
            k4 = field(y + h * k3)
            return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), y

        _, y = jax.lax.scan(step, start, length=1001)
        cos, sin = jnp.cos(2 * t), jnp.sin(2 * t)
        turned = jnp.stack([cos * start[0] + sin * start[1], cos * start[1] - sin * start[0]], axis=-1)
        exact = jnp.exp(-0.1 * t)[:, None] * turned
        return jnp.mean((y[::20] - exact) ** 2)

    value, slopes = jax.jit(jax.vmap(jax.value_and_grad(loss), (None, 0)))(weights, ds.start_values.values)
    np.testing.assert_allclose(ds.loss, value, rtol=1e-6)
    for name, slope in zip(names, slopes, strict=True):
        np.testing.assert_allclose(ds[f"dloss.{name}"], slope, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_neural_vector_field_that_is_constant() -> None:
    """With a last layer of its bias c alone, y = y0 + c t: the loss, and its gradient by c, are sums over the times."""
    plan = engine.load(REPOSITORY / "conf" / "neural_ode.yaml")
    c, start, t = np.array([0.3, -0.2]), np.array([2.0, 0.0]), np.linspace(0.0, 5.0, 51)[:, None]

    def loss(c: Any) -> Any:
        net = {"net.layers.1.weight": jnp.zeros((2, 16)), "net.layers.1.bias": c}
        return plan.function(net)["loss"]

    value, slope = jax.jit(jax.value_and_grad(loss))(jnp.asarray(c))
    spiral = np.exp(-0.1 * t) * np.hstack([2 * np.cos(2 * t), -2 * np.sin(2 * t)])
    apart = start + c * t - spiral
    np.testing.assert_allclose(value, (apart**2).mean(), rtol=1e-9)
    np.testing.assert_allclose(slope, (apart * t).mean(0), rtol=1e-7)
