"""What `ops.sde` refuses, in words, before anything runs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from ops.adjoints import default_adjoint
from ops.sde import brownian_path, solve
from tests.project import Project

KEY = jax.random.key(0)
TWO = jnp.ones(2)


def decay(t: Any, y: Any, args: Any) -> Any:
    return -y


def proportional(t: Any, y: Any, args: Any) -> Any:
    return 0.3 * y


def constant(t: Any, y: Any, args: Any) -> Any:
    return 0.3


def square(t: Any, y: Any, args: Any) -> Any:
    return 0.3 * jnp.outer(y, jnp.ones(3))


def attempt(diffusion: Any = proportional, y0: Any = 1.0, drift: Any = decay, **settings: Any) -> Any:
    return lambda: solve(drift, diffusion, y0, **{"key": KEY, "t1": 1.0, "step": 0.1, **settings})


CASES: dict[str, tuple[Any, str]] = {
    # of the wrong process
    "Heun for Itô": (
        attempt(method="heun"),
        r"`method`.*'ito', but heun converges to that of 'stratonovich'.*Write method: ito_milstein, or calculus: stratonovich "
        r"with the drift f - ",
    ),
    "Milstein for Itô": (attempt(method="stratonovich_milstein"), "`method`.*'ito'.*Write method: ito_milstein"),
    "Milstein for Stratonovich": (
        attempt(method="ito_milstein", calculus="stratonovich"),
        r"`method`.*'stratonovich', but ito_milstein.*'ito'.*Write method: slow_rk, or calculus: ito with the drift f \+ ",
    ),
    "Euler for Stratonovich": (
        attempt(method="euler_maruyama", calculus="stratonovich", noise="general", diffusion=square, y0=TWO),
        "`method`.*Write method: general_shark",
    ),
    "for additive noise": (
        attempt(method="shark", calculus="stratonovich"),
        "`method` must not be shark where the diffusion depends on the state.*additive.*Write method: slow_rk",
    ),
    "for additive noise, by Itô": (attempt(method="sra1"), "`method`.*sra1"),
    "needs commuting noise": (
        attempt(method="slow_rk", calculus="stratonovich", noise="general", diffusion=square, y0=TWO),
        "`method` must not be slow_rk where the noise need not commute.*Write method: general_shark",
    ),
    "additive, they say": (attempt(noise="additive"), "`noise`.*depends on the state.*'additive'"),
    # words
    "misspelt method": (attempt(method="euler_maruyma"), r"`method`.*Did you mean 'euler_maruyama'\?"),
    "a method for ordinary equations": (
        attempt(method="tsit5"),
        "`method` must be one of auto, euler_maruyama.*'tsit5'",
    ),
    "misspelt calculus": (attempt(calculus="itô"), r"`calculus`.*Did you mean 'ito'\?"),
    "misspelt noise": (attempt(noise="diag"), r"`noise`.*Did you mean 'diagonal'\?"),
    "backward": (
        attempt(adjoint="backsolve"),
        "`adjoint` must be one of auto, forward, checkpointed, direct.*'backsolve'",
    ),
    # structures
    "a matrix": (
        attempt(square, TWO),
        r"`diffusion`.*float64\[2\].*'diagonal'.*float64\[2,3\]\. With a matrix write noise: general",
    ),
    "no matrix": (attempt(y0=TWO, noise="general"), "`diffusion`.*one more axis, last.*'general'"),
    "no diffusion": (attempt(lambda t, y, a: None), r"`diffusion`.*is a `return` missing\?"),
    "no drift": (attempt(drift=lambda t, y, a: None), r"`drift`.*is a `return` missing\?"),
    "drift of another shape": (
        attempt(drift=lambda t, y, a: TWO),
        r"`drift` must return the shapes of y0.*float64\[2\]",
    ),
    "complex state": (attempt(y0=1j), "`y0` and `diffusion` must be real"),
    "complex diffusion": (attempt(lambda t, y, a: 1j), "`y0` and `diffusion` must be real"),
    # times
    "no step": (attempt(step=None), r"`step` must be a positive number, but is None\. Write 0\.01"),
    "step backward": (attempt(step=-0.1), "`step`.*-0.1"),
    "step too fine": (attempt(step=1e-9), "`step` must be at least 9.5e-07.*1e-09"),
    "time backward": (attempt(t1=-1.0), r"`t1` must not lie before t0 = 0\.0, but ends at -1\.0"),
    "times backward": (attempt(t1=None, ts=[-0.5, -1.0]), "`ts` must not lie before t0"),
    "no end": (attempt(t1=None), "`t1` or `ts`"),
    "two ends": (attempt(ts=[1.0]), "`t1` or `ts`.*both"),
    "unsorted times": (attempt(t1=None, ts=[0.5, 0.2]), "`ts` must be ascending"),
    # keys
    "a seed": (attempt(key=7), r"`key` must be one PRNG key, but is 7\. Write jax\.random\.key\(0\)"),
    "no key": (attempt(key=None), "`key`.*None"),
    "many keys": (attempt(key=jax.random.split(KEY, 3)), r"`key`.*key<fry>\[3\].*vmap over several"),
    "path by a seed": (lambda: brownian_path(7, 1.0), "`key`.*7"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_a_reason(name: str) -> None:
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_times_have_no_derivative() -> None:
    for name, by in [("t1 or ts", {"t1": 1.0}), ("step", {"step": 0.1})]:
        with pytest.raises(
            RuntimeError, match=f"`{name}` must not be differentiated: a Brownian path has no derivative"
        ):
            jax.grad(lambda by: attempt(**by)().y)(by)


def test_a_block_that_asks_for_a_backward_solve() -> None:
    with default_adjoint("backsolve"), pytest.raises(ValueError, match=r"`adjoint`.*'backsolve'"):
        attempt()()


def test_additive_noise_takes_every_method() -> None:
    """Both calculi mean the same; what is seen not to depend on the state is additive."""
    for method in ("heun", "shark", "ito_milstein"):
        jax.eval_shape(lambda method=method: attempt(constant, method=method, noise="additive")().y)


def test_a_plan_says_it_before_the_run(project: Project) -> None:
    project.model("""\
        from ops.sde import Solution, solve


        def walk(start, key, method) -> Solution:
            return solve(lambda t, y, a: -y, lambda t, y, a: 0.3 * y, start, key=key, t1=1.0, step=0.1, method=method)
    """).yaml("""\
        defaults: [engine, _self_]
        name: walk
        parameters: {start: 1.0}
        stages: {walk: {_target_: model.walk, method: heun}}
        outputs: {y: walk.y}
        sweep: {replicates: 4}
    """)
    with pytest.raises(Exception, match="`method` must converge to the process of calculus 'ito'") as caught:
        project.load()
    assert type(caught.value).__module__ == "engine.errors"
