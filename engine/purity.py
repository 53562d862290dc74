"""Whether the stages are pure: the same program whenever they are traced, the same numbers whenever they are evaluated, nothing else.

In: a draft. Out: a `Verdict` for each stage. Each is traced twice, alone and afresh, and its programs compared with their constants; its
arguments, globals and output are watched meanwhile. Then the pipeline is evaluated twice at three points, and once op by op.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engine import hidden_state, jaxprs, origins, transforms, values
from engine.config import read_config
from engine.diagnosis import (
    Advice,
    Line,
    StageContext,
    arguments_on,
    compose,
    definition,
    explain_leak,
    line_of,
    short_path,
)
from engine.draft import Draft, adjoint_context, make_draft
from engine.errors import StageError
from engine.fingerprint import digest
from engine.hidden_state import Kept, find_line, matching_line
from engine.lowering import abstract_key, context, evaluate, run_stage, status_of
from engine.origins import Trouble
from engine.parameters import rebuilt_otherwise
from engine.pipeline import Stage
from engine.runtime import quiet_callbacks, uncounted
from engine.tracing import Trace, find_leak, fresh, inputs_of, listening, observe, stage_on, trace_stage

LOOSE = 1e-3
"""Relative difference between a compiled and an op-by-op evaluation that is let pass: XLA reorders arithmetic."""

NUDGE = {"float64": 1e-13, "float32": 1e-5}
"""Relative change of the parameters that rounding might as well have made: what it moves, op by op may move too."""

AMPLIFIED = 1e3
"""How much more than that."""

RANDOM = r"\b(np|numpy|onp)\.random\b|\brandom\.(?!key|PRNGKey|split|fold_in)\w+\(|default_rng|\b\w*(rng|RNG)\w*\.|\buuid\b|\bsecrets\b"
TIME = r"\btime\.|\bperf_counter|\bmonotonic\(|\bdatetime\b|\.now\("
RAISES = os.path.join("equinox", "_errors.py")
"""Where a callback only raises, if at all."""

EFFECTS = ("DebugEffect", "OrderedDebugEffect", "IOEffect", "OrderedIOEffect")
"""Effects that are told by their primitives."""


@dataclass
class Verdict:
    """What is known of one stage."""

    stage: str
    problems: list[str] = field(default_factory=list)
    """What makes it impure, each a complete message."""

    notes: list[str] = field(default_factory=list)
    """What it does beside, and is let do: printing, calls of Python."""

    @property
    def pure(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


@dataclass
class Purity:
    """What a check found."""

    verdicts: tuple[Verdict, ...]
    points: tuple[str, ...]
    """Where the pipeline was evaluated twice; nowhere if traces differed, or a callback raised."""

    raised: Mapping[str, Trouble] = field(default_factory=dict)
    """Where evaluating it raised, and what."""

    parameters: tuple[str, ...] = ()
    """Problems of parameters that a `_target_` makes."""

    processes: int = 1
    """In how many processes the stages were traced."""

    @property
    def problems(self) -> list[str]:
        """All that is wrong."""
        return [*self.parameters, *(problem for verdict in self.verdicts for problem in verdict.problems)]


def check_purity(draft: Draft) -> Purity:
    """Trace and evaluate every stage twice, and compare. What the stages print meanwhile is dropped.

    Args:
        draft: a traced pipeline; its own trace is one more to compare with.
    """
    points: list[str] = []
    raised: dict[str, Trouble] = {}
    with adjoint_context(draft.config)("none"), listening([]), quiet_callbacks():
        verdicts = {stage.name: examine(stage, draft.shapes) for stage in draft.pipeline.stages}
        if all(v.pure for v in verdicts.values()):
            for name, problem in (*whole_programs(draft, draft.jaxpr), *evaluations(draft, points, raised)):
                verdicts[name].problems.append(problem)
            jax.effects_barrier()
    return Purity(
        tuple(verdicts.values()),
        tuple(points),
        raised,
        tuple(rebuilt_otherwise(draft.config, draft.pipeline.parameters)),
    )


def check_traces(draft: Draft) -> None:
    """Trace the pipeline once more and compare: what depends on a clock, on NumPy's random numbers, or on how often it was called is found.

    A plan is a snapshot, run as it was traced: what changed since is no fault, if it changes no further.

    Raises:
        StageError: each trace is another program, or one takes in a value of another.
    """
    with adjoint_context(draft.config)("none"), listening([]), uncounted():
        again = trace_again(draft)
        if jaxprs.leaks(again) or digest(again) != digest(draft.jaxpr):
            alone = [problem for stage in draft.pipeline.stages for problem in examine(stage, draft.shapes).problems]
            if found := alone or [problem for _, problem in whole_programs(draft, again)]:
                raise StageError(found)


def compare_processes(draft: Draft, purity: Purity) -> None:
    """Trace every stage in another process too: what is drawn, timed or hashed while modules are imported differs there.

    Args:
        draft: of a config in a file.
        purity: what is known so far; what is found is added.
    """
    config = draft.config
    command = "import sys; from engine.purity import print_programs; print_programs(sys.argv[1], sys.argv[2:])"
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    done = subprocess.run(
        [sys.executable, "-c", command, str(config.path), *config.overrides],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        theirs = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise StageError(
            "`stages` must be traced in any process, but another one failed: "
            f"{(done.stderr.strip().splitlines() or ['it said nothing'])[-1]}. Import what they need in the model itself."
        ) from None
    ours = digests(draft)
    for stage, verdict in zip(draft.pipeline.stages, purity.verdicts, strict=True):
        if ours[stage.name] != theirs[stage.name]:
            line = matching_line(stage.function, RANDOM, TIME, r"\bhash\(|\bid\(|getpid") or definition(stage.function)
            verdict.problems.append(problem(about(stage, draft.shapes), ELSEWHERE, line).problems[0])
    purity.processes += 1


def print_programs(path: str, overrides: list[str]) -> None:
    """The digest of each stage's program, as one line of JSON."""
    print(json.dumps(digests(make_draft(read_config(path, overrides)))), flush=True)


def digests(draft: Draft) -> dict[str, str]:
    """The digest of each stage's program, traced alone."""
    with adjoint_context(draft.config)("none"), listening([]), fresh():
        return {stage.name: digest(trace_stage(stage, draft.shapes)) for stage in draft.pipeline.stages}


# --- Tracing ---


def examine(stage: Stage, shapes: Mapping[str, Any]) -> Verdict:
    """Trace one stage twice, alone, and look at what it does meanwhile."""
    before = hidden_state.kept_by(stage.function)
    try:
        first, second = observe(stage, shapes), observe(stage, shapes)
    except StageError as error:  # a value of the trace before, which a cache kept
        return Verdict(stage.name, list(error.problems))
    changed = hidden_state.changes(before, hidden_state.kept_by(stage.function))
    where = about(stage, shapes)
    found = [*impurities(stage, where, first, second, changed), *outside(second, where)]
    return Verdict(stage.name, [problem for error in found for problem in error.problems], list(notes(second)))


def about(stage: Stage, shapes: Mapping[str, Any]) -> StageContext:
    """What a message about a stage needs to know."""
    return context(stage, inputs_of(stage, shapes))


def problem(where: StageContext, advice: Advice, line: Line | None) -> StageError:
    """A complete message; the arguments are shown that stand on the line."""
    named = arguments_on(line, where)
    return compose(where, replace(advice, show_arguments=bool(named)), line, named)


def impurities(
    stage: Stage, where: StageContext, first: Trace, second: Trace, changed: list[Kept]
) -> Iterator[StageError]:
    """What is wrong by two traces; the cause, where it is known, rather than its consequences."""
    if jaxprs.leaks(second.jaxpr):
        yield explain_leak(where, next(jaxprs.readers_of_leaks(second.jaxpr), []))
    elif second.mutated or changed:
        for name in second.mutated:
            yield problem(where, mutation(name), find_line(stage.function, *hidden_state.changing(name)))
        for kept in changed:
            line = hidden_state.line_changing(kept)
            yield problem(where, change(kept, line), line)
    elif digest(first.jaxpr) != digest(second.jaxpr):
        eqn = jaxprs.first_difference(first.jaxpr, second.jaxpr)
        line = line_of(jaxprs.stack_of(eqn)) if eqn is not None else None
        if line is None or not re.search(
            f"{RANDOM}|{TIME}", line.text
        ):  # what varies may be used later than it is read
            line = matching_line(stage.function, RANDOM, TIME) or line or definition(stage.function)
        yield problem(where, varying(line), line)


def outside(trace: Trace, where: StageContext) -> Iterator[StageError]:
    """Effects that no stage may have."""
    jaxpr = trace.jaxpr
    for what, file, number in dict.fromkeys(trace.acted):
        remedy = "Return what is to be kept: it is stored. Take what is read as a parameter, or as a constant in the stage's node."
        advice = Advice("act on nothing outside", f"it {what} while JAX traces it, once for all samples", remedy)
        yield problem(where, advice, line_of([(file, number)]))
    for place in lines_of(jaxpr, "io_callback"):
        remedy = (
            "Return the value, so that it is stored; jax.debug.print shows it, jax.pure_callback calls a pure function."
        )
        yield problem(where, Advice("act on nothing outside", "it calls `io_callback`", remedy), place)
    for name in sorted({type(effect).__name__ for effect in jaxpr.effects} - {*EFFECTS}):
        remedy = "Return what it changes, and take it as an argument."
        advice = Advice("act on nothing outside", f"it has the effect {name}", remedy)
        yield problem(where, advice, definition(where.function))


def lines_of(jaxpr: Any, *primitives: str) -> list[Line | None]:
    """The user's lines that apply one of some primitives, each once."""
    found = (
        line_of(jaxprs.stack_of(site))
        for eqn, site in jaxprs.equations(jaxpr)
        if eqn.primitive.name in primitives and not any(file.endswith(RAISES) for file, _ in jaxprs.stack_of(eqn))
    )
    return list({(line.file, line.number) if line else None: line for line in found}.values())


def notes(trace: Trace) -> Iterator[str]:
    """What a stage does beside, and is let do."""
    for file, number in trace.printed:
        yield f"prints while it is traced ({short_path(file)}:{number}): once for all samples; jax.debug.print does for each"
    for words, primitives in (
        ("prints for each sample", ("debug_print",)),
        ("calls Python for each sample (jax.debug.callback)", ("debug_callback",)),
        ("calls Python for each sample (jax.pure_callback)", ("pure_callback",)),
    ):
        for line in lines_of(trace.jaxpr, *primitives):
            yield words + (f" ({short_path(line.file)}:{line.number})" if line else "")


def whole_programs(draft: Draft, before: Any) -> Iterator[tuple[str, str]]:
    """The program of all stages, traced twice more and compared, with one of before too: each stage may be the same alone, and not
    after another."""
    programs = [before]
    for _ in range(2):
        programs.append(trace_again(draft))
        if leak := find_leak(programs[-1], draft.pipeline, draft.shapes):
            yield leak[0], leak[1].problems[0]
            return
    for one, other in pairwise(programs):
        if digest(one) != digest(other):
            eqn = jaxprs.first_difference(one, other)
            stack = jaxprs.stack_of(eqn) if eqn is not None else []
            stage = stage_on(stack, draft.pipeline)
            line = line_of(stack) or definition(stage.function)
            yield stage.name, problem(about(stage, draft.shapes), varying(line), line).problems[0]
            return


def trace_again(draft: Draft) -> Any:
    """The program of a draft, traced as it was, afresh."""

    def forward(parameters: dict[str, Any], key: Any) -> Any:
        found = evaluate(draft.pipeline, parameters, key)
        leaves = transforms.outputs_of(found, (*draft.outputs, *draft.coords))
        return leaves, status_of(found, draft.pipeline.names)

    given = {name: draft.shapes[name] for name in draft.nominal}
    with fresh():
        return jax.make_jaxpr(forward)(given, abstract_key())


# --- What to say ---


def mutation(argument: str) -> Advice:
    """A stage changes what it was given."""
    return Advice(
        "leave its arguments as they are",
        f"it changes {argument!r} in place, which is not its own",
        'Make a new one: `{**state, "x": x}` of a dict, `[*items, item]` of a list.',
    )


def change(kept: Kept, line: Line | None) -> Advice:
    """A stage changes something that outlives the call."""
    if kept.kind == "default argument":
        remedy = f"Write `{kept.name}=None` there, and make a new one inside."
        return Advice("change nothing that outlives a call", f"it changes its default argument {kept.name!r}", remedy)
    if line is not None and re.search(RANDOM, line.text):
        return varying(line)
    what = f"the {kept.kind} {kept.name!r}" if kept.name != "self" else "its own object"
    if kept.traced:
        but = f"it keeps a traced value in {what}, which means nothing after the trace"
        return Advice("change nothing that outlives a call", but, "Return that value, so that it is stored.")
    remedy = "Compute it from the arguments; a state that goes on is returned, or is the carry of a loop."
    return Advice("change nothing that outlives a call", f"it changes {what} each time that it is traced", remedy)


ELSEWHERE = Advice(
    "give the same program in every process",
    "another process traces another one: something that its module makes on import, or that it asks Python, differs there, such as random "
    "numbers without a seed, a time, hash() or os.getpid()",
    "Give the generator a seed, or write the value into the config.",
)


def varying(line: Line | None) -> Advice:
    """Two traces of a stage give different programs."""
    must, text = "give the same program whenever it is traced", line.text if line else ""
    if re.search(RANDOM, text):
        but = (
            "these random numbers are drawn once, while JAX traces: the same ones for every sample, others in each run"
        )
        return Advice(must, but, "Take an argument called `key`, and draw with jax.random.")
    if re.search(TIME, text):
        but = "this time is read once, while JAX traces: the same for every sample, another in each run"
        return Advice(must, but, "Make the time a parameter; how long a run takes is in its summary.")
    but = "two traces of it differ here: it depends on something outside that changes"
    return Advice(must, but, "Make what changes a parameter, or a constant in the stage's node.")


# --- Evaluating ---


def points_of(draft: Draft) -> list[tuple[str, dict[str, Any], Any]]:
    """Where the pipeline is evaluated: words, the parameters and the key of the sample."""
    nominal = {name: jnp.asarray(value) for name, value in draft.nominal.items()}
    seed = draft.config.settings.seed
    base = transforms.make_key(jnp.asarray([seed >> 32, seed & 0xFFFFFFFF], jnp.uint32))
    found = [("the nominal point", nominal, jax.random.fold_in(base, 0))]
    if draft.design.columns:
        for words, i in (("the first sample", 0), ("the last sample", draft.design.samples - 1)):
            taken = draft.design.take(np.array([i], np.int64))
            swept = {name: jnp.asarray(column[0], nominal[name].dtype) for name, column in taken.items()}
            found.append((words, nominal | swept, jax.random.fold_in(base, i)))
    return found


def evaluations(draft: Draft, done: list[str], raised: dict[str, Trouble]) -> Iterator[tuple[str, str]]:
    """The first stage that gives other numbers the second time, or op by op; the points that were evaluated go to `done`, those
    that raised to `raised`."""
    names = draft.pipeline.names

    def every(parameters: dict[str, Any], key: Any) -> dict[str, Any]:
        found = evaluate(draft.pipeline, parameters, key)
        return {name: found[name] for name in names}

    points = points_of(draft)
    with fresh():
        program = jax.jit(every)
        for words, parameters, key in points:
            try:
                first, second = (jax.block_until_ready(program(parameters, key)) for _ in range(2))
            except Exception as error:  # a callback that raises fails its sample in a run too
                raised[words] = origins.raised(draft.jaxpr, names, error)
                continue
            done.append(words)
            for stage in draft.pipeline.stages:
                if (path := differing(first[stage.name], second[stage.name])) is not None:
                    yield stage.name, unequal(stage, path, words, draft.shapes)
                    return
        if points[0][0] in done:
            yield from op_by_op(draft, program, points[0])


def op_by_op(draft: Draft, program: Any, point: tuple[str, dict[str, Any], Any]) -> Iterator[tuple[str, str]]:
    """Stages that give other numbers when they are called outside a trace, each given the same inputs."""
    words, parameters, key = point
    compiled, nudged = program(parameters, key), program(nudge(parameters), key)
    for stage in draft.pipeline.stages:
        try:
            found = run_stage(stage, parameters | compiled, key)
        except StageError as error:
            yield stage.name, error.problems[0]
            continue
        if (path := far(found, compiled[stage.name], nudged[stage.name])) is not None:
            but = f"at {words} {name_of(stage, path)} is another number outside a trace"
            advice = Advice(
                "give the same numbers compiled and op by op", but, "Compute the same, whether it is traced or not."
            )
            yield stage.name, problem(about(stage, draft.shapes), advice, definition(stage.function)).problems[0]


def nudge(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, changed as little as rounding does."""
    return {
        name: value + NUDGE[value.dtype.name] * jnp.where(value == 0, 1, jnp.abs(value)).astype(value.dtype)
        if value.dtype.name in NUDGE
        else value
        for name, value in parameters.items()
    }


def bits(leaf: Any) -> bytes:
    """The bits of an array, all NaNs being alike."""
    array = np.array(jax.random.key_data(leaf) if values.is_key(values.dtype_of(leaf)) else leaf)
    if array.dtype.kind in "fc":
        array[np.isnan(array)] = np.nan
    return array.tobytes()


def differing(a: Any, b: Any) -> tuple[str, ...] | None:
    """The path of the first leaf of two values that differs in a bit."""
    pairs = zip(values.leaves(a), values.leaves(b), strict=True)
    return next((path for (path, x), (_, y) in pairs if bits(x) != bits(y)), None)


def far(a: Any, b: Any, nudged: Any) -> tuple[str, ...] | None:
    """The path of the first leaf that differs by more than rounding explains, as it is amplified in the stages."""
    for (path, x), (_, y), (_, z) in zip(values.leaves(a), values.leaves(b), values.leaves(nudged), strict=True):
        if not jnp.issubdtype(values.dtype_of(y), np.inexact):
            continue
        x, y, z = (np.asarray(v) for v in (x, y, z))
        with np.errstate(all="ignore"):
            moved = np.abs(z - y)
            allowed = LOOSE * np.max(np.abs(y), initial=0, where=np.isfinite(y)) + AMPLIFIED * moved
            bad = ~((x == y) | (np.abs(x - y) <= allowed) | (np.isnan(x) & np.isnan(y)) | np.isnan(moved))
        if bad.any():
            return path
    return None


def name_of(stage: Stage, path: tuple[str, ...]) -> str:
    """A leaf as a reference names it."""
    return ".".join((stage.name, *path))


def unequal(stage: Stage, path: tuple[str, ...], words: str, shapes: Mapping[str, Any]) -> str:
    """Two evaluations differ."""
    advice = Advice(
        "give the same numbers for the same parameters and key",
        f"of two evaluations at {words}, {name_of(stage, path)} differs",
        "What it calls outside JAX keeps a state, or reads what changes: make it depend on its arguments only.",
    )
    line = find_line(stage.function, r"callback")
    return problem(about(stage, shapes), advice, line).problems[0]
