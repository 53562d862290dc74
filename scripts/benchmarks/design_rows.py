"""The row of design optimization: many searches to a store, against a loop over them by hand."""

from __future__ import annotations

import functools
import shutil
import threading
import time
from typing import Any

import numpy as np

from benchmarks.contest import Contest, Side, Wanted, row
from benchmarks.engine_rows import Folder

STEPS, RATE = 200, 0.02
BOUNDS = {"a": (0.3, 0.8), "b": (0.01, 0.05), "c": (0.6, 1.2), "d": (0.01, 0.05)}
TRUTH = {"a": 0.48, "b": 0.025, "c": 0.93, "d": 0.0275}
TIMES = tuple(float(t) for t in range(2, 21, 2))

FIT = f"""\
defaults: [engine, {{{{solver: tsit5}}}}, {{{{scheduler: threads}}}}, _self_]
name: predators
solver: {{{{rtol: 1.0e-6, atol: 1.0e-6, dt0: 0.01}}}}
parameters: {{{{a: 0.5, b: 0.02, c: 0.9, d: 0.02}}}}
stages:
  misfit: {{{{_target_: predators.misfit, solver: "${{{{solver}}}}"}}}}
outputs: {{{{misfit: misfit.misfit}}}}
optimize:
  minimize: misfit
  variables: {{{{{", ".join(f"{k}: {{{{bounds: [{low}, {high}], scale: linear}}}}" for k, (low, high) in BOUNDS.items())}}}}}
  starts: {{{{design: sobol, samples: {{samples}}}}}}
  method: {{{{_target_: optax.adam, learning_rate: {RATE * 0.05}}}}}
  max_steps: {STEPS}
  tolerance: 1.0e-12
store: {{{{path: {{store}}}}}}
"""
MODEL = '''\
import jax.numpy as jnp

from ops.ode import solve

TIMES = jnp.array({times})
DATA = jnp.array({data})


def field(t, y, p):
    """Lotka and Volterra's equations."""
    a, b, c, d = p
    hares, lynxes = y
    return jnp.stack([(a - b * lynxes) * hares, (d * hares - c) * lynxes])


def misfit(a, b, c, d, solver):
    """The mean square of what the logarithms of the populations are off by."""
    found = solve(field, jnp.array([34.9, 3.86]), (a, b, c, d), ts=TIMES, solver=solver)
    return {{"misfit": jnp.mean((jnp.log(found.y) - DATA) ** 2), "status": found.status}}
'''


@functools.cache
def data() -> np.ndarray[Any, Any]:
    """Logarithms of the populations for the true parameters, by SciPy."""
    from scipy.integrate import solve_ivp

    a, b, c, d = TRUTH.values()

    def field(t: float, y: Any) -> list[float]:
        return [(a - b * y[1]) * y[0], (d * y[0] - c) * y[1]]

    found = solve_ivp(field, (0.0, TIMES[-1]), [34.9, 3.86], "DOP853", TIMES, rtol=1e-10, atol=1e-10)
    return np.log(found.y.T)


@row("starts", Wanted(20, 20), all_cores=True, repeats=1)
def starts(quick: bool) -> Contest:
    """A fit of four parameters of an ODE from many starts by Adam, to a store, against a Python loop over starts and steps by hand."""
    samples, few = (8, 2) if quick else (1000, 6)
    ours, points = by_engine(samples)
    peer = by_loop(points[:few], samples)
    return Contest(
        f"{samples} starts of a fit of 4 parameters, {STEPS} steps of Adam, to a store: a loop over them",
        samples,
        ours,
        peer,
        exact=peer.once()[1],
        bound=1e-3,
        scale=np.array([high - low for low, high in BOUNDS.values()]),
    )


def by_engine(samples: int) -> tuple[Side, np.ndarray[Any, Any]]:
    """Searches from a compiled program to the finished store, and where they start."""
    import engine
    from engine.execute import execute
    from engine.optimization import make_optimization
    from engine.searches import Searches
    from engine.store import create

    folder = Folder()
    model = MODEL.format(times=TIMES, data=data().tolist())
    (folder.path / "predators.py").write_text(model, encoding="utf-8")
    start = time.perf_counter()
    plan = make_optimization(folder.plan(FIT, "starts", samples=samples).draft)

    def fresh() -> Searches:
        shutil.rmtree(plan.draft.store_path, ignore_errors=True)
        store = create(plan.draft.store_path, plan.layout(), plan.attributes())
        return Searches(plan, store, [], threading.Event())

    searches = fresh()
    searches.prepare()
    execute(searches, list(searches.store.blocks))  # type: ignore[arg-type]  # compiles what certificates need
    seconds = time.perf_counter() - start

    def once() -> tuple[float, Any]:
        begin = time.perf_counter()
        again = fresh()
        again.advance, again.begin, again.findings = searches.advance, searches.begin, searches.findings
        execute(again, list(again.store.blocks))  # type: ignore[arg-type]
        taken = time.perf_counter() - begin
        return taken, plan.draft.store_path

    def read(path: Any) -> Any:
        found = engine.open_store(path)
        return np.stack([found[f"history.{k}"].values[:, -1] for k in BOUNDS], axis=1)

    columns = plan.problem.starts.columns
    return Side(once, read, seconds), np.stack([columns[k] for k in BOUNDS], axis=1)


def by_loop(points: np.ndarray[Any, Any], samples: int) -> Side:
    """diffrax and optax by hand: one compiled step, called for each step of each start."""
    import diffrax
    import jax
    import jax.numpy as jnp
    import optax

    low, high = (jnp.array([ends[i] for ends in BOUNDS.values()]) for i in (0, 1))
    term = diffrax.ODETerm(lambda t, y, p: jnp.stack([(p[0] - p[1] * y[1]) * y[0], (p[3] * y[0] - p[2]) * y[1]]))
    control, save = diffrax.PIDController(1e-6, 1e-6), diffrax.SaveAt(ts=jnp.array(TIMES))

    def curve(p: Any) -> Any:
        y0 = jnp.array([34.9, 3.86])
        found = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, TIMES[-1], 0.01, y0, p, saveat=save, stepsize_controller=control
        )
        return found.ys

    wanted = jnp.asarray(data())
    adam = optax.adam(RATE * 0.05)

    @jax.jit
    def step(p: Any, state: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda p: jnp.mean((jnp.log(curve(p)) - wanted) ** 2))(p)
        updates, state = adam.update(gradient, state, p)
        return jnp.clip(optax.apply_updates(p, updates), low, high), state, value

    start = time.perf_counter()
    jax.block_until_ready(step(jnp.asarray(points[0]), adam.init(jnp.asarray(points[0]))))
    seconds = time.perf_counter() - start

    def once() -> tuple[float, Any]:
        begin, found = time.perf_counter(), []
        for point in points:
            p = jnp.asarray(point)
            state = adam.init(p)
            for _ in range(STEPS):
                p, state, _ = step(p, state)
            found.append(np.asarray(p))
        return (time.perf_counter() - begin) * samples / len(points), np.stack(found)

    return Side(once, compile_seconds=seconds, note=f"{len(points)} starts of the loop were timed")
