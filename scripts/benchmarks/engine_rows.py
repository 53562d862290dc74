"""The rows of the engine: whole runs from a config to a store, on every core and in wall time, and what its programs cost."""

from __future__ import annotations

import atexit
import functools
import math
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import problems, solvers
from benchmarks.contest import BY_HAND, Contest, Side, Wanted, row
from benchmarks.rows import LOOSE, judged

CHEAP = """\
defaults: [engine, {{scheduler: threads}}, _self_]
name: cheap
parameters: {{omega: 2.0, zeta: 0.05, t: 1.0}}
stages:
  closed: {{_target_: models.closed}}
outputs: {{x: closed.x, v: closed.v}}
sweep: {{design: random, samples: {samples}, axes: {{omega: {{uniform: [0.5, 20.0]}}, zeta: {{uniform: [0.0, 0.5]}}}}}}
store: {{path: {store}}}
"""
SWING = """\
defaults: [engine, {{solver: tsit5}}, {{scheduler: threads}}, _self_]
name: swing
solver: {{rtol: 1.0e-6, atol: 1.0e-9, dt0: 0.01, max_steps: 100000}}
parameters: {{omega: 2.0, zeta: 0.05}}
stages:
  swing: {{_target_: models.swing, solver: "${{solver}}"}}
outputs: {{x: swing.x, v: swing.v}}
sweep: {{design: random, samples: {samples}, axes: {{omega: {{uniform: [0.5, 20.0]}}, zeta: {{uniform: [0.0, 0.5]}}}}}}
store: {{path: {store}}}
"""
STEPS = """\
defaults: [engine, {{solver: tsit5}}, _self_]
name: {name}
solver: {{rtol: 1.0e-8, atol: 1.0e-10, max_steps: {max_steps}}}
parameters: {parameters}
stages:
  {name}: {{_target_: models.{name}, solver: "${{solver}}"}}
outputs: {{end: {name}.end, steps: {name}.steps}}
derivatives: {derivatives}
"""
MODELS = '''\
import jax.numpy as jnp

from ops.ode import solve


def closed(omega, zeta, t):
    """Displacement and velocity of the damped oscillator from x(0) = 1, v(0) = 0."""
    wd = omega * jnp.sqrt(1 - zeta**2)
    decay = jnp.exp(-zeta * omega * t)
    x = decay * (jnp.cos(wd * t) + zeta * omega / wd * jnp.sin(wd * t))
    v = -decay * omega**2 / wd * jnp.sin(wd * t)
    return {"x": x, "v": v}


def swing(omega, zeta, solver):
    """The same at t = 20, by a solve."""
    def field(t, y, p):
        omega, zeta = p
        x, v = y
        return [v, -omega * omega * x - 2 * zeta * omega * v]
    found = solve(field, [1.0, 0.0], (omega, zeta), t1=20.0, solver=solver)
    return {"x": found.y[0], "v": found.y[1], "status": found.status}


def pulsing(mu, k, f, solver):
    """A driven van der Pol oscillator."""
    def field(t, y, p):
        mu, k, f = p
        return [y[1], mu * (1 - y[0] ** 2) * y[1] - k * y[0] + f]
    found = solve(field, [2.0, 0.0], (mu, k, f), t1=31.0, solver=solver)
    return {"end": found.y[0], "steps": found.steps, "status": found.status}


def network(w, solver):
    """Twenty states driven by a network of one hidden layer with 1,004 weights."""
    a, b, c, d = w[:480].reshape(24, 20), w[480:504], w[504:984].reshape(20, 24), w[984:]
    def field(t, y, p):
        a, b, c, d = p
        return c @ jnp.tanh(a @ y + b + jnp.sin(5 * t)) + d - y
    found = solve(field, jnp.ones(20), (a, b, c, d), t1=25.5, solver=solver)
    return {"end": jnp.sum(found.y**2), "steps": found.steps, "status": found.status}
'''
NETWORK = f"{{w: {[round(0.35 * math.sin(1.7 * i * i + 0.3), 6) for i in range(1004)]}}}"


class Folder:
    """A folder for models, configs and stores, gone with the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="engine-bench-"))
        atexit.register(shutil.rmtree, self.path, ignore_errors=True)
        (self.path / "models.py").write_text(MODELS, encoding="utf-8")

    def plan(self, text: str, file: str, **values: Any) -> Any:
        """The plan of a config, with nothing at its store's path."""
        import engine

        store = self.path / f"{file}.zarr"
        shutil.rmtree(store, ignore_errors=True)
        config = self.path / f"{file}.yaml"
        config.write_text(text.format(**{"store": store, **values}), encoding="utf-8")
        return engine.load(config)


@row("sweep", Wanted(40, 20), all_cores=True, repeats=1)
def sweep(quick: bool) -> Contest:
    """A sweep of a million solves, from a compiled program to the store, against the same by hand."""
    samples = 4096 if quick else 1_000_000
    folder = Folder()
    ours = run_of(folder, SWING, samples)
    design = folder.plan(SWING, "design", samples=samples).draft.design.columns
    parameters = np.stack([design["omega"], design["zeta"]], 1)
    peer = by_hand(folder, parameters, (1024,) if quick else (256, 1024, 4096))
    right = judged(parameters[:4096], 20.0, 1e-4)
    return Contest(f"oscillator, {samples} samples to a store: vmap(diffeqsolve) by hand", samples, ours, peer, **right)


def by_hand(folder: Folder, parameters: np.ndarray[Any, Any], widths: Sequence[int]) -> Side:
    """`jax.vmap` of diffeqsolve over chunks, as long as is best, in two threads, written to a Zarr array."""
    import jax
    import zarr

    problem = problems.oscillator(1)
    one, samples = solvers.diffeqsolve_of(problem, **LOOSE), len(parameters)
    start = time.perf_counter()
    programs = {n: jax.jit(jax.vmap(one)).lower(parameters[:n]).compile(compiler_options=BY_HAND) for n in widths}
    seconds = (time.perf_counter() - start) / len(programs)

    def solved(width: int, count: int) -> tuple[float, Any]:
        filled = np.concatenate([parameters[:count], parameters[: -count % width]])
        found = np.empty((len(filled), 2))

        def chunk(begin: int) -> None:
            found[begin : begin + width] = programs[width](filled[begin : begin + width])

        start = time.perf_counter()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(chunk, range(0, len(filled), width)))
        store = folder.path / "peer.zarr"
        shutil.rmtree(store, ignore_errors=True)
        zarr.create_array(str(store), data=found[:count], chunks=(min(count, 65_536), 2))
        return time.perf_counter() - start, store

    best = min(widths, key=lambda width: solved(width, min(samples, 16_384))[0] if len(widths) > 1 else 0)
    return Side(
        lambda: solved(best, samples), lambda store: zarr.open_array(str(store))[:], seconds, f"{best} samples a chunk"
    )


@row("overhead", all_cores=True, repeats=7)
def overhead(quick: bool) -> Contest:
    """The run of a sweep against a bare loop over the same compiled program and the same chunks, and a bare Zarr write."""
    samples, folder = 100_000 if quick else 1_000_000, Folder()
    ours = run_of(folder, CHEAP, samples)
    right = closed_form(folder, samples)
    return Contest(f"{samples} cheap samples to a store: bare loop", 1, ours, bare(folder, samples), **right)


@row("scaling", all_cores=True, repeats=3)
def scaling(quick: bool) -> Contest:
    """Chunks alone of ten times the samples, once the program is compiled and the store made."""
    samples, folder = 20_000 if quick else 1_000_000, Folder()
    return Contest(
        f"{10 * samples} cheap samples: {samples} samples",
        1,
        run_of(folder, CHEAP, 10 * samples, chunks_alone=True),
        run_of(folder, CHEAP, samples, chunks_alone=True),
    )


def closed_form(folder: Folder, samples: int) -> dict[str, Any]:
    """The exact outputs of the cheap samples."""
    design = folder.plan(CHEAP, "design", samples=samples).draft.design.columns
    return judged(np.stack([design["omega"], design["zeta"]], 1), 1.0, 1e-12)


def run_of(folder: Folder, text: str, samples: int, chunks_alone: bool = False) -> Side:
    """What the engine takes from a compiled program to the finished store, or of that for the chunks."""
    import xarray

    from engine.execute import Runner, execute
    from engine.nonfinite import Tally
    from engine.plan import attributes_of, make_layout
    from engine.program import fit
    from engine.runs import coordinates
    from engine.store import create

    name = f"ours-{samples}"
    start = time.perf_counter()
    program = fit(folder.plan(text, name, samples=samples))
    program.prepare()
    seconds, plan = time.perf_counter() - start, program.plan

    def once() -> tuple[float, Any]:
        path = plan.draft.store_path
        shutil.rmtree(path, ignore_errors=True)
        start = time.perf_counter()
        store = create(path, make_layout(plan), attributes_of(plan))
        store.write_once(program.once_values | coordinates(plan))
        begin = time.perf_counter()
        tally = Tally(plan, program.once_values)
        execute(Runner(plan, program, store, [], threading.Event(), tally), list(store.blocks))
        return time.perf_counter() - (begin if chunks_alone else start), path

    def read(path: Any) -> Any:
        with xarray.open_zarr(str(path)) as found:
            return np.stack([found.x.values, found.v.values], -1)

    return Side(once, read, seconds)


def bare(folder: Folder, samples: int) -> Side:
    """A loop by hand over the same program and chunks on as many threads, then one Zarr write for each array."""
    import zarr

    from engine.program import fit

    start = time.perf_counter()
    program = fit(folder.plan(CHEAP, "bare", samples=samples))
    program.prepare()
    seconds, plan = time.perf_counter() - start, program.plan
    blocks, design, path = plan.blocks, plan.draft.design, folder.path / "bare.zarr"

    def once() -> tuple[float, Any]:
        shutil.rmtree(path, ignore_errors=True)

        def chunk(number: int) -> None:
            index = blocks.samples_of(number)
            padded = np.concatenate([index, np.full(blocks.width - len(index), index[-1])])
            outputs, codes = program(design.take(padded), padded.astype(np.uint32))
            for name, array in outputs.items():
                found[name][index] = array[: len(index)]
            status[index] = codes[: len(index)]

        start = time.perf_counter()
        found = {name: np.empty(samples) for name in program.swept}
        status = np.empty(samples, np.int8)
        with ThreadPoolExecutor(plan.workers) as pool:
            list(pool.map(chunk, blocks))
        group = zarr.create_group(str(path))
        for name, array in (found | {"status": status} | design.columns).items():
            group.create_array(name, data=array, chunks=blocks.block)
        return time.perf_counter() - start, found

    return Side(once, lambda found: np.stack([found["x"], found["v"]], -1), seconds)


@row("gradient", repeats=41)
def gradient(quick: bool) -> Contest:
    """Value and gradient by three parameters (forward mode) of about 1,000 steps, against the value."""
    return value_and_gradient("pulsing", "{mu: 2.0, k: 1.0, f: 0.1}", "{d: {of: end, wrt: [mu, k, f]}}", "3 parameters")


@row("gradient_reverse", repeats=41)
def gradient_reverse(quick: bool) -> Contest:
    """The same by the 1,004 weights of a network (reverse mode)."""
    return value_and_gradient("network", NETWORK, "{d: {of: end, wrt: [w]}}", "1,004 parameters")


def value_and_gradient(name: str, parameters: str, derivatives: str, what: str) -> Contest:
    """The cost of a gradient against that of its forward pass, single samples."""
    sides = [program_of(name, parameters, wanted) for wanted in (derivatives, "{}")]
    one = np.zeros(1, np.int64)
    steps = int(sides[1].at(one)[0]["steps"][0])
    return Contest(f"gradient, {what}, {steps} steps: value", 1, *(Side(call_of(program)) for program in sides))


def call_of(program: Any) -> Callable[[], tuple[float, Any]]:
    """One call of a program of one sample."""
    index = np.zeros(1, np.uint32)

    def once() -> tuple[float, Any]:
        start = time.perf_counter()
        found = program({}, index)
        return time.perf_counter() - start, found

    return once


@row("memory", repeats=1)
def memory(quick: bool) -> Contest:
    """XLA's temporaries of that reverse pass where 64 times the steps are allowed."""
    many, few = (
        float(program_of("network", NETWORK, "{d: {of: end, wrt: [w]}}", n).cost.memory["temporaries"])
        for n in (65_536, 1024)
    )
    sides = Side(lambda: (many, many)), Side(lambda: (few, few))
    return Contest("memory of it, 65,536 steps allowed: 1,024", 1, *sides, unit="bytes")


@functools.cache
def program_of(name: str, parameters: str, derivatives: str, max_steps: int = 65_536) -> Any:
    """The compiled program of a single solve."""
    from engine.program import fit

    folder = Folder()
    program = fit(
        folder.plan(STEPS, name, name=name, parameters=parameters, derivatives=derivatives, max_steps=max_steps)
    )
    program.prepare()
    return program
