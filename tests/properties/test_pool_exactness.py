"""Laws of a batch of solves: each sample gets the numbers that diffrax gives it alone, whatever else waits in the queue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops import ensemble
from ops import pool as ops_pool
from ops.ode import FAILED, MAX_STEPS, NONFINITE, OK, default_adjoint, solve

COUNT, SIZE, TIMES = 21, 3, 5
"""Samples of a batch, numbers of a state, times of saving."""

FEW_STEPS = 150
"""So few that some samples run out of them."""

ADAPTIVE = ("heun", "midpoint", "ralston", "bosh3", "tsit5", "dopri5", "dopri8", "rodas5p")
LANES = {
    "one vector": {"LANES": 8, "EVERY": 4, "REST": 8},
    "a rest": {"LANES": 8, "EVERY": 3, "REST": 2},
    "all at once": {"LANES": 64, "EVERY": 32, "REST": 8},
}
"""Shapes of a pool: fewer lanes than samples, with some that go on by themselves at the end, and a lane for each."""

SEEDS = st.integers(0, 2**32 - 1)


class Problem(NamedTuple):
    """A random vector field, its initial state and its times; every leaf may have an axis of samples."""

    matrix: Any
    shift: Any
    rate: Any
    growth: Any
    y0: Any
    t0: Any
    ts: Any


def field(t: Any, y: Any, p: Problem) -> Any:
    """Smooth and not autonomous; where the growth is large a solution takes many steps, where it is positive it may blow up."""
    return jnp.tanh(p.matrix @ y + p.shift * jnp.sin(p.rate * t)) + p.growth * y * (1 + y @ y)


def problems(seed: int, count: int = COUNT) -> Problem:
    """Samples of very different costs, forwards and backwards in time, some over an empty interval, with times that occur twice."""
    random = np.random.default_rng(seed)
    spans = random.choice([-1.0, 1.0], (count, 1)) * random.choice([0.0, 0.3, 1.0, 3.0], (count, 1))
    parts = np.sort(random.choice([0.0, 0.1, 0.25, 0.4, 0.8, 1.0], (count, TIMES)), axis=1)
    t0 = random.normal(size=(count, 1))
    return Problem(
        random.normal(size=(count, SIZE, SIZE)),
        random.normal(size=(count, SIZE)),
        random.uniform(0.5, 8.0, count),
        random.choice([-8.0, -1.0, -0.1, 0.0, 0.1, 1.0], count),
        random.normal(size=(count, SIZE)),
        t0[:, 0],
        t0 + spans * parts,
    )


class Settings(NamedTuple):
    """How a problem is solved."""

    method: str = "tsit5"
    saves: bool = True
    step: float | None = None
    more: tuple[tuple[str, Any], ...] = ()


def solved(how: Settings, p: Problem) -> Any:
    """What is compared of a solution."""
    steps: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8} if how.step is None else {"step": how.step}
    times: dict[str, Any] = {"ts": p.ts} if how.saves else {"t1": p.ts[-1]}
    found = solve(
        field, p.y0, p, t0=p.t0, solver=how.method, max_steps=FEW_STEPS, **times, **steps, **dict(how.more)
    )  # fmt: skip
    return found.y, found.status, found.accepted, found.rejected


@contextmanager
def by_diffrax() -> Iterator[None]:
    """Within the block, what is traced is solved by diffrax, in lockstep if it is batched."""
    with mock.patch.object(ensemble, "hindrance", return_value="it is compared"):
        yield


@contextmanager
def lanes(shape: str) -> Iterator[None]:
    """Within the block, what is traced is solved in a pool of this shape."""
    with mock.patch.multiple(ops_pool, **LANES[shape]):
        yield


def pool(of: Callable[..., Any], *options: Any) -> Callable[[Any], Any]:
    """A function of one problem, batched in a pool that is smaller than the batch."""
    return pool_of("one vector", of, *options)


@functools.cache
def pool_of(shape: str, of: Callable[..., Any], *options: Any) -> Callable[[Any], Any]:
    """A function of one problem, batched in a pool of that shape."""
    together = jax.jit(jax.vmap(functools.partial(of, *options)))

    def run(p: Any) -> Any:
        with lanes(shape):
            return jax.device_get(together(p))

    return run


@functools.cache
def alone(of: Callable[..., Any], *options: Any) -> Callable[[Any], Any]:
    """A function of one problem, by diffrax for one sample after the other."""
    single = jax.jit(functools.partial(of, *options))

    def run(p: Any) -> Any:
        count = len(jax.tree_util.tree_leaves(p)[0])
        with by_diffrax():
            rows = [single(jax.tree_util.tree_map(lambda x, i=i: x[i], p)) for i in range(count)]
        return jax.tree_util.tree_map(lambda *row: np.stack(row), *jax.device_get(rows))

    return run


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Equal integers, and floats within a tolerance of the largest number of the leaf's sample; NaN in the same places."""

    def one(a: Any, b: Any) -> None:
        assert a.dtype == b.dtype
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
            return
        axes = tuple(range(1, a.ndim))
        size = 1 + np.nanmax(np.abs(b), axis=axes, keepdims=True, initial=0)
        np.testing.assert_allclose(a / size, b / size, rtol=0, atol=tolerance)

    jax.tree_util.tree_map(one, found, expected)


def assert_as_alone(how: Settings, p: Problem, tolerance: float = 1e-10) -> None:
    """A sample that fails does so with the same status; how many roundings short of a singularity it does so is left to chance."""
    found, expected = pool(solved, how)(p), alone(solved, how)(p)
    np.testing.assert_array_equal(found[1], expected[1])
    fine = found[1] == OK
    assert np.isnan(found[0][~fine]).all()
    assert_close(*(jax.tree_util.tree_map(lambda x: x[fine], x) for x in (found, expected)), tolerance)


FAST = [Settings("tsit5"), Settings("rodas5p", saves=False), Settings("euler", step=0.05)]
ALL = [
    *(Settings(method, i % 2 == 0) for i, method in enumerate(ADAPTIVE)),
    *(Settings(method, saves) for method, saves in (("tsit5", False), ("dopri5", True), ("rodas5p", True))),
    *(Settings(method, True, 0.05) for method in ("euler", "tsit5", "rodas5p")),
    Settings("tsit5", True, None, (("pcoeff", 0.4), ("icoeff", 0.3))),
    Settings("dopri5", False, None, (("pcoeff", 0.2), ("icoeff", 0.3), ("dcoeff", 0.1))),
    Settings("tsit5", True, None, (("dt0", 0.5), ("dtmax", 0.1))),
    Settings("tsit5", False, None, (("dt0", 1e-5), ("dtmin", 1e-3))),
    Settings("bosh3", False, None, (("max_abs", 5.0),)),
]
UNLIKE = [
    Settings("rodas5p"),
    Settings("dopri8", False),
    Settings("bosh3", False),
    Settings("rodas5p", True, 0.05),
    Settings("tsit5", True, None, (("pcoeff", 0.4), ("icoeff", 0.3))),
]
"""Methods whose lanes do something else from step to step."""


@pytest.mark.parametrize("how", [*FAST, Settings("rodas5p")], ids=str)
@given(seed=SEEDS)
@settings(max_examples=5)
def test_each_sample_takes_the_steps_that_diffrax_takes_for_it_alone(how: Settings, seed: int) -> None:
    assert_as_alone(how, problems(seed))


@pytest.mark.slow
@pytest.mark.parametrize("how", ALL, ids=str)
@given(seed=SEEDS)
@settings(max_examples=10)
def test_of_every_method_and_control(how: Settings, seed: int) -> None:
    """Among so many some are unstable, and roundings grow."""
    assert_as_alone(how, problems(seed), 1e-9)


def test_the_problems_end_in_every_way() -> None:
    """Or the other laws say less than they seem to."""
    seen = {status for seed in range(8) for status in pool(solved, FAST[0])(problems(seed))[1]}
    assert {OK, MAX_STEPS} <= seen


def assert_order_does_not_matter(how: Settings, seed: int, shape: str) -> None:
    p = problems(seed)
    order = np.random.default_rng(seed).permutation(COUNT)
    found = pool(solved, how)(p)
    moved = pool_of(shape, solved, how)(jax.tree_util.tree_map(lambda x: x[order], p))
    found = jax.tree_util.tree_map(lambda x: x[order], found)
    if (
        shape == "a rest"
    ):  # two lanes are other machine code than a vector of them: an error of 1 may be kept there, and not here
        alike = np.all([a == b for a, b in zip(moved[1:], found[1:], strict=True)], axis=0)
        assert alike.sum() >= COUNT - 2
        assert_close(moved[0][alike], found[0][alike], 1e-9)
    else:
        assert_close(moved, found, 1e-12)


@pytest.mark.parametrize("shape", ["one vector", "all at once"])
@given(seed=SEEDS)
@settings(max_examples=10)
def test_neither_order_nor_lanes_matter(shape: str, seed: int) -> None:
    assert_order_does_not_matter(FAST[0], seed, shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", LANES)
@pytest.mark.parametrize("how", UNLIKE, ids=str)
@given(seed=SEEDS)
@settings(max_examples=10)
def test_neither_order_nor_lanes_matter_to_methods_of_every_kind(how: Settings, shape: str, seed: int) -> None:
    assert_order_does_not_matter(how, seed, shape)


BAD: dict[str, Callable[[Problem, int], Problem]] = {
    "a state that is no number": lambda p, i: p._replace(y0=_put(p.y0, i, np.nan)),
    "an infinite state": lambda p, i: p._replace(y0=_put(p.y0, i, np.inf)),
    "an argument that is no number": lambda p, i: p._replace(matrix=_put(p.matrix, i, np.nan)),
    "an overflow": lambda p, i: p._replace(growth=_put(p.growth, i, 1e308)),
    "a blow-up": lambda p, i: p._replace(growth=_put(p.growth, i, 50.0), y0=_put(p.y0, i, 1.0)),
    "too many steps": lambda p, i: p._replace(rate=_put(p.rate, i, 1e6)),
    "times that are no numbers": lambda p, i: p._replace(ts=_put(p.ts, i, np.nan)),
    "times out of order": lambda p, i: p._replace(ts=_put(p.ts, i, np.array([1.0, 3.0, 2.0, 3.0, 4.0]) + p.t0[i])),
}


def _put(values: Any, i: int, value: Any) -> Any:
    made = np.array(values)
    made[i] = value
    return made


@pytest.mark.parametrize("harm", BAD)
@given(seed=SEEDS)
@settings(max_examples=5)
def test_a_bad_sample_touches_no_other(harm: str, seed: int) -> None:
    p = problems(seed)
    i = int(np.random.default_rng(seed).integers(COUNT))
    p.ts[i] = p.t0[i] + np.linspace(0.0, 1.0, TIMES)
    found, spoilt = pool(solved, FAST[0])(p), pool(solved, FAST[0])(BAD[harm](p, i))
    assert spoilt[1][i] in (MAX_STEPS, NONFINITE, FAILED)
    assert np.isnan(spoilt[0][i]).all()
    assert_close(*(jax.tree_util.tree_map(lambda x: np.delete(x, i, 0), x) for x in (found, spoilt)), 1e-12)


# ---- derivatives

MODES = {"forward": jax.jacfwd, "checkpointed": jax.jacrev}
FREE = ("matrix", "growth", "y0", "t0", "ts")
"""What the solution is differentiated by: 19 numbers, whose Jacobian is carried along."""


def slopes(how: Settings, mode: str, p: Problem) -> Any:
    """The derivatives of a sample's solution."""

    def values(free: dict[str, Any]) -> Any:
        found = solved(how, p._replace(**free))
        return jnp.sum(jnp.sin(found[0])), found[1:]

    with default_adjoint(mode):
        return MODES[mode](values, has_aux=True)({name: getattr(p, name) for name in FREE})


def curvatures(how: Settings, outer: str, p: Problem) -> Any:
    """The second derivatives along a direction."""

    def values(x: Any) -> Any:
        moved = p._replace(growth=p.growth + x, shift=p.shift * jnp.cos(x), y0=p.y0 + 0.1 * x)
        found = solved(how, moved)
        return jnp.sum(jnp.sin(found[0])), found[1:]

    with default_adjoint("forward" if outer == "forward" else "checkpointed"):
        inner = jax.jacfwd if outer == "forward" else jax.grad
        return jax.jacfwd(inner(values, has_aux=True), has_aux=True)(0.0)


def assert_derivatives_as_alone(of: Callable[..., Any], how: Settings, mode: str, seed: int, tolerance: float) -> None:
    """Where a solve fails, whose tangent has a say in its steps, the modes differ: NaN, and zero in reverse."""
    p = mild(seed)
    (found, told), (expected, known) = pool(of, how, mode)(p), alone(of, how, "forward")(p)
    fine = np.all([told[0] == OK, *(a == b for a, b in zip(told, known, strict=True))], axis=0)
    assert fine.sum() >= (told[0] == OK).sum() - 1  # an error of just 1 may be kept here, and not there
    assert_close(*(jax.tree_util.tree_map(lambda x: x[fine], x) for x in (found, expected)), tolerance)


def mild(seed: int) -> Problem:
    """Problems whose solutions stay away from singularities, where derivatives are large without bound."""
    p = problems(seed)
    return p._replace(growth=np.minimum(p.growth, 0.0))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", [*FAST, Settings("bosh3", False)], ids=str)
@given(seed=SEEDS)
@settings(max_examples=3)
def test_derivatives_are_those_of_diffrax(how: Settings, mode: str, seed: int) -> None:
    assert_derivatives_as_alone(slopes, how, mode, seed, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("outer", ["forward", "reverse"])
@pytest.mark.parametrize("how", [FAST[0], FAST[1]], ids=str)
@given(seed=SEEDS)
@settings(max_examples=3)
def test_second_derivatives_are_those_of_diffrax(how: Settings, outer: str, seed: int) -> None:
    assert_derivatives_as_alone(curvatures, how, outer, seed, 1e-7)


def start_of(x: Any) -> Any:
    """An initial state."""
    return jnp.array([1.0, 0.5]) * jnp.cos(x)


def over_nothing(method: str, adjoint: str, x: Any, t: Any) -> Any:
    """A number of the state at the end of an empty interval."""
    with default_adjoint(adjoint):
        end = solve(lambda t, y, k: k * jnp.tanh(y) * jnp.sin(t), start_of(x), 2 * x, t0=0.3, t1=t, solver=method).y
    return jnp.sum(jnp.sin(end))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rodas5p", "tsit5"])
def test_second_derivatives_over_an_empty_interval(method: str) -> None:
    """Those of the initial state, beside a sample that takes steps."""

    def twice(t: Any) -> Any:
        forwards = jax.jacfwd(jax.jacfwd(lambda x: over_nothing(method, "forward", x, t)))
        mixed = jax.jacfwd(jax.grad(lambda x: over_nothing(method, "checkpointed", x, t)))
        return jnp.stack([forwards(0.7), mixed(0.7)])

    expected = jax.jacfwd(jax.jacfwd(lambda x: jnp.sum(jnp.sin(start_of(x)))))(0.7)
    together = jax.jit(jax.vmap(twice))(jnp.array([0.3, 0.5]))
    np.testing.assert_allclose(together[0], expected, rtol=1e-12)
    assert (np.abs(together[1] - expected) > 1e-2).all()


def test_a_tangent_costs_a_method_with_a_jacobian_few_steps() -> None:
    """That of an equation with a forcing in time: the method of order 5 needs to know how the tangent's slope changes with time."""

    def end(k: Any) -> Any:
        found = solve(lambda t, y, k: -k * y + jnp.sin(5 * t), 1.0, k, t1=3.0, solver="rodas5p", rtol=1e-8, atol=1e-8)
        return found.y, found.accepted

    _, alone = jax.jit(end)(1.0)
    with default_adjoint("forward"):
        _, beside = jax.jit(jax.jacfwd(end, has_aux=True))(1.0)
    assert beside <= 1.3 * alone


# ---- within other transformations of JAX


def decay(k: Any, w: Any = 0.5, y0: Any = 1.0) -> Any:
    """The end of y' = -k y + sin(w t)."""
    return solve(lambda t, y, a: -a[0] * y + jnp.sin(a[1] * t), y0, (k, w), t1=2.0).y


RATES, WAVES = np.array([0.1, 3.0, 1.0]), np.array([0.5, 7.0])

WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap of vmap": lambda k, w: jax.vmap(lambda k: jax.vmap(lambda w: decay(k, w))(w))(k),
    "the other way round": lambda k, w: jax.vmap(lambda w: jax.vmap(lambda k: decay(k, w))(k), out_axes=1)(w),
    "in_axes None": lambda k, w: jax.vmap(jax.vmap(decay, (None, 0, None)), (0, None, None))(k, w, 1.0),
    "vmap of scan": lambda k, w: jax.vmap(lambda k: jax.lax.scan(lambda c, w: (c, decay(k, w)), 0, w)[1])(k),
    "scan of vmap": lambda k, w: jax.lax.scan(lambda c, w: (c, jax.vmap(lambda k: decay(k, w))(k)), 0, w)[1].T,
    "map in batches": lambda k, w: jax.lax.map(lambda k: jax.vmap(lambda w: decay(k, w))(w), k, batch_size=2),
}


def by_pair(both: Any) -> Any:
    """As `decay`."""
    return decay(*both)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "jit"), [*((way, True) for way in WAYS), ("map in batches", False)])
def test_within_loops_and_batches(way: str, jit: bool) -> None:
    pairs = tuple(x.ravel() for x in np.meshgrid(RATES, WAVES, indexing="ij"))
    with jax.disable_jit(not jit):
        found = jax.jit(WAYS[way])(RATES, WAVES)
    np.testing.assert_allclose(found, alone(by_pair)(pairs).reshape(3, 2), rtol=1e-10)


def moved(k: Any) -> Any:
    """`decay` by the rate through the initial state too, which is what JAX hands on through a checkpoint."""
    return decay(0.5, 0.5, k)


SLOPES: dict[str, tuple[Callable[..., Any], int, Callable[[Any], Any]]] = {
    "vmap of grad": (decay, 1, jax.vmap(jax.grad(decay))),
    "grad of vmap": (decay, 1, jax.grad(lambda k: jnp.sum(jax.vmap(decay)(k)))),
    "vmap of checkpoint": (moved, 1, jax.vmap(jax.grad(jax.checkpoint(moved)))),
    "checkpoint of vmap": (moved, 1, jax.grad(lambda k: jnp.sum(jax.checkpoint(jax.vmap(moved))(k)))),
    "jvp of vmap": (decay, 1, lambda k: jax.jvp(jax.vmap(decay), (k,), (jnp.ones_like(k),))[1]),
    "jacrev of vmap": (decay, 1, lambda k: jnp.diag(jax.jacrev(jax.vmap(decay))(k))),
    "grad of grad": (decay, 2, jax.vmap(jax.grad(jax.grad(decay)))),
    "jacfwd of jacrev": (decay, 2, jax.vmap(jax.jacfwd(jax.jacrev(decay)))),
    "jacrev of jacfwd": (decay, 2, jax.vmap(jax.jacrev(jax.jacfwd(decay)))),
    "hessian of vmap": (decay, 2, lambda k: jnp.diag(jax.hessian(lambda k: jnp.sum(jax.vmap(decay)(k)))(k))),
}


def forwards(of: Callable[..., Any], order: int, k: Any) -> Any:
    """The derivative of an order, by the mode in which diffrax has them all."""
    for _ in range(order):
        of = jax.jacfwd(of)
    with default_adjoint("forward"):
        return of(k)


@pytest.mark.slow
@pytest.mark.parametrize("way", SLOPES)
def test_derivatives_within_batches(way: str) -> None:
    of, order, batched = SLOPES[way]
    with default_adjoint("checkpointed"):
        found = jax.jit(batched)(RATES)
    np.testing.assert_allclose(found, alone(forwards, of, order)(RATES), rtol=1e-8)


@pytest.mark.parametrize("of", [decay, jax.grad(decay), jax.jacfwd(decay)], ids=["values", "reverse", "forward"])
def test_no_samples(of: Callable[..., Any]) -> None:
    assert jax.jit(jax.vmap(of))(jnp.zeros(0)).shape == (0,)
    assert jax.vmap(lambda k: jax.vmap(lambda w: of(k, w))(WAVES))(jnp.zeros(0)).shape == (0, 2)
