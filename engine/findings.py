"""Ends of searches → what is stored of them: optima in their own units, certificates, outputs, and where one went wrong.

In: the state of searches that have ended. Out: values and statuses of a batch.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from engine.certificate import Certificate, Stationarity, certify, is_candidate, stationarity
from engine.design_variables import Starts
from engine.estimation import estimate
from engine.evaluation import Box, Evaluation
from engine.optimization import Optimization
from engine.origins import Trouble, hunt
from engine.problem import with_starts
from engine.program import Program
from engine.reasons import REASONS
from engine.search import Search
from engine.status import STATUS

LOG = logging.getLogger("engine")
Array = np.ndarray[Any, Any]

TANGENTS = 2048
"""That the Hessians which are computed at once carry together."""

EXACT = 1e-9
"""Violation of a constraint, relative to its size, that is left alone."""

ROUNDING = 1e-10
"""Part of the gradient below which its projection is none."""

NEWTON_STEPS = 8
"""Of a refinement, at most."""

CODES = {code: name for name, code in REASONS.items()}


@dataclass
class Findings:
    """What the searches of one optimization found, batch after batch."""

    plan: Optimization
    shared: Any
    """What all searches share."""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.width = self.plan.blocks.width
        self.warnings: set[str] = set()
        self.origins: list[Trouble] = []
        """Where one of them went wrong."""

        self.host: Any = None
        """What searches outside JAX share, if there are any: they are refined."""

        self.curvature: Any = None
        self.results = Program(self.plan.results)
        self.ready: Future[None] = ThreadPoolExecutor(1).submit(self.results.prepare)
        """Compiled while the searches begin."""

    def concluded(self, searches: Array, state: Search) -> tuple[dict[str, Array], Array]:
        """The values of a batch that has ended, and its statuses."""
        rows = [jax.tree_util.tree_map(lambda x, i=i: np.asarray(x)[i], state) for i in range(len(searches))]
        if self.host is not None:
            rows = [self.refined(row, search) for row, search in zip(rows, searches, strict=True)]
        shown = self.certified(rows, searches)
        z = np.stack([row.best_z for row in rows])
        values = self.values_of(z, rows, shown, searches)
        outputs, found = self.outputs_at(searches, z)
        status = np.array([c.status for c in shown], np.int8)
        status = np.where((status == STATUS["ok"]) & (found != STATUS["ok"]), found, status).astype(np.int8)
        return values | outputs, status

    def certified(self, rows: list[Search], searches: Array) -> list[Certificate]:
        """The certificates of searches."""
        searcher, problem = self.plan.searcher, self.plan.problem
        boxes = [Box(*(np.asarray(end, float) for end in searcher.box(np.asarray(row.sizes)))) for row in rows]
        best = [Evaluation(*(np.asarray(part) for part in row.best)) for row in rows]
        z = [np.asarray(row.best_z, float) for row in rows]
        seen = [stationarity(*parts) for parts in zip(z, best, boxes, strict=True)]
        ended = [CODES[int(row.reason)] for row in rows]
        first = [(float(row.first_value / row.reference), float(row.first_norm / row.reference)) for row in rows]
        wanted = [i for i, row in enumerate(rows) if is_candidate(seen[i], ended[i], first[i][1])]
        hessians = self.hessians(rows, best, seen, searches, wanted)
        return [
            certify(
                z[i],
                best[i],
                boxes[i],
                seen[i],
                hessians.get(i),
                ended=ended[i],
                trouble=int(row.trouble),
                steps=int(row.steps),
                first=first[i],
                tolerance=problem.settings.tolerance,
                logarithmic=self.plan.scaling.logarithmic,
            )
            for i, row in enumerate(rows)
        ]

    def refined(self, row: Search, search: int) -> Search:
        """A search carried on by Newton's method on the conditions of its active bounds and constraints, as long as these are met better
        and better. SciPy's methods end where the objective changes no more: at half of the digits; an augmented Lagrangian keeps its
        constraints as well as it must."""
        host, point = self.host, self.host.point(search)
        for _ in range(NEWTON_STEPS):
            (shown,) = self.certified([row], np.array([search]))
            if shown.newton is None or not shown.newton.any():
                break
            box = self.plan.searcher.box(np.asarray(row.sizes))
            z = np.clip(row.best_z + shown.newton, box.lower, box.upper).astype(self.plan.dtype)
            found = host.evaluated(z, point)
            if not found.fine:
                break
            seen = self.plan.searcher.scaled(found, row.reference, row.sizes)
            before, after = stationarity(row.best_z, row.best, box), stationarity(z, seen, box)
            level = ROUNDING * float(np.max(np.abs(row.best.gradient), initial=0))
            nearer = after.violated < 0.5 * before.violated
            better = nearer or after.norm < 0.5 * before.norm
            room = (
                100 if nearer else 2
            )  # back onto the constraints, what was a vanishing slope before may have to be found again
            worse = after.norm > max(room * before.norm, level) or after.violated > max(before.violated, EXACT)
            if worse or not better:
                break
            row = row._replace(
                best_z=z,
                best=seen,
                best_value=found.value,
                best_gradient_norm=after.norm * row.reference,
                best_infeasibility=np.asarray(after.violated),
                steps=row.steps + 1,
            )
        return row

    def hessians(
        self, rows: list[Search], best: list[Evaluation], seen: list[Stationarity], searches: Array, wanted: list[int]
    ) -> dict[int, Array]:
        """The Hessians of the Lagrangian by the scaled variables, of those rows that are wanted and as far as they are affordable."""
        if self.plan.problem.residual and not self.plan.problem.constraints:
            return {i: np.asarray(best[i].jacobian.T @ best[i].jacobian, float) for i in wanted}
        if not self.plan.hessian or not wanted:
            return {}
        width = max(1, min(self.width, TANGENTS // self.plan.scaling.n))
        program = self.hessian_program(width, rows[0], searches)
        found: dict[int, Array] = {}
        for at in range(0, len(wanted) if program is not None else 0, width):
            part = wanted[at : at + width]
            padded = part + [part[-1]] * (width - len(part))
            matrices = np.asarray(program(*self.hessian_arguments(rows, seen, searches, padded)), float)
            found |= {i: 0.5 * (matrix + matrix.T) for i, matrix in zip(part, matrices, strict=False)}
        return found

    def hessian_arguments(
        self, rows: list[Search], seen: list[Any], searches: Array, places: list[int]
    ) -> tuple[Any, ...]:
        """What the program of the Hessians takes."""
        dtype = self.plan.dtype
        columns = (
            np.stack([rows[i].best_z for i in places]).astype(dtype),
            np.stack([seen[i].multipliers for i in places]).astype(dtype),
            np.array([rows[i].reference for i in places], dtype),
            np.stack([rows[i].sizes for i in places]).astype(dtype),
        )
        return self.shared, self.plan.objective.points(np.asarray(searches)[places]), *columns

    def hessian_program(self, width: int, like: Search, searches: Array) -> Any:
        """The compiled Hessians of so many searches; None where second derivatives do not go through a stage."""
        searcher = self.plan.searcher

        def curvature(shared: Any, point: Any, z: Any, multipliers: Any, reference: Any, sizes: Any) -> Any:
            def slope(z: Any) -> Any:
                seen = searcher.scaled(searcher.evaluate(shared, z, point, True), reference, sizes)
                return seen.gradient + multipliers @ seen.constraint_jacobian

            return jax.jacfwd(slope)(z)

        with self.lock:
            if self.curvature is None:
                blank = Stationarity(np.zeros(0), 0.0, np.zeros(len(searcher.low)), np.zeros(0, bool), 0.0)
                given = self.hessian_arguments([like], [blank], searches[:1], [0] * width)
                try:
                    batch = jax.vmap(curvature, in_axes=(None, 0, 0, 0, 0, 0))
                    self.curvature = jax.jit(batch).lower(*given).compile()
                except Exception as error:
                    self.curvature = False
                    said = (str(error) or type(error).__name__).splitlines()[0]
                    self.warnings.add(
                        f"`optimize.hessian` should go through all stages, but {said[:160].rstrip('.')}. The certificates do without."
                    )
        return self.curvature or None

    def values_of(self, z: Array, rows: list[Search], shown: list[Certificate], searches: Array) -> dict[str, Array]:
        """What the searches found, in the variables' own units."""
        plan, problem, scaling = self.plan, self.plan.problem, self.plan.scaling
        real = plan.dtype
        x = scaling.unscaled(z)
        slopes = scaling.slopes(z)
        found: dict[str, Array] = {}
        reference = np.array([row.reference for row in rows], float)
        signed = problem.sign * reference
        active = scaling.parted(np.stack([c.active for c in shown]))
        bounds = scaling.parted(np.stack([c.bound_multipliers for c in shown]) * signed[:, None] / slopes)
        for name, value in scaling.parted(x).items():
            found |= {f"variables.{name}": value.astype(real), f"active.{name}": active[name]}
            found[f"multipliers.{name}"] = bounds[name].astype(real)
        for name in problem.choices:
            found[f"variables.{name}"] = problem.starts.columns[name][searches % problem.starts.count]
        sizes = np.stack([row.sizes for row in rows])
        multipliers = np.stack([c.multipliers for c in shown]) * signed[:, None] / sizes
        found |= self.by_constraint(multipliers.astype(real))
        columns: dict[str, tuple[Callable[[Search, Certificate], Any], Any]] = {
            "objective": (lambda r, c: problem.sign * r.best_value, real),
            "gradient_norm": (lambda r, c: c.gradient_norm * r.reference, real),
            "infeasibility": (lambda r, c: r.best_infeasibility, real),
            "steps": (lambda r, c: r.steps, np.int32),
            "reason": (lambda r, c: REASONS[c.reason], np.int8),
            "trouble": (lambda r, c: r.trouble, np.int8),
            "eigenvalues": (lambda r, c: problem.sign * r.reference * np.array(c.eigenvalues), real),
            "newton_step": (lambda r, c: c.newton_step, real),
        }
        for name, (take, dtype) in columns.items():
            found[name] = np.stack([np.asarray(take(r, c), dtype) for r, c in zip(rows, shown, strict=True)])
        if problem.sign < 0:
            found["eigenvalues"] = found["eigenvalues"][:, ::-1]
        if problem.residual:
            found |= self.estimates(x, slopes, rows, shown)
        return found

    def by_constraint(self, multipliers: Array) -> dict[str, Array]:
        """Multipliers of all constrained elements, (searches, k), by constraint."""
        problem = self.plan.problem
        samples = problem.sweep.samples if problem.over else 1
        each = multipliers.reshape((len(multipliers), samples, -1))
        found, at = {}, 0
        for c in problem.constraints:
            count = math.prod(c.leaf.shape)
            _, shape = self.plan.of_samples(c.leaf)
            found[f"multipliers.{c.name}"] = each[..., at : at + count].reshape((len(multipliers), *shape))
            at += count
        return found

    def estimates(self, x: Array, slopes: Array, rows: list[Search], shown: list[Certificate]) -> dict[str, Array]:
        """Standard errors, intervals, covariance and correlation of the fits."""
        plan, measured = self.plan, self.plan.problem.measurements
        assert measured is not None
        made: list[Any] = []
        for i, (row, c) in enumerate(zip(rows, shown, strict=True)):
            root = math.sqrt(float(row.reference))
            jacobian = np.asarray(row.best.jacobian, float) * root
            residuals = np.asarray(row.best.residuals, float) * root
            made.append(
                estimate(
                    residuals,
                    jacobian,
                    values=x[i],
                    scales=slopes[i],
                    names=plan.scaling.elements,
                    fixed=c.active != 0,
                    known_sigma=bool(measured.sigma),
                    confidence=measured.confidence,
                )
            )
            if c.status == STATUS["ok"]:
                with self.lock:
                    self.warnings.update(made[-1].warnings)
        real = plan.dtype
        errors = plan.scaling.parted(np.stack([e.standard_errors for e in made]).astype(real))
        lower = plan.scaling.parted(np.stack([e.lower for e in made]).astype(real))
        upper = plan.scaling.parted(np.stack([e.upper for e in made]).astype(real))
        found = {f"standard_error.{name}": value for name, value in errors.items()}
        found |= {f"confidence.{name}": np.stack([lower[name], upper[name]], axis=-1) for name in errors}
        return found | {
            "covariance": np.stack([e.covariance for e in made]).astype(real),
            "correlation": np.stack([e.correlation for e in made]).astype(real),
            "residual_deviation": np.array([e.residual_deviation for e in made], real),
        }

    def outputs_at(self, searches: Array, z: Array) -> tuple[dict[str, Array], Array]:
        """Outputs and derivatives at the variables that were found, and the worst status of each search's samples."""
        plan, problem = self.plan, self.plan.problem
        values, status = self.samples_at(searches, z)
        count = len(searches)
        found = {}
        for name, value in values.items():
            if name == "objective" and plan.repeats_objective:
                continue
            rest = value.shape[1:]
            shape = (count, *problem.sweep.shape, *rest) if problem.over else (count, *rest)
            found[name] = value.reshape(shape)
        each = status.reshape((count, -1))
        worst = np.where((each == STATUS["ok"]).all(axis=1), STATUS["ok"], np.max(each, axis=1))
        allowed = problem.over and problem.settings.allow_failed > 0
        return found, np.full(count, STATUS["ok"]) if allowed else worst

    def samples_at(self, searches: Array, z: Array) -> tuple[dict[str, Array], Array]:
        """Outputs and statuses of the samples of searches, one or those of the sweep that each reduces, one search after the other."""
        self.ready.result()
        plan, problem = self.plan, self.plan.problem
        samples = problem.sweep.samples if problem.over else 1
        x = plan.scaling.parted(plan.scaling.unscaled(z))
        points = plan.objective.points(searches)
        swept = {name: np.repeat(value, samples, axis=0) for name, value in (points["swept"] | x).items()}
        index = np.repeat(points["index"], samples)
        if problem.over:
            every, count = plan.objective.samples, len(searches)
            swept |= {name: np.tile(value, (count, *(1,) * (value.ndim - 1))) for name, value in every["swept"].items()}
            index = np.tile(every["index"], count)
        return self.evaluated(swept, index)

    def evaluated(self, swept: Mapping[str, Array], index: Array) -> tuple[dict[str, Array], Array]:
        """The results program over any number of points, its constant width at a time."""
        width, nominal = self.plan.results.width, self.results.nominal
        parts: list[dict[str, Array]] = []
        statuses: list[Array] = []
        for at in range(0, len(index), width):
            rows = slice(at, at + width)
            size = len(index[rows])
            padding = np.minimum(np.arange(width), size - 1)
            given = {name: np.asarray(swept[name][rows][padding], nominal[name].dtype) for name in nominal}
            outputs, status = self.results(given, index[rows][padding])
            parts.append({name: value[:size] for name, value in outputs.items()})
            statuses.append(status[:size])
        names = parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}, np.concatenate(statuses)

    def look_into(self, searches: Array, state: Search) -> None:
        """Find where the first search of a batch went wrong that ended at numbers that are not finite, unless one is known."""
        ended = np.asarray(state.reason)[: len(searches)]
        bad = np.flatnonzero(np.isin(ended, [REASONS["start_failed"], REASONS["bad_steps"]]))
        if not bad.size or self.origins:
            return
        search, trial = int(searches[bad[0]]), np.asarray(state.trial)[bad[0]]
        try:
            self.origins = self.hunted(search, trial.astype(self.plan.dtype))
        except Exception as error:
            LOG.error("search %d: where it went wrong was not found", search, exc_info=error)
        for trouble in self.origins:
            LOG.warning("search %d: %s", search, trouble)

    def hunted(self, search: int, trial: Array) -> list[Trouble]:
        """Where a sample goes wrong at the scaled variables of a trial: of a reduced sweep the first that does."""
        plan, problem = self.plan, self.plan.problem
        _, status = self.samples_at(np.array([search]), trial[None])
        first = int(np.argmax(status != STATUS["ok"]))
        sample = first if problem.over else search // problem.starts.count
        starts = problem.starts
        columns = plan.scaling.parted(plan.scaling.unscaled(trial[None]))
        columns |= {name: starts.columns[name][[search % starts.count]] for name in problem.choices}
        design = with_starts(replace(problem, starts=Starts(columns, 1)))
        there = replace(plan.results, draft=replace(plan.results.draft, design=design))
        return hunt(there, sample, int(status[first]))
