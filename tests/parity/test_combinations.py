"""Every kind of derivative, in every shape of sweep and precision, on one device and four: agrees with the closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from tests.project import Project

MODEL = """
    import jax.numpy as jnp
    from ops.ode import solve

    def decay(k, y0, solver):
        found = solve(lambda t, y, k: 1.0 - k * y, y0, k, ts=jnp.linspace(0.0, 1.0, 4), solver=solver)
        return {"path": found.y, "end": found.y[-1] ** 2, "status": found.status}
"""
CASE = """
    defaults: [engine, {{solver: {solver}}}, _self_]
    name: table
    precision: {precision}
    solver: {{rtol: {rtol}, atol: {atol}}}
    parameters: {{k: 1.3, y0: 2.0}}
    stages: {{decay: {{_target_: model.decay, solver: "${{solver}}"}}}}
    outputs: {{path: {{from: decay.path, dims: [time]}}, end: decay.end}}
    {sweep}
    derivatives:
      g: {{of: end, wrt: [k, y0], kind: gradient}}
      j: {{of: path, wrt: [k, y0], kind: jacobian}}
      h: {{of: end, wrt: [k, y0], kind: hessian}}
      jv: {{of: path, wrt: [k, y0], kind: jvp, direction: {{k: 0.5, y0: -1.0}}}}
      vj: {{of: path, wrt: [k, y0], kind: vjp, direction: [1.0, 2.0, 3.0, 4.0]}}
      hv: {{of: end, wrt: [k, y0], kind: hvp, direction: {{k: 0.5, y0: -1.0}}}}
"""
SWEEPS = {
    "single": "",
    "grid": "sweep: {axes: {k: [0.5, 1.0, 2.5], y0: [-1.0, 3.0]}}",
    "random": "sweep: {design: random, samples: 7, axes: {k: {uniform: [0.5, 2.0]}, y0: {normal: [1.0, 0.5]}}}",
}


def path(p: jax.Array) -> jax.Array:
    """The closed form of y' = 1 - k y at the four times; p is (k, y0)."""
    k, y0 = p
    return 1 / k + (y0 - 1 / k) * jnp.exp(-k * jnp.linspace(0.0, 1.0, 4))


def truth(k: float, y0: float) -> dict[str, np.ndarray]:
    """Everything that the config asks for, from the closed form."""
    p, v, w = jnp.array([k, y0]), jnp.array([0.5, -1.0]), jnp.array([1.0, 2.0, 3.0, 4.0])
    end = lambda p: path(p)[-1] ** 2  # noqa: E731
    jacobian, gradient, hessian = jax.jacfwd(path)(p), jax.grad(end)(p), jax.hessian(end)(p)
    names = ("k", "y0")
    found = {"path": path(p), "end": end(p), "jv": jacobian @ v}
    for i, a in enumerate(names):
        found |= {f"g.{a}": gradient[i], f"j.{a}": jacobian[:, i], f"vj.{a}": (w @ jacobian)[i]}
        found |= {f"hv.{a}": (hessian @ v)[i]} | {f"h.{a}.{b}": hessian[i, j] for j, b in enumerate(names)}
    return {name: np.asarray(value) for name, value in found.items()}


def expected(ds: xarray.Dataset) -> dict[str, np.ndarray]:
    """The truth at every sample of a store, in its shape."""
    dims = ds["status"].dims
    point = {"k": ds.get("k", xarray.DataArray(1.3)), "y0": ds.get("y0", xarray.DataArray(2.0))}
    k, y0 = xarray.broadcast(*point.values())
    samples = [truth(float(a), float(b)) for a, b in zip(np.ravel(k), np.ravel(y0), strict=True)]
    lead = tuple(ds.sizes[d] for d in dims)
    return {n: np.reshape([s[n] for s in samples], (*lead, *samples[0][n].shape)) for n in samples[0]}


CELLS = [
    ("single", "float64", "tsit5"),
    ("grid", "float32", "tsit5"),
    ("random", "float64", "tsit5"),
    ("single", "float32", "kvaerno5"),
]
"""Every shape of sweep, precision and kind of solver: the whole product takes minutes more."""


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "precision", "solver"), CELLS)
def test_every_cell_agrees_on_one_device_and_on_four(project: Project, sweep: str, precision: str, solver: str) -> None:
    """All six kinds in one program: four devices give what one gives, and both give the truth."""
    double = precision == "float64"
    rtol, atol, close = ("1.0e-10", "1.0e-12", 1e-6) if double else ("1.0e-5", "1.0e-6", 2e-3)
    case = CASE.format(solver=solver, precision=precision, rtol=rtol, atol=atol, sweep=SWEEPS[sweep])
    project.model(MODEL).yaml(case)
    found = {}
    for devices in (1, 4) if sweep != "single" else (4,):  # one sample has no use for more than one
        flags = f"--xla_force_host_platform_device_count={devices}"
        done = project.cli("run", "case.yaml", f"store.path={devices}.zarr", "--json", XLA_FLAGS=flags)
        assert done.code == 0, done.err
        found[devices] = xarray.open_zarr(project.folder / f"{devices}.zarr").load()
        assert found[devices].attrs["device"]["used"] == (devices if sweep != "single" else 1)
    for name, want in expected(found[4]).items():
        size = max(1.0, np.abs(want).max())
        for devices, ds in found.items():
            assert str(ds[name].dtype) == precision
            np.testing.assert_allclose(ds[name], want, rtol=0, atol=close * size, err_msg=f"{name} on {devices}")
            one = found.get(1, ds)
            np.testing.assert_allclose(ds[name], one[name], rtol=0, atol=(1e-12 if double else 1e-5) * size)
