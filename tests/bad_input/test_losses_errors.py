"""What `ops.losses`, `ops.statistics` and `ops.lyapunov` refuse, in words."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from engine.errors import StageError
from ops import losses, statistics
from ops.lyapunov import lyapunov_flow, lyapunov_map
from tests.project import Project

NAN = float("nan")
M, D = [1.0, 2.0, 3.0], [1.0, 2.5, 2.0]


def still(t: Any, y: Any, args: Any) -> Any:
    return -y


CASES: dict[str, tuple[Any, str]] = {
    "a gap": (
        lambda: losses.mean_square(M, [1.0, NAN, 2.0]),
        r"`data` must have no missing.*data\[1\].*missing='omit'",
    ),
    "a gap in a tree": (lambda: losses.mean_square({"a": M}, {"a": [1.0, 2.0, NAN]}), r"`data\['a'\]`.*\[2\]"),
    "nothing but gaps": (lambda: losses.mean_square(M, [NAN] * 3, missing="omit"), "`data`.*every one is nan"),
    "no data": (lambda: losses.mean_square([], []), "`data`.*empty"),
    "another policy": (
        lambda: losses.mean_square(M, D, missing="skip"),
        "`missing` must be one of refuse, omit.*'skip'",
    ),
    "nearest policy": (lambda: losses.mean_square(M, D, missing="omitt"), "Did you mean 'omit'"),
    "a column": (
        lambda: losses.mean_square(M, np.ones((3, 1))),
        r"`data` must have the shape.*\(3,\).*\(3, 1\).*broadcast",
    ),
    "one number": (lambda: losses.mean_square(M, 1.0), r"`data`.*\(3,\).*\(\)"),
    "another tree": (lambda: losses.mean_square({"a": M}, {"b": D}), "`data` must have the structure"),
    "text": (lambda: losses.mean_square(M, ["a", "b", "c"]), "`data` must hold numbers.*null"),
    "complex": (lambda: losses.mean_square(M, [1j, 2.0, 3.0]), "`data` must be real.*complex"),
    "ragged": (lambda: statistics.mean([[1.0], [1.0, 2.0]]), "`x` must be one array"),
    "sigma of zero": (lambda: losses.normal(M, D, sigma=[1.0, 0.0, 1.0]), r"`sigma` must be positive.*0 for data\[1\]"),
    "negative sigma": (lambda: losses.mean_square(M, D, sigma=-1.0), "`sigma` must be positive.*-1"),
    "unknown sigma": (lambda: losses.mean_square(M, D, sigma=[1.0, NAN, 1.0]), r"`sigma` must be positive.*nan"),
    "long sigma": (lambda: losses.mean_square(M, D, sigma=[1.0, 2.0]), r"`sigma`.*\(3,\).*\(2,\)"),
    "sigma of another tree": (
        lambda: losses.mean_square((M, M), (D, D), sigma={"a": 1.0, "b": 2.0}),
        "`sigma` must be one",
    ),
    "both": (lambda: losses.sum_of_squares(M, D, sigma=1.0, covariance=np.eye(3)), "`sigma` must be left out"),
    "small covariance": (
        lambda: losses.sum_of_squares(M, D, covariance=np.eye(2)),
        r"`covariance`.*\(3, 3\).*\(2, 2\)",
    ),
    "indefinite": (
        lambda: losses.sum_of_squares(M, D, covariance=-np.eye(3)),
        "`covariance` must be symmetric and positive",
    ),
    "another loss": (lambda: losses.robust(M, D, loss="hubert"), "`loss` must be one of linear.*Did you mean 'huber'"),
    "no scale": (lambda: losses.robust(M, D, scale=0.0), r"`scale` must be a positive number.*0\.0"),
    "scales": (lambda: losses.robust(M, D, scale=[1.0, 2.0]), "`scale` must be one number"),
    "negative data": (
        lambda: losses.log_normal(M, [1.0, -1.0, 1.0], sigma=1.0),
        r"`data` must be positive.*data\[1\] is -1",
    ),
    "half a count": (lambda: losses.poisson(M, [1, 2, 0.5]), r"`data` must be counts.*data\[2\] is 0\.5"),
    "a negative count": (lambda: losses.binomial(M, [1, -2, 0], trials=3), r"`data` must be counts.*-2"),
    "too many": (lambda: losses.binomial(M, [1, 5, 0], trials=3), r"`data` must be at most trials.*data\[1\] is 5"),
    "no freedom": (lambda: losses.student_t(M, D, scale=1.0, df=0), "`df` must be positive"),
    "few times": (lambda: losses.l2_distance(M, D, [0.0, 1.0]), r"`t` must be.*3 entries.*\(2,\)"),
    "times in no order": (lambda: losses.l2_distance(M, D, [0.0, 2.0, 1.0]), "`t` must be strictly ascending"),
    "a time twice": (lambda: statistics.mean(M, [0.0, 1.0, 1.0]), "`t` must be strictly ascending"),
    "sequences of vectors": (lambda: losses.soft_dtw(np.ones((3, 2)), np.ones((3, 1))), "`second`.*components"),
    "no sequence": (lambda: losses.soft_dtw(1.0, M), "`first` must be a sequence"),
    "hard": (lambda: losses.soft_dtw(M, D, gamma=0.0), "`gamma` must be a positive"),
    "no such axis": (lambda: statistics.mean(M, axis=1), r"`axis` must be an integer from -1 to 0: x has 1, but is 1"),
    "a number": (lambda: statistics.mean(1.0), "`x` must have an axis"),
    "empty": (lambda: statistics.mean([]), "`x` must have at least one entry"),
    "freedom": (lambda: statistics.variance(M, ddof=2), "`ddof` must be 0 or 1.*2"),
    "freedom with times": (lambda: statistics.variance(M, [0.0, 1.0, 2.0], ddof=1), "`ddof`.*0 with times"),
    "one of a sample": (lambda: statistics.std([1.0], ddof=1), "`x` must have more than 1"),
    "a high quantile": (lambda: statistics.quantile(M, 1.5), r"`q` must be from 0 to 1.*1\.5"),
    "another refinement": (lambda: statistics.maximum(M, refine="parabol"), "`refine`.*Did you mean 'parabola'"),
    "another direction": (lambda: statistics.crossings(M, direction="upp"), "`direction`.*Did you mean 'up'"),
    "another period": (lambda: statistics.period(M, of="peak"), "`of`.*Did you mean 'peaks'"),
    "level of peaks": (lambda: statistics.period(M, of="peaks", level=0.0), "`level` must be left out"),
    "period of one": (lambda: statistics.period([1.0]), "`x` must have at least two entries"),
    "many lags": (lambda: statistics.autocovariance(M, 3), "`lags` must be an integer from 0 to 2.*3"),
    "samples of another length": (
        lambda: statistics.sobol_indices(M, D, [[1.0, 2.0]]),
        r"`f_ab` must have a row.*\(1, 2\)",
    ),
    "weights of another grid": (
        lambda: statistics.sobol_indices_of_grid(np.ones((2, 3)), [[1, 1], [1, 1]]),
        "`weights`",
    ),
    "transient past the end": (lambda: lyapunov_flow(still, 1.0, t1=1.0, transient=1.0), r"`transient` must.*1\.0"),
    "no interval": (lambda: lyapunov_flow(still, 1.0, t1=1.0, interval=0.0), r"`interval` must be a positive.*0\.0"),
    "endless": (lambda: lyapunov_flow(still, 1.0, t1=float("inf")), "`t1` must be a finite number.*inf"),
    "time that is traced": (
        lambda: jax.jit(lambda t: lyapunov_flow(still, 1.0, t1=t))(1.0),
        "`t1`.*known when.*traced",
    ),
    "many exponents": (lambda: lyapunov_flow(still, 1.0, t1=1.0, count=2), "`count` must be.*from 1 to 1, the size.*2"),
    "a complex state": (lambda: lyapunov_flow(still, 1j, t1=1.0), "`y0` must be real"),
    "no step": (lambda: lyapunov_map(lambda x, _: x, 1.0, steps=0), "`steps` must be an integer of at least 1.*0"),
    "half a transient": (lambda: lyapunov_map(lambda x, _: x, 1.0, steps=1, transient=0.5), r"`transient`.*0\.5"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str) -> None:
    function, message = CASES[case]
    with pytest.raises(ValueError, match=message) as caught:
        function()
    assert "\n" not in str(caught.value)


def test_constants_are_checked_while_jax_traces() -> None:
    """A model is traced, its data are known."""
    for wrong in (
        lambda m: losses.mean_square(m, [1.0, NAN, 2.0]),
        lambda m: losses.poisson(m, [1, 2, 0.5]),
        lambda m: losses.normal(m, D, sigma=0.0),
        lambda m: losses.l2_distance(m, D, [0.0, 2.0, 1.0]),
    ):
        with pytest.raises(ValueError, match="must"):
            jax.jit(wrong)(jnp.ones(3))


def test_a_gap_in_a_config_is_told_before_the_run(project: Project) -> None:
    project.model("def flat(k):\n    return k + 0.0 * __import__('jax').numpy.zeros(3)\n").yaml("""\
        defaults: [engine, _self_]
        name: fit
        parameters: {k: 0.5}
        stages:
          flat: {_target_: model.flat}
          loss: {_target_: ops.losses.mean_square, _inputs_: {model: flat}, data: [1.0, null, 2.0]}
    """)
    with pytest.raises(StageError) as caught:
        project.load()
    assert "stages.loss" in str(caught.value)
    assert "`data` must have no missing values, but data[1] is nan. Write missing='omit'" in str(caught.value)
