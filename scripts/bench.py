"""Speed, as ratios against plainer ways to do the same work, measured in the same process and run.

    python scripts/bench.py [--quick] [--json FILE]

Rows
    overhead    the engine's run of a sweep, from plan to store, against a bare loop over the same compiled program and the
                same chunks plus a bare Zarr write of the same arrays
    scaling     the run of ten times the samples, once compiled and its store made, against that of the first row
    gradient    one sample's value and gradient through an ODE solve of about 1,000 steps, against its value alone: of three
                parameters (forward mode) and of 1,004, the weights of a network (reverse mode)
    memory      XLA's temporaries of that reverse pass where 64 times the steps are allowed, against those of 1,024 steps
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

CHEAP = """\
defaults: [engine, {{scheduler: threads}}, _self_]
name: cheap
parameters: {{omega: 2.0, zeta: 0.05, t: 1.0}}
stages:
  closed: {{_target_: cheap.closed}}
outputs: {{x: closed.x, v: closed.v}}
sweep: {{design: random, samples: {samples}, axes: {{omega: {{uniform: [0.5, 20.0]}}, zeta: {{uniform: [0.0, 0.5]}}}}}}
store: {{path: {store}}}
"""
MODEL = '''\
import jax.numpy as jnp


def closed(omega, zeta, t):
    """Displacement and velocity of the damped oscillator from x(0) = 1, v(0) = 0."""
    wd = omega * jnp.sqrt(1 - zeta**2)
    decay = jnp.exp(-zeta * omega * t)
    x = decay * (jnp.cos(wd * t) + zeta * omega / wd * jnp.sin(wd * t))
    v = -decay * omega**2 / wd * jnp.sin(wd * t)
    return {"x": x, "v": v}
'''

STEPS = """\
defaults: [engine, {{solver: tsit5}}, _self_]
name: {name}
solver: {{rtol: 1.0e-8, atol: 1.0e-10, max_steps: {max_steps}}}
parameters: {parameters}
stages:
  {name}: {{_target_: steps.{name}, solver: "${{solver}}"}}
outputs: {{end: {name}.end, steps: {name}.steps}}
derivatives: {derivatives}
"""
SOLVES = '''\
import jax.numpy as jnp

from ops.ode import solve


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


def main() -> None:
    """Measure every row and print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a tenth of the samples, two repeats: for correctness")
    options.add_argument("--json", metavar="FILE", help="write the figures there too")
    chosen = options.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    samples, repeats = (100_000, 2) if chosen.quick else (1_000_000, 7)
    rows = overhead(samples, repeats) + gradients(5 if chosen.quick else 41)
    print(f"{'work':44} {'ours':>10} {'peer':>10} {'ratio':>7}")
    for row in rows:
        print(
            f"{row['work']:44} {shown(row['ours'], row['unit'])} {shown(row['peer'], row['unit'])} {row['ratio']:7.2f}"
        )
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(rows, indent=2), encoding="utf-8")


def overhead(samples: int, repeats: int) -> list[dict[str, Any]]:
    """The engine against a bare loop, and against itself with ten times the samples."""
    folder = Path(tempfile.mkdtemp(prefix="engine-bench-"))
    try:
        (folder / "cheap.py").write_text(MODEL, encoding="utf-8")
        whole, run, bare, tenfold = [], [], [], []
        for repeat in range(repeats + 1):  # the first warms caches and is left out
            seconds, running = engine_run(folder, samples)
            loop = bare_run(folder, samples)
            if repeat:
                whole.append(seconds)
                run.append(running)
                bare.append(loop)
                if repeat <= 3:
                    tenfold.append(engine_run(folder, 10 * samples)[1])
        return [
            row(f"{samples} cheap samples to a store: bare loop", whole, bare),
            row(f"{10 * samples} samples: {samples} samples", tenfold, run),
        ]
    finally:
        shutil.rmtree(folder)


def row(work: str, ours: list[float], peer: list[float], unit: str = "s") -> dict[str, Any]:
    """Medians and their ratio."""
    a, b = statistics.median(ours), statistics.median(peer)
    return {"work": work, "ours": a, "peer": b, "ratio": a / b, "unit": unit}


def shown(value: float, unit: str) -> str:
    """A figure in ten columns: seconds, or milliseconds where they are few; bytes as KiB."""
    if unit == "bytes":
        return f"{value / 1024:7.0f}KiB"
    return f"{value:9.3f}s" if value >= 0.1 else f"{1e3 * value:8.3f}ms"


def gradients(repeats: int) -> list[dict[str, Any]]:
    """The cost of a gradient against that of its forward pass, single samples."""
    weights = [[round(0.35 * math.sin(1.7 * i * i + 0.3), 6) for i in range(1004)]]
    works = {
        "pulsing": ("{mu: 2.0, k: 1.0, f: 0.1}", "{d: {of: end, wrt: [mu, k, f]}}", "3 parameters"),
        "network": (f"{{w: {weights[0]}}}", "{d: {of: end, wrt: [w]}}", "1,004 parameters"),
    }
    folder = Path(tempfile.mkdtemp(prefix="engine-bench-"))
    rows = []
    try:
        (folder / "steps.py").write_text(SOLVES, encoding="utf-8")
        for name, (parameters, derivatives, what) in works.items():
            value = solve_program(folder, name, parameters, "{}")
            gradient = solve_program(folder, name, parameters, derivatives)
            steps = int(value.at(np.zeros(1, np.int64))[0]["steps"][0])
            pairs = [(once(gradient), once(value)) for _ in range(repeats)]
            rows.append(row(f"gradient, {what}, {steps} steps: value", *map(list, zip(*pairs, strict=True))))
        few, many = (
            solve_program(folder, name, parameters, derivatives, n).cost.memory["temporaries"] for n in (1024, 65_536)
        )
        rows.append(row("memory of it, 65,536 steps allowed: 1,024", [many], [few], "bytes"))
        return rows
    finally:
        shutil.rmtree(folder)


def solve_program(folder: Path, name: str, parameters: str, derivatives: str, max_steps: int = 65_536) -> Any:
    """The compiled program of a single solve."""
    import engine
    from engine.program import fit

    config = folder / f"{name}.yaml"
    text = STEPS.format(name=name, parameters=parameters, derivatives=derivatives, max_steps=max_steps)
    config.write_text(text, encoding="utf-8")
    program = fit(engine.load(config))
    program.prepare()
    return program


def once(program: Any) -> float:
    """Seconds of one call of a program of one sample."""
    index = np.zeros(1, np.uint32)
    start = time.perf_counter()
    program({}, index)
    return time.perf_counter() - start


def planned(folder: Path, samples: int, store: Path) -> Any:
    """A plan of the cheap pipeline with nothing at its store's path."""
    import engine

    shutil.rmtree(store, ignore_errors=True)
    config = folder / "cheap.yaml"
    config.write_text(CHEAP.format(samples=samples, store=store), encoding="utf-8")
    return engine.load(config)


def engine_run(folder: Path, samples: int) -> tuple[float, float]:
    """Seconds that the engine takes from a compiled program to the finished store, and those of them for the chunks."""
    from engine.execute import Runner, execute
    from engine.nonfinite import Tally
    from engine.plan import attributes_of, make_layout
    from engine.program import Program
    from engine.runs import coordinates
    from engine.store import create

    plan = planned(folder, samples, folder / "ours.zarr")
    program = Program(plan)
    program.prepare()
    start = time.perf_counter()
    store = create(plan.draft.store_path, make_layout(plan), attributes_of(plan))
    store.write_once(program.once_values | coordinates(plan))
    begin = time.perf_counter()
    tally = Tally(plan, program.once_values)
    execute(Runner(plan, program, store, [], threading.Event(), tally), list(store.blocks))
    end = time.perf_counter()
    return end - start, end - begin


def bare_run(folder: Path, samples: int) -> float:
    """Seconds of a loop by hand over the same program and chunks on as many threads, then one Zarr write for each array."""
    import zarr

    from engine.program import Program

    plan = planned(folder, samples, folder / "bare.zarr")
    program = Program(plan)
    program.prepare()
    blocks, design = plan.blocks, plan.draft.design

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
    group = zarr.create_group(str(folder / "bare.zarr"))
    for name, array in (found | {"status": status} | design.columns).items():
        group.create_array(name, data=array, chunks=blocks.block)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
