"""Ways to solve a problem for all its samples on one core: ours, and what a user would take instead."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.contest import BY_HAND, Side, compiled, timed
from benchmarks.problems import Problem


def ours(problem: Problem, method: str = "tsit5", ts: Any = None, **settings: Any) -> Side:
    """`jax.vmap` of `ops.ode.solve`."""
    import jax

    return compiled(jax.vmap(solve_of(problem, method, ts, **settings)), problem.parameters, note=f"ours {method}")


def diffrax(problem: Problem, method: str = "Tsit5", ts: Any = None, **settings: Any) -> Side:
    """`jax.vmap` of `diffrax.diffeqsolve`, as its documentation has it."""
    import jax

    return compiled(jax.vmap(diffeqsolve_of(problem, method, ts, **settings)), problem.parameters, options=BY_HAND)


def solve_of(problem: Problem, method: str = "tsit5", ts: Any = None, **settings: Any) -> Any:
    """The state at the end, or at `ts`, of one sample, by `ops.ode.solve`."""
    from ops.ode import Solver, solve

    solver = Solver(method, dt0=problem.first_step, max_steps=100_000, **settings)

    def one(p: Any) -> Any:
        end = {"t1": problem.t1} if ts is None else {"ts": ts}
        return solve(problem.field, problem.y0, p, solver=solver, **end).y

    return one


def diffeqsolve_of(problem: Problem, method: str = "Tsit5", ts: Any = None, **settings: Any) -> Any:
    """The state at the end, or at `ts`, of one sample, by `diffrax.diffeqsolve`."""
    import diffrax

    def one(p: Any) -> Any:
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(problem.field),
            getattr(diffrax, method)(),
            0.0,
            problem.t1,
            problem.first_step,
            np.asarray(problem.y0),
            args=p,
            saveat=diffrax.SaveAt(t1=True) if ts is None else diffrax.SaveAt(ts=ts),
            stepsize_controller=diffrax.PIDController(**settings),
            max_steps=100_000,
            throw=False,
        )
        return found.ys[0] if ts is None else found.ys

    return one


def tsit5_in_numba(problem: Problem, rtol: float, atol: float) -> Side:
    """The oscillator by Tsit5 in scalar native code, with the same controller and first step as the others."""
    import diffrax
    import numba

    tableau = diffrax.Tsit5().tableau
    a = np.zeros((7, 7))
    for i, coefficients in enumerate(tableau.a_lower, start=1):
        a[i, :i] = coefficients
    e, t1, first = np.asarray(tableau.b_error), problem.t1, float(problem.first_step or 0.01)

    @numba.njit(error_model="numpy")
    def ensemble(parameters: Any, out: Any) -> None:
        for sample in range(parameters.shape[0]):
            omega, zeta = parameters[sample]
            stiffness, damping = omega * omega, 2 * zeta * omega
            t, h, x, v = 0.0, first, 1.0, 0.0
            x1, v1 = v, -stiffness * x - damping * v
            while t < t1:
                h = min(h, t1 - t)
                xa = x + h * a[1, 0] * x1
                va = v + h * a[1, 0] * v1
                x2, v2 = va, -stiffness * xa - damping * va
                xa = x + h * (a[2, 0] * x1 + a[2, 1] * x2)
                va = v + h * (a[2, 0] * v1 + a[2, 1] * v2)
                x3, v3 = va, -stiffness * xa - damping * va
                xa = x + h * (a[3, 0] * x1 + a[3, 1] * x2 + a[3, 2] * x3)
                va = v + h * (a[3, 0] * v1 + a[3, 1] * v2 + a[3, 2] * v3)
                x4, v4 = va, -stiffness * xa - damping * va
                xa = x + h * (a[4, 0] * x1 + a[4, 1] * x2 + a[4, 2] * x3 + a[4, 3] * x4)
                va = v + h * (a[4, 0] * v1 + a[4, 1] * v2 + a[4, 2] * v3 + a[4, 3] * v4)
                x5, v5 = va, -stiffness * xa - damping * va
                xa = x + h * (a[5, 0] * x1 + a[5, 1] * x2 + a[5, 2] * x3 + a[5, 3] * x4 + a[5, 4] * x5)
                va = v + h * (a[5, 0] * v1 + a[5, 1] * v2 + a[5, 2] * v3 + a[5, 3] * v4 + a[5, 4] * v5)
                x6, v6 = va, -stiffness * xa - damping * va
                xa = x + h * (a[6, 0] * x1 + a[6, 1] * x2 + a[6, 2] * x3 + a[6, 3] * x4 + a[6, 4] * x5 + a[6, 5] * x6)
                va = v + h * (a[6, 0] * v1 + a[6, 1] * v2 + a[6, 2] * v3 + a[6, 3] * v4 + a[6, 4] * v5 + a[6, 5] * v6)
                x7, v7 = va, -stiffness * xa - damping * va
                ex = h * (e[0] * x1 + e[1] * x2 + e[2] * x3 + e[3] * x4 + e[4] * x5 + e[5] * x6 + e[6] * x7)
                ev = h * (e[0] * v1 + e[1] * v2 + e[2] * v3 + e[3] * v4 + e[4] * v5 + e[5] * v6 + e[6] * v7)
                ex /= atol + rtol * max(abs(x), abs(xa))
                ev /= atol + rtol * max(abs(v), abs(va))
                square = max(0.5 * (ex * ex + ev * ev), 1e-30)
                if square < 1:
                    t, x, v, x1, v1 = t + h, xa, va, x7, v7
                h *= min(max(0.9 * square**-0.1, 0.2), 10.0)
            out[sample, 0], out[sample, 1] = x, v

    def run() -> Any:
        out = np.empty((len(problem.parameters), 2))
        ensemble(problem.parameters, out)
        return out

    start = time.process_time()
    ensemble(problem.parameters[:1], np.empty((1, 2)))
    return Side(timed(run), compile_seconds=time.process_time() - start)


def taylor_by_heyoka(problem: Problem, tolerance: float) -> Side:
    """The oscillator by Taylor series in vectors of samples, as many as the processor's."""
    import heyoka

    start = time.process_time()
    x, v = heyoka.make_vars("x", "v")
    omega, zeta = heyoka.par[0], heyoka.par[1]
    rates = [(x, v), (v, -omega * omega * x - 2.0 * zeta * omega * v)]
    width = heyoka.recommended_simd_size()
    solver = heyoka.taylor_adaptive_batch(rates, np.zeros((2, width)), pars=np.zeros((2, width)), tol=tolerance)
    seconds = time.process_time() - start
    samples = len(problem.parameters)
    filled = np.concatenate([problem.parameters, problem.parameters[: -samples % width]])

    def run() -> Any:
        out = np.empty((len(filled), 2))
        for i in range(0, len(filled), width):
            solver.set_time(0.0)
            solver.state[:] = problem.y0[:, None]
            solver.pars[:] = filled[i : i + width].T
            solver.propagate_until(problem.t1)
            out[i : i + width] = solver.state.T
        return out

    return Side(timed(run), compile_seconds=seconds, note=f"{width} samples in a vector")


def cvode(problem: Problem, rtol: float, atol: float) -> Side:
    """Robertson's reaction by CVODE, with its Jacobian. Its callbacks are in Python: it has no door for native ones, and
    what it takes to call them outweighs what they do (compiled by Numba they are no faster)."""
    from sksundae.cvode import CVODE

    def rates(t: Any, y: Any, out: Any, p: Any) -> None:
        net, pair = p[0] * y[0] - 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
        out[0], out[1], out[2] = -net, net - pair, pair

    def jacobian(t: Any, y: Any, rate: Any, out: Any, p: Any) -> None:
        bc, cc, pair = 1e4 * y[1], 1e4 * y[2], 6e7 * y[1]
        out[0, 0], out[0, 1], out[0, 2] = -p[0], cc, bc
        out[1, 0], out[1, 1], out[1, 2] = p[0], -cc - pair, -bc
        out[2, 1] = pair

    at = np.array([0.0, problem.t1])

    def one(p: Any) -> Any:
        solver = CVODE(rates, jacfn=jacobian, userdata=p, rtol=rtol, atol=atol, max_num_steps=100_000)
        return solver.solve(at, problem.y0).y[-1]

    return Side(timed(lambda: np.stack([one(p) for p in problem.parameters])))
