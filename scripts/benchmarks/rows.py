"""The rows of solves on one core, in processor time: the same problem, and the same error, on both sides."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from benchmarks import problems, solvers
from benchmarks.contest import BY_HAND, Contest, Side, Wanted, compiled, row, timed

LOOSE = {"rtol": 1e-6, "atol": 1e-9}
LORENZ = {"rtol": 1e-8, "atol": 1e-8}


@row("oscillator", Wanted(60, 35))
def oscillator(quick: bool) -> Contest:
    """Samples of very different cost."""
    problem = problems.oscillator(256 if quick else 8192)
    return Contest(
        f"oscillator, {len(problem.parameters)} samples: vmap(diffeqsolve)",
        len(problem.parameters),
        solvers.ours(problem, **LOOSE),
        solvers.diffrax(problem, **LOOSE),
        **judged(problem.parameters, problem.t1, 1e-4),
    )


@row("numba", Wanted(5, 2.5), needs=("numba",))
def numba(quick: bool) -> Contest:
    """The same against scalar native code."""
    problem = problems.oscillator(256 if quick else 8192)
    return Contest(
        f"oscillator, {len(problem.parameters)} samples: Tsit5 in Numba",
        len(problem.parameters),
        solvers.ours(problem, **LOOSE),
        solvers.tsit5_in_numba(problem, **LOOSE),
        **judged(problem.parameters, problem.t1, 1e-4),
    )


@row("heyoka", Wanted(1, 1), needs=("heyoka",))
def heyoka(quick: bool) -> Contest:
    """The same at a high accuracy, where Taylor series are at their best."""
    problem = problems.oscillator(256 if quick else 8192)
    return Contest(
        f"oscillator, {len(problem.parameters)} samples, error 1e-9: heyoka",
        len(problem.parameters),
        solvers.ours(problem, "dopri8", rtol=6e-11, atol=6e-13),
        solvers.taylor_by_heyoka(problem, 1e-9),
        **judged(problem.parameters, problem.t1, 1e-9),
    )


def judged(parameters: Any, t: Any, bound: float) -> dict[str, Any]:
    """How states of the oscillator are judged: x beside its start, v beside the omega that it swings with."""
    exact = problems.motion(parameters, t)
    omega = parameters[:, 0].reshape(-1, *(1,) * np.ndim(t))
    scale = np.broadcast_to(np.stack([np.ones_like(omega), omega], -1), exact.shape)
    return {"exact": exact, "scale": scale, "bound": bound}


@row("lorenz", Wanted(12, 12))
def lorenz(quick: bool) -> Contest:
    """Samples of much the same cost."""
    problem = problems.lorenz(256 if quick else 4096)
    return Contest(
        f"Lorenz, {len(problem.parameters)} samples: vmap(diffeqsolve)",
        len(problem.parameters),
        solvers.ours(problem, **LORENZ),
        solvers.diffrax(problem, **LORENZ),
        problems.by_scipy(problem, problems.lorenz_rates, 16),
        bound=1e-5,
    )


@row("gradient3", Wanted(20, 20))
def gradient3(quick: bool) -> Contest:
    """The same with the gradient by three parameters."""
    import jax

    problem = problems.lorenz(128 if quick else 4096)
    sides = [
        compiled(
            jax.vmap(jax.value_and_grad(lambda p, one=one: one(p).sum())),
            problem.parameters,
            read=lambda f: f[1],
            options=options,
        )
        for one, options in (
            (solvers.solve_of(problem, **LORENZ), None),
            (solvers.diffeqsolve_of(problem, **LORENZ), BY_HAND),
        )
    ]
    return Contest(
        f"Lorenz, {len(problem.parameters)} values and gradients: vmap(value_and_grad)",
        len(problem.parameters),
        *sides,
        problems.lorenz_gradient(problem, 16),
        bound=1e-4,
    )


@row("saves", Wanted(15, 8))
def saves(quick: bool) -> Contest:
    """The states at many times."""
    problem = problems.oscillator(128 if quick else 8192)
    ts = np.linspace(0.0, problem.t1, 201)
    return Contest(
        f"oscillator, {len(problem.parameters)} samples at 201 times: vmap(diffeqsolve)",
        len(problem.parameters),
        solvers.ours(problem, ts=ts, **LOOSE),
        solvers.diffrax(problem, ts=ts, **LOOSE),
        **judged(problem.parameters, ts, 1e-4),
    )


@functools.cache
def robertson(samples: int, known: int) -> tuple[problems.Problem, Side, dict[str, Any]]:
    """Robertson's reaction, our best way to solve it, and how the first answers are judged: each species
    beside its own size."""
    from ops.methods import METHODS

    problem = problems.robertson(samples)
    exact = problems.robertson_answers(problem, known)
    method = "rodas5p" if "rodas5p" in METHODS else "kvaerno5"
    right = {"exact": exact, "scale": np.abs(exact), "bound": 1e-4}
    return problem, solvers.ours(problem, method, rtol=1e-6, atol=1e-10), right


@row("robertson", Wanted(25, 12))
def robertson_by_diffrax(quick: bool) -> Contest:
    """A stiff problem."""
    problem, ours, right = robertson(*((32, 2) if quick else (1024, 16)))
    peer = solvers.diffrax(problem, "Kvaerno5", rtol=3e-6, atol=3e-10)
    samples = len(problem.parameters)
    return Contest(f"Robertson, {samples} samples: vmapped Kvaerno5", samples, ours, peer, **right)


@row("cvode", Wanted(15, 8), needs=("sksundae",))
def robertson_by_cvode(quick: bool) -> Contest:
    """The same against CVODE."""
    problem, ours, right = robertson(*((32, 2) if quick else (1024, 16)))
    peer = solvers.cvode(problem, rtol=1e-7, atol=1e-11)
    samples = len(problem.parameters)
    return Contest(f"Robertson, {samples} samples: CVODE", samples, ours, peer, **right)


@row("chain", Wanted(3, 2))
def chain(quick: bool) -> Contest:
    """Tens of states."""
    problem = problems.chain(8 if quick else 256)
    return Contest(
        f"chain of 50 reactions, {len(problem.parameters)} samples: vmap(diffeqsolve)",
        len(problem.parameters),
        solvers.ours(problem, **LOOSE),
        solvers.diffrax(problem, **LOOSE),
        problems.chain_answers(problem),
        bound=1e-5,
    )


@row("gray_scott", Wanted(3, 2), repeats=1)
def gray_scott(quick: bool) -> Contest:
    """Thousands of states, of a partial differential equation."""
    points, samples = (16, 4) if quick else (64, 256)
    problem = problems.gray_scott(samples, points)
    return Contest(
        f"Gray-Scott, 2 x {points} x {points}, {samples} samples: vmap(diffeqsolve)",
        samples,
        solvers.ours(problem, rtol=1e-5, atol=1e-8),
        solvers.diffrax(problem, rtol=1e-5, atol=1e-8),
        problems.gray_scott_answers(problem, 2),
        bound=1e-3,
    )


@row("straggler", Wanted(1.3, 1.3, at_most=True))
def straggler(quick: bool) -> Contest:
    """One sample a hundred times as hard as the others, against the others and it, each for itself."""
    import jax

    problem = problems.oscillator(512)
    rng = np.random.default_rng(1)
    easy = np.stack([rng.uniform(1.5, 2.5, 511), np.full(511, 0.02)], 1)
    hard = np.array([200.0, 0.0])
    mixed = np.insert(easy, 200, hard, 0)
    one = solvers.solve_of(problem, **LOOSE)
    whole, rest, alone = (
        compiled(jax.vmap(one), mixed), compiled(jax.vmap(one), easy), compiled(one, hard),
    )  # fmt: skip

    def apart() -> tuple[float, Any]:
        (a, many), (b, single) = rest.once(), alone.once()
        return a + b, np.insert(np.asarray(many), 200, single, 0)

    right = judged(mixed, problem.t1, 1e-2)
    return Contest("oscillator, 512 samples, one 100 times as hard: each part alone", 1, whole, Side(apart), **right)


@row("compile", Wanted(1.2, 1.2, at_most=True), repeats=3)
def compilation(quick: bool) -> Contest:
    """From a function to its program, nothing kept."""
    import jax

    problem = problems.oscillator(256)

    def cold(of: Any) -> Side:
        def work() -> Any:
            return jax.jit(jax.vmap(of(problem, **LOOSE))).lower(problem.parameters).compile()

        def once() -> tuple[float, Any]:
            jax.clear_caches()
            return timed(work)()

        return Side(once, lambda program: np.asarray(program(problem.parameters)))

    sides = cold(solvers.solve_of), cold(solvers.diffeqsolve_of)
    return Contest("compilation of it: diffrax", 1, *sides, **judged(problem.parameters, problem.t1, 1e-4))


@row("single", Wanted(1, 1))
def single(quick: bool) -> Contest:
    """One sample, no batch."""
    problem = problems.oscillator(1)
    parameters = np.array([10.0, 0.1])
    sides = [
        compiled(of(problem, **LOOSE), parameters, read=lambda y: np.asarray(y)[None], options=options)
        for of, options in ((solvers.solve_of, None), (solvers.diffeqsolve_of, BY_HAND))
    ]
    right = judged(parameters[None], problem.t1, 1e-4)
    return Contest("oscillator, 1 sample, not batched: diffeqsolve", 1, *sides, **right)
