"""The command line: `python -m engine run | plan | check-grad | converge | show | repro | list | doctor`.

In: arguments. Out: an exit code: 0 done, 2 the user's mistake, 3 done but some samples failed, 130 interrupted, 1 anything else.
Imports only what the command at hand needs: `--help` loads no JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn, TextIO

from engine.errors import UserError, nearest

EPILOG = """\
examples:
  python -m engine plan conf/oscillator.yaml                    check everything, run nothing
  python -m engine run conf/oscillator.yaml                     run, or go on where it was stopped
  python -m engine run conf/oscillator.yaml solver=dopri8 'sweep.axes.zeta=[0.1,0.2]'
  python -m engine run conf/oscillator.yaml -m solver=tsit5,dopri8
  python -m engine show results/oscillator-<fingerprint>.zarr

exit codes: 0 done; 2 something in the config or the model to mend; 3 done, but some samples failed; 130 interrupted; 1 a bug
"""
EXAMPLES = {
    "run": """\
examples:
  python -m engine run conf/oscillator.yaml
  python -m engine run conf/oscillator.yaml execution.chunk=64 solver.rtol=1e-8     change a setting
  python -m engine run conf/oscillator.yaml '+parameters.k=1' '~derivatives'        add one, take one out
  python -m engine run conf/oscillator.yaml 'sweep.axes.zeta={geomspace: [1e-3, 0.5, 8]}'
  python -m engine run conf/oscillator.yaml -m solver=tsit5,dopri8 seed=0,1         four runs, a store each
  python -m engine run conf/oscillator.yaml execution.jit=false sweep.axes.omega=[2.0]      op by op, for a debugger
  python -m engine run conf/oscillator.yaml execution.debug_nans=true      say where the first failed sample went wrong
  python -m engine run conf/oscillator.yaml execution.profile=trace        and write a trace of JAX's profiler
  python -m engine run conf/sellar.yaml                                     optimize: a design under constraints
  python -m engine run conf/misra1a.yaml optimize.max_steps=50              optimize: a fit of data

An override's value is YAML-like: text with spaces or = needs quotes inside the shell's, 'name="a = b"'; a list is [1,2].
""",
    "plan": """\
examples:
  python -m engine plan conf/oscillator.yaml
  python -m engine plan conf/oscillator.yaml execution.chunk=64 --json
  python -m engine plan conf/oscillator.yaml --check        trace and evaluate every stage twice: is it pure?
""",
    "check-grad": """\
examples:
  python -m engine check-grad conf/oscillator.yaml
  python -m engine check-grad conf/oscillator.yaml --samples 20 --json

verdicts
  ok                finite differences give the same
  within tolerance  so do tighter solves; this one is off by at most 5 %, by its own rtol and atol
  differs           the derivative is wrong, or the solver's tolerance too loose for it
  kink, jump        the slopes, or the values, on either side of a sample are not the same
  not finite        inf or nan where the values are finite
  disconnected      a rounding, a comparison or stop_gradient makes it zero
  unresolved        the values are too rough for finite differences, or not finite around a sample

exit codes: 0 every derivative is ok or within tolerance; 3 one is not; 2 something in the config or the model to mend
""",
    "converge": """\
examples:
  python -m engine converge conf/oscillator.yaml
  python -m engine converge conf/oscillator.yaml --samples 20 --within 1e-3 --json
  python -m engine converge conf/oscillator.yaml --tenth solver.rtol --tenth solver.atol
  python -m engine converge conf/heat.yaml --double stages.rod.n

what is varied, by the names of what stages are given, nested as they may be, defaults included
  tolerance    rtol, atol, reltol, abstol, tol: to a tenth, all at once
  step         step or dt, beside a tolerance or in a node whose _target_ is called a solver: to a half, and to a quarter for the order
  resolution   n, cells, nx, ny, nz, shape of a node called a grid or a mesh, and integers by which one of `coords` is refined: to twice
Where one of --tenth, --halve and --double is given, these keys are varied instead. max_steps is raised so that finer runs end.

verdicts
  ok            the change, or with a fixed step the error that it tells of, is within the limit: 1000 times the relative tolerance,
                but 1e-6 at least and 0.01 at most, or --within; 0.01 for steps and grids
  near zero     so is it beside other samples with values 100 times as large, or value and change are within 100 times the absolute
                tolerance
  integer       not judged
  not resolved  it is not
  not compared  other shapes without a common point, or no sample that succeeds

exit codes: 0 all is resolved; 3 something is not, or a sample fails in one run only; 2 something in the config or the model to mend
""",
    "show": """\
examples:
  python -m engine show results/oscillator-<fingerprint>.zarr

in Python: xarray.open_zarr(path), or engine.open_store(path)
""",
    "repro": """\
examples:
  python -m engine repro results/oscillator-<fingerprint>.zarr --sample 5
  python -m engine repro results/oscillator-<fingerprint>.zarr --sample 5 --config conf/mended.yaml    with another config

Samples count from 0 through the sweep's dimensions, the last one fastest. This command imports the modules that the store's
config names; it says which, and from where, before it does. Nothing is written.
""",
    "list": """\
examples:
  python -m engine list
  python -m engine list transforms
""",
    "doctor": """\
examples:
  python -m engine doctor
  python -m engine doctor --json
""",
}

MISTAKE, INTERRUPTED = 2, 130
ANSWERS: TextIO | None = None
"""Where JSON goes, if not to standard output."""

GRACE = 8.0
"""Seconds that the chunks in flight get to finish after Ctrl-C."""

COMMANDS = ("run", "plan", "check-grad", "converge", "show", "repro", "list", "doctor")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the engine."""

    def error(self, message: str) -> NoReturn:
        """Raise a `UserError`."""
        name = self.prog.removeprefix("python -m engine").strip() or "command"
        remedy = (
            f"`python -m engine {name} --help` shows how."
            if name in COMMANDS
            else "`python -m engine --help` shows how."
        )
        what = message.replace("CONFIG, key=value", "CONFIG")
        raise UserError(f"`{name}` must be called as its help says, but {what}. {remedy}")


def parser() -> argparse.ArgumentParser:
    """The arguments of every command."""
    top = Parser(
        prog="python -m engine",
        description="Differentiable simulation pipelines from one YAML file to one Zarr store.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="command")

    def command(name: str, help: str, function: Callable[[Any], int], **more: Any) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=help,
            description=function.__doc__,
            epilog=EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **more,
        )

    config = Parser(add_help=False)
    config.add_argument("config", metavar="CONFIG", help="a YAML file")
    config.add_argument("overrides", metavar="key=value", nargs="*", help="override a setting, in Hydra's grammar")
    config.add_argument(
        "--json", action="store_true", help="print one JSON object to standard output, and nothing else there"
    )
    run = command("run", "run a config, or go on where it was stopped", run_command, parents=[config])
    run.add_argument("--fresh", action="store_true", help="replace the store that is there")
    run.add_argument("--retry-failed", action="store_true", help="compute failed samples again")
    run.add_argument("-m", "--multirun", action="store_true", help="a run for each choice: solver=tsit5,dopri8")
    plan = command("plan", "check and cost a config; run nothing", plan_command, parents=[config])
    plan.add_argument("--check", action="store_true", help="prove the stages pure by tracing and evaluating them twice")
    check = command(
        "check-grad", "compare every derivative with finite differences", check_grad_command, parents=[config]
    )
    check.add_argument(
        "--samples", type=int, default=5, metavar="N", help="samples of the sweep to check at: 5 if left out"
    )
    converge = command(
        "converge",
        "compare with a tenth of the tolerance, half the step, twice the grid",
        converge_command,
        parents=[config],
    )
    converge.add_argument(
        "--samples", type=int, default=8, metavar="N", help="samples of the sweep to compute: 8 if left out"
    )
    converge.add_argument(
        "--within", type=float, metavar="X", help="what an output may change by, relative to its size"
    )
    for option, what in (("--tenth", "a tolerance"), ("--halve", "a step"), ("--double", "a number of points")):
        help = f"a key that holds {what}; may be repeated"
        converge.add_argument(option, action="append", default=[], metavar="KEY", help=help)
    show = command("show", "what a store holds", show_command)
    show.add_argument("store", metavar="STORE", help="the path of a store")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    again = command("repro", "compute one sample of a store again, and find where it went wrong", repro_command)
    again.add_argument("store", metavar="STORE", help="the path of a store")
    again.add_argument("--sample", type=int, required=True, metavar="N", help="the number of the sample, from 0")
    again.add_argument("--config", metavar="FILE", help="where the config is, if it is not where it was")
    again.add_argument("--json", action="store_true", help="print one JSON object")
    listing = command("list", "what there is to choose from", list_command)
    listing.add_argument(
        "what",
        nargs="?",
        metavar="KIND",
        help="stages, solvers, optimizers, designs, derivatives or transforms; all if left out",
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    doctor = command("doctor", "versions, devices, precision, caches", doctor_command)
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    return top


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that lacks ∘ still shows the plan
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: end_at_once(as_json))
    code = 1
    try:
        if as_json:
            keep_output_for_json()
        code = dispatch(arguments)
        sys.stdout.flush()
    except UserError as error:
        code = report_problems(error, as_json)
    except KeyboardInterrupt:
        end_at_once(as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    except Exception as error:
        code = report_bug(error, as_json)
    deadlines = sys.modules.get("engine.deadlines")
    if (threading.active_count() > 1 and code == INTERRUPTED) or (deadlines is not None and deadlines.abandoned()):
        leave(code)
    sys.exit(code)


def keep_output_for_json() -> None:
    """Send what models and libraries print to standard error, so that standard output holds one JSON object."""
    global ANSWERS
    with contextlib.suppress(OSError):  # standard output may be closed
        sys.stdout.flush()
        ANSWERS = os.fdopen(os.dup(1), "w", encoding="utf-8", closefd=False)
        os.dup2(2, 1)


def end_at_once(as_json: bool) -> NoReturn:
    """Answer Ctrl-C while no chunk runs: nothing is lost, and nothing is waited for."""
    if as_json:
        with contextlib.suppress(OSError):
            print_json({"status": "interrupted"})
    complain("interrupted: finished chunks are kept; the same command goes on")
    leave(INTERRUPTED)


def leave(code: int) -> NoReturn:
    """End the process at once: threads that still compute are not waited for, and the store is consistent at any instant."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def dispatch(arguments: list[str]) -> int:
    """Parse and run one command."""
    if arguments[:1] == ["--json"]:
        arguments = [*arguments[1:], "--json"]
    top = parser()
    first = next((a for a in arguments if not a.startswith("-")), None)
    if first is not None and first not in COMMANDS:
        hint = nearest(first, COMMANDS) or (
            f" Did you mean 'run {first}'?" if first.endswith((".yaml", ".yml")) else ""
        )
        raise UserError(f"`command` must be one of {', '.join(COMMANDS)}, but is {first!r}.{hint}")
    options = parse(top, arguments)
    if options.version:
        from engine import __version__

        print(f"diffsim-engine {__version__}")
        return 0
    if options.command is None:
        top.print_help()
        return 0
    handler: Callable[[Any], int] = globals()[f"{options.command.replace('-', '_')}_command"]
    return handler(options)


def parse(top: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """Parse with overrides and options in any order: `run a.yaml x=1 --json y=2`."""
    options, rest = top.parse_known_args(arguments)
    unknown = [a for a in rest if a.startswith("-")]
    if unknown or (rest and not hasattr(options, "overrides")):
        known = [a for action in top._actions for a in action.option_strings]
        if options.command is not None:
            chosen = next(a for a in top._actions if isinstance(a, argparse._SubParsersAction)).choices[options.command]
            known = [a for action in chosen._actions for a in action.option_strings]
        bad = (unknown or rest)[0]
        raise UserError(
            f"`{bad}` must be an option of the command, but is not.{nearest(bad, known)} Options: {', '.join(known)}."
        )
    if rest:
        options.overrides = [*options.overrides, *rest]
    return options


def run_command(options: argparse.Namespace) -> int:
    """Run a config from its sweep to its store. The same command again goes on where it was stopped."""
    from engine.config import expand_multirun

    if options.multirun:
        done: list[tuple[int, dict[str, Any]]] = []
        for overrides in expand_multirun(options.overrides):
            complain(f"run {len(done) + 1}: {' '.join(overrides)}")
            try:
                done.append(run_once(options, overrides))
            except UserError as error:  # of this run; the others may be right
                done.append((report_problems(error, False), {"status": "error", "problems": list(error.problems)}))
            if done[-1][0] == INTERRUPTED:
                break
        if options.json:
            print_json({"status": worst(done), "runs": [payload for _, payload in done]})
        codes = [code for code, _ in done]
        return max(codes, key=lambda code: (code == INTERRUPTED, code == MISTAKE, code))
    code, payload = run_once(options, options.overrides)
    if options.json:
        print_json(payload)
    return code


def worst(done: list[tuple[int, dict[str, Any]]]) -> str:
    """The status of the first run that did not complete, else complete."""
    return next((payload["status"] for code, payload in done if code), "complete")


def run_once(options: argparse.Namespace, overrides: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """One run with its progress, its summary, and its answer to Ctrl-C."""
    from engine.config import read_config

    config = read_config(options.config, overrides)
    from engine.progress import watcher
    from engine.reports import describe_run
    from engine.runs import carry_out

    stop = threading.Event()
    with Interrupts(stop, options.json) as interrupts:
        summary = carry_out(
            config,
            fresh=options.fresh,
            retry_failed=options.retry_failed,
            observers=[watcher(), interrupts],
            stop=stop,
            say=complain,
        )
    print(describe_run(summary), file=sys.stderr if options.json else sys.stdout)
    return summary.exit_code, asdict(summary)


def complain(text: str) -> None:
    """A line for people, on standard error."""
    print(text, file=sys.stderr, flush=True)


class Interrupts:
    """What Ctrl-C does: while chunks run, the first lets those in flight finish, for some seconds; else it ends the command.

    Watches the run as an observer, to know when chunks run.
    """

    def __init__(self, stop: threading.Event, as_json: bool) -> None:
        self.stop = stop
        self.as_json = as_json
        self.running = False
        self.previous: list[tuple[int, Any]] = []

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self.previous = [(number, signal.signal(number, self.handle)) for number in (signal.SIGINT, signal.SIGTERM)]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous:
            signal.signal(number, handler)

    def on_start(self, samples: int) -> None:
        """Chunks begin to run."""
        self.running = True

    def on_chunk(self, event: object) -> None:
        """A chunk is done."""

    def on_end(self) -> None:
        """No chunk runs any more."""
        self.running = False

    def handle(self, *_: object) -> None:
        """Answer a signal."""
        if self.stop.is_set() or not self.running:
            end_at_once(self.as_json)
        self.stop.set()
        complain("\nstopping: chunks in flight are being finished; press Ctrl-C again to leave at once")
        timer = threading.Timer(GRACE, leave, [INTERRUPTED])
        timer.daemon = True
        timer.start()


def plan_command(options: argparse.Namespace) -> int:
    """Compose, import, trace, check, compile and cost a config, and say what a run would do. Nothing is stored, and nothing is run,
    but for what `--check` evaluates: every stage, at three points."""
    from engine.config import read_config

    config = read_config(options.config, options.overrides)
    from engine.draft import make_draft
    from engine.plan import make_plan
    from engine.reports import describe_plan, plan_as_data
    from engine.runs import check_store, compiled_program, wait_for

    draft = make_draft(config)
    purity = None
    if options.check:
        from engine.purity import check_purity, compare_processes

        purity = wait_for(lambda: check_purity(draft))
        if not purity.problems:
            compare_processes(draft, purity)
        if purity.problems:
            return report_impure(purity, options.json)
    if draft.problem is not None:
        return plan_design(draft, options.json)
    plan = make_plan(draft)
    check_store(plan)
    program = compiled_program(plan)
    if options.json:
        print_json(plan_as_data(program.plan, program.cost, purity))
    else:
        print(describe_plan(program.plan, program.cost, purity))
    return 0


def plan_design(draft: Any, as_json: bool) -> int:
    """Check and cost an optimization."""
    from engine.design_reports import describe_design_plan, design_plan_as_data
    from engine.optimization import make_optimization
    from engine.runs import find_store
    from engine.store import check_layout

    plan = make_optimization(draft)
    check_layout(plan.layout())
    if not draft.config.settings.store.overwrite:
        find_store(draft)
    if as_json:
        print_json(design_plan_as_data(plan))
    else:
        print(describe_design_plan(plan))
    return 0


def report_impure(purity: Any, as_json: bool) -> int:
    """Stages that are not pure: a line for each stage, then what to mend."""
    from engine.reports import purity_as_data, purity_lines

    if as_json:
        for problem in purity.problems:
            print(f"error: {problem}", file=sys.stderr)
        print_json({"status": "error", "problems": purity.problems, "purity": purity_as_data(purity)})
        return MISTAKE
    print("\n".join(["purity", *purity_lines(purity)]), flush=True)
    return report_problems(UserError(purity.problems), False)


def check_grad_command(options: argparse.Namespace) -> int:
    """Compare every derivative that a config asks for, or that its optimization uses, with finite differences of its values, at some
    samples of its sweep."""
    from engine.config import read_config

    config = read_config(options.config, options.overrides)
    from engine.draft import make_draft
    from engine.gradient_check import check_gradients
    from engine.plan import make_plan
    from engine.reports import describe_checks

    if options.samples < 1:
        raise UserError(f"`--samples` must be a positive integer, but is {options.samples}. Leave it out for 5.")
    draft = make_draft(config)
    if draft.problem is not None:
        draft = replace(draft, requests=(*draft.requests, *draft.problem.requests()))
    check = check_gradients(make_plan(draft), options.samples)
    if options.json:
        status = "complete" if check.passes else "partial"
        left_out = [asdict(one) for one in check.left_out]
        print_json({"status": status, "derivatives": [asdict(row) for row in check.rows], "left_out": left_out})
    else:
        print(describe_checks(check))
    return 0 if check.passes else 3


def converge_command(options: argparse.Namespace) -> int:
    """Compute some samples of a config's sweep again with finer tolerances, steps and grids, and say which outputs change by it. Nothing
    is stored."""
    from engine.config import read_config

    config = read_config(options.config, options.overrides)
    from engine.convergence import compare
    from engine.draft import make_draft
    from engine.plan import make_plan
    from engine.reports import describe_convergence

    varied = {"tenth": options.tenth, "halve": options.halve, "double": options.double}
    found = compare(make_plan(make_draft(config)), options.samples, within=options.within, **varied)
    if options.json:
        print_json(found.as_data())
    else:
        print(describe_convergence(found))
    return 0 if found.passes else 3


def show_command(options: argparse.Namespace) -> int:
    """What a store holds: variables, status of the samples, provenance. Nothing that the store names is imported or run."""
    from engine.reports import describe_store, store_as_data

    if options.json:
        print_json(store_as_data(options.store))
    else:
        print(describe_store(options.store))
    return 0


def repro_command(options: argparse.Namespace) -> int:
    """Compute one sample of a store again, alone and with the same key, and find where a number first went non-finite."""
    from engine.reports import describe_reproduction
    from engine.repro import reproduce

    found = reproduce(options.store, options.sample, options.config, say=complain)
    if options.json:
        print_json(asdict(found))
    else:
        print(describe_reproduction(found))
    return 0


def list_command(options: argparse.Namespace) -> int:
    """What there is to choose from: stages of the worked pipelines, solvers, sweep designs, kinds of derivatives, transforms."""
    from engine.catalog import KINDS, catalog, describe_catalog

    if options.what is not None and options.what not in KINDS:
        raise UserError(
            f"`list` must be given one of {', '.join(KINDS)}, but got {options.what!r}.{nearest(options.what, KINDS)}"
        )
    kinds = [options.what] if options.what else list(KINDS)
    if options.json:
        print_json({kind: catalog(kind) for kind in kinds})
    else:
        print(describe_catalog(kinds))
    return 0


def doctor_command(options: argparse.Namespace) -> int:
    """Versions, devices, precision and caches: what a bug report needs."""
    from engine.reports import describe_doctor, doctor_as_data

    data = doctor_as_data()
    if options.json:
        print_json(data)
    else:
        print(describe_doctor(data))
    return 0


def print_json(data: Any) -> None:
    """One strict JSON object on standard output."""
    print(json.dumps(data, allow_nan=False, default=str), file=ANSWERS or sys.stdout, flush=True)


def report_problems(error: UserError, as_json: bool) -> int:
    """The user's mistakes, one screen, no traceback."""
    for problem in error.problems:
        print(f"error: {problem}", file=sys.stderr)
    if as_json:
        print_json({"status": "error", "problems": list(error.problems)})
    return MISTAKE


def report_bug(error: Exception, as_json: bool) -> int:
    """Anything else: the traceback goes to a log, one line to the screen."""
    import tempfile

    text = "".join(traceback.format_exception(error))
    with tempfile.NamedTemporaryFile("w", prefix="engine-", suffix=".log", delete=False, encoding="utf-8") as log:
        log.write(text)
    line = f"{type(error).__name__}: {error}".splitlines()[0]
    complain(f"error: {line}\nThis should not happen. The traceback is in {log.name}.")
    if as_json:
        print_json({"status": "error", "problems": [line], "log": log.name})
    return 1
