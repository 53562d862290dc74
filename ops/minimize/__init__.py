"""Minimizers whose searches run side by side: a step is one evaluation.

    boxes ─→ descent ─→ quasi_newton          BFGS, LBFGS, NonlinearCG
                   └──→ least_squares         GaussNewton, LevenbergMarquardt, Dogleg
                   └──→ augmented_lagrangian  AugmentedLagrangian

What they take and give are the tuples of `iterates`.
"""

from ops.minimize.augmented_lagrangian import AugmentedLagrangian
from ops.minimize.least_squares import Dogleg, GaussNewton, LevenbergMarquardt
from ops.minimize.quasi_newton import BFGS, LBFGS, NonlinearCG

__all__ = ["BFGS", "LBFGS", "AugmentedLagrangian", "Dogleg", "GaussNewton", "LevenbergMarquardt", "NonlinearCG"]
