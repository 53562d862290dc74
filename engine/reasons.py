"""Why a search ended, and what that says of its result: a short list, the same in the store, in reports and in the documentation."""

REASONS: dict[str, int] = {
    "running": 0,
    "converged": 1,
    "gradient": 2,
    "max_steps": 3,
    "stalled": 4,
    "bad_steps": 5,
    "start_failed": 6,
    "unbounded": 7,
    "infeasible": 8,
    "flat": 9,
    "saddle": 10,
    "far": 11,
}
"""Code of each reason."""

WORDS: dict[str, str] = {
    "running": "the search has not ended",
    "converged": "the certificate holds: feasible, the projected gradient vanishes, and the curvature is that of a minimum",
    "gradient": "the projected gradient is small, but the certificate could not be completed",
    "max_steps": "the steps allowed were used up: raise optimize.max_steps, or scale the variables",
    "stalled": "steps became too small to make progress: the objective is rough at this scale; tighten the solver's rtol, or raise "
    "optimize.tolerance",
    "bad_steps": "too many evaluations in a row were not finite: narrow the bounds, or look at the stage that fails",
    "start_failed": "the objective or its gradient is not finite at the start: start elsewhere, or mend the stage that fails",
    "unbounded": "the objective falls without end: add bounds, or a constraint",
    "infeasible": "no point was found that keeps the constraints: relax one, or start elsewhere",
    "flat": "the objective does not depend on the variables here: its gradient is exactly zero and so is its curvature",
    "saddle": "the gradient vanishes, but the curvature is negative along a direction: this is no minimum; start elsewhere",
    "far": "the gradient is small, but the minimum is still far: the objective is almost flat along a direction; lower "
    "optimize.tolerance, or fix a variable",
}
"""What each says, and what to do."""
