"""Rodas5P, a Rosenbrock method of order 5 for stiff problems: eight linear solves with one matrix, and no iteration.

With h the step, J the Jacobian at its begin and M the mass matrix, the stages k_i of a step are those of

    (M / gamma - h J) k_i = h f(t + c_i h, y + sum_j a_ij k_j) + M sum_j C_ij k_j + d_i h^2 df/dt.

The method is A-stable and stiffly accurate, also in its embedded one of order 4, and so solves equations without a derivative
(rows of M that are zero) too. Between steps it is a polynomial of order 4.

Vectors have the components as their first axis, matrices as their first two; axes after those are lanes, which are independent.

Sources: G. Steinebach, "Construction of Rosenbrock-Wanner method Rodas5P and numerical benchmarks within the Julia Differential Equations
package", BIT Numer. Math. 63:27 (2023); E. Hairer and G. Wanner, Solving ODEs II, 2nd edition, Springer (1996), IV.7 and VI.4.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

tree_map = jax.tree_util.tree_map

GAMMA = 0.21193756319429014

A = (
    (),
    (3.0,),
    (2.849394379747939, 0.45842242204463923),
    (-6.954028509809101, 2.489845061869568, -10.358996098473584),
    (2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641),
    (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946),
    (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946, 1.0),
    (-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946, 1.0, 1.0),
)
"""Weights of earlier stages in the state of each; the next one would be the state after the step."""

C = (
    (),
    (-14.155112264123755,),
    (-17.97296035885952, -2.859693295451294),
    (147.12150275711716, -1.41221402718213, 71.68940251302358),
    (165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306),
    (24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471),
    (30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783, -19.097331116725623, -28.087943162872662),
    (37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047, -40.06618937091002, -54.66780262877968,
     -9.48861652309627),
)  # fmt: skip
"""Weights of earlier stages, times M, on the right side."""

NODES = (0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664, 1.0, 1.0, 1.0)
"""Times of the stages, as parts of the step."""

OF_TIME = (
    0.21193756319429014, -0.42387512638858027, -0.3384627126235924, 1.8046452872882734, 2.325825639765069, 0.0, 0.0, 0.0,
)  # fmt: skip
"""Weights of the derivative by time."""

A_ROWS, C_ROWS = (np.array([(*row, *[0.0] * (8 - len(row))) for row in rows]) for rows in (A, C))

DENSE = (
    (25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204, 0.524948541321073, 1.1241088310450404,
     0.4272876194431874, -0.17202221070155493),
    (-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796, 20.176138334709044, 15.98066361424651,
     -6.789040303419874, -6.710236069923372),
    (11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643, -52.072871366152654, -59.78993625266729,
     -0.15582684282751913, 4.883087185713722),
)  # fmt: skip
"""Weights of the stages in the polynomial between two states."""

PLAIN = 12
"""Up to so many components the elimination is written out: LAPACK costs more to call, once for each sample of a batch."""


FEW = 4
"""Up to so many, its loop is unrolled: that takes less time to run, and with more of them long to compile."""


class Stepped(NamedTuple):
    """One step."""

    y: Any
    error: Any
    """Its last stage, in which it differs from the embedded method; infinite where the matrix is singular."""

    dense: tuple[Any, Any, Any]
    """What `between` needs."""


def step(rate: Callable[[Any, Any], Any], y: Any, mass: Any = None, pair: bool = False) -> Stepped:
    """One step of Rodas5P.

    Args:
        rate: the size of the step times the slope, of the part of the step that has passed (a number) and a vector.
        y: the state at the begin of the step, (n, ...).
        mass: the mass matrix, (n, n), or its diagonal, (n,); None for the unit matrix.
        pair: whether the second half of the state does not act on the first, and moves by the Jacobian of the first: a tangent. Then
            one matrix, of the first half, does for both.

    Returns:
        The state after it, the error, and what is needed to interpolate.
    """
    n = y.shape[0] // 2 if pair else y.shape[0]
    by_time, columns = _derivatives(rate, y, n)
    weighted = _times(mass)
    factors, matrix = factored(_shifted(columns[:n], mass))
    clock = jnp.asarray(NODES, jnp.result_type(float))
    rows = jnp.asarray(A_ROWS, y.dtype), jnp.asarray(C_ROWS, y.dtype), clock, jnp.asarray(OF_TIME, y.dtype)

    def stage(stages: Any, row: Any) -> tuple[Any, None]:
        a, c, node, of_time, place = row
        inside = lax.optimization_barrier(y + _sum(a, stages))  # or XLA computes it anew for each use
        right = rate(node, inside) + of_time * by_time + weighted(_sum(c, stages))
        if pair:
            first = solved(matrix, factors, right[:n])
            found = jnp.concatenate([first, solved(matrix, factors, right[n:] + product(columns[n:], first))])
        else:
            found = solved(matrix, factors, right)
        return lax.dynamic_update_index_in_dim(stages, found, place, 0), None

    begun = jnp.zeros((len(NODES), *y.shape), y.dtype)
    stages, _ = lax.scan(stage, begun, (*rows, jnp.arange(len(NODES))))
    after = y + _sum((*A[-1], 1.0), stages)
    dense = tuple(_sum(row, stages) for row in DENSE)
    return Stepped(
        jnp.where(factors.regular, after, jnp.nan),
        jnp.where(factors.regular, stages[-1], jnp.inf),
        (dense[0], dense[1], dense[2]),
    )


def between(part: Any, before: Any, after: Any, dense: Sequence[Any]) -> Any:
    """The state after a part of a step, a number from 0 to 1."""
    rest = 1 - part
    return rest * before + part * (after + rest * (dense[0] + part * (dense[1] + part * dense[2])))


def _derivatives(rate: Callable[[Any, Any], Any], y: Any, n: int) -> tuple[Any, Any]:
    """The derivative of the rate at the begin of a step by the part of the step, and those by the first n components."""
    units = jnp.eye(n + 1, y.shape[0], -1, dtype=y.dtype).reshape(n + 1, y.shape[0], *[1] * (y.ndim - 1))
    directions = jnp.broadcast_to(units, (n + 1, *y.shape))  # the first one is of time alone
    clock = jnp.zeros(n + 1, jnp.result_type(float)).at[0].set(1)
    begin = jnp.zeros((), clock.dtype)
    along = jax.vmap(lambda dt, dy: jax.jvp(rate, (begin, y), (dt, dy))[1], out_axes=1)(clock, directions)
    along = lax.optimization_barrier(along)
    return along[:, 0], along[:, 1:]


def _sum(weights: Any, terms: Any) -> Any:
    """A weighted sum."""
    return functools.reduce(operator.add, [weights[j] * terms[j] for j in range(len(weights))])


def _times(mass: Any) -> Callable[[Any], Any]:
    """What multiplies a vector by the mass matrix."""
    if mass is None:
        return lambda x: x
    if mass.ndim == 1:
        return lambda x: mass.reshape(-1, *[1] * (x.ndim - 1)) * x
    return lambda x: jnp.tensordot(mass, x, 1)


def _shifted(slope: Any, mass: Any) -> Any:
    """M / gamma - h J."""
    n = slope.shape[0]
    unit = jnp.eye(n, dtype=slope.dtype)
    matrix = unit if mass is None else unit * mass[:, None] if mass.ndim == 1 else mass
    return (matrix / GAMMA).reshape(n, n, *[1] * (slope.ndim - 2)) - slope


class Factors(NamedTuple):
    """A matrix as L^-1 P and U, whose product with its inverse is the unit matrix; or, of a large one, LAPACK's factors."""

    lower: Any
    upper: Any
    inverse: Any
    """Of the diagonal of U."""

    regular: Any
    """Whether no pivot is zero, or no number."""


def factored(matrix: Any) -> tuple[Factors, Any]:
    """The factors of a matrix by elimination with partial pivoting, which have no derivative, and the matrix, which has."""
    still = lax.stop_gradient(matrix)
    n = still.shape[0]
    if n > PLAIN and still.ndim == 2:
        both, _, order = lax.linalg.lu(still)
        pivots = jnp.diagonal(both)
        return Factors(both, order, pivots, jnp.all(jnp.isfinite(pivots) & (pivots != 0))), matrix
    unit = jnp.broadcast_to(jnp.eye(n, dtype=still.dtype).reshape(n, n, *[1] * (still.ndim - 2)), still.shape)
    both = _eliminated(jnp.concatenate([still, unit], 1))
    pivots = jnp.stack([both[k, k] for k in range(n)])
    regular = functools.reduce(jnp.logical_and, [jnp.isfinite(p) & (p != 0) for p in pivots])
    return Factors(both[:, n:], both[:, :n], 1 / jnp.where(regular, pivots, 1), regular), matrix


def _eliminated(rest: Any) -> Any:
    """Rows with zeros below the diagonal of the first n columns, by row operations with partial pivoting."""
    n = rest.shape[0]
    places = jnp.arange(n).reshape(n, *[1] * (rest.ndim - 2))

    def column(k: Any, rest: Any) -> Any:
        size = jnp.where(places >= k, jnp.abs(rest[:, k]), -1)
        place, largest = jnp.zeros(size.shape[1:], places.dtype), size[0]
        for i in range(1, n):  # not argmax, which is not computed for several lanes at once
            place, largest = jnp.where(size[i] > largest, i, place), jnp.maximum(size[i], largest)
        place = lax.optimization_barrier(place)
        row = rest[0]
        for i in range(1, n):
            row = jnp.where(place == i, rest[i], row)
        rest = jnp.where((places == place)[:, None], rest[k], rest)  # the two rows change places
        rest = rest - jnp.where(places > k, rest[:, k] / row[k], 0)[:, None] * row
        return jnp.where(places[:, None] == k, row, rest)

    found: Any = lax.fori_loop(0, n, column, rest, unroll=n <= FEW)
    return found


def product(matrix: Any, vector: Any) -> Any:
    """A matrix times a vector, for each lane."""
    if matrix.ndim == 2 and matrix.shape[1] > PLAIN:
        return matrix @ vector
    return functools.reduce(operator.add, [matrix[:, j] * vector[j] for j in range(matrix.shape[1])])


def solved(matrix: Any, factors: Factors, right: Any) -> Any:
    """matrix^-1 right. Its derivatives are solves with the same factors: the elimination is not differentiated."""
    found: Any = lax.custom_linear_solve(
        lambda x: product(matrix, x),
        right,
        lambda _, b: _substituted(factors, b),
        lambda _, b: _substituted(factors, b, transposed=True),
    )
    return found


def _substituted(factors: Factors, right: Any, transposed: bool = False) -> Any:
    """The solution for a right side by its factors, of the matrix or of its transpose."""
    n = right.shape[0]
    if n > PLAIN and right.ndim == 1:
        both, order = factors.lower, factors.upper
        halves: Any = ({"lower": True, "unit_diagonal": True}, {"lower": False})
        found = (right if transposed else right[order])[:, None]
        for half in halves[::-1] if transposed else halves:
            found = lax.linalg.triangular_solve(both, found, left_side=True, transpose_a=transposed, **half)
        return found[jnp.argsort(order) if transposed else slice(None), 0]
    right = lax.optimization_barrier(right)  # or XLA computes it anew for each component
    rest = right if transposed else lax.optimization_barrier(product(factors.lower, right))
    rows = jnp.swapaxes(factors.upper, 0, 1) if transposed else factors.upper
    found = [None] * n
    for k in range(n) if transposed else reversed(range(n)):
        found[k] = rest[k] * factors.inverse[k]
        rest = rest - rows[:, k] * found[k]  # what has been found already is not looked at again
    return product(jnp.swapaxes(factors.lower, 0, 1), found) if transposed else jnp.stack(found)


def vector(tree: Any, lanes: int = 0) -> tuple[Any, Callable[[Any], Any]]:
    """A pytree as a vector whose last axes are lanes, and what makes a pytree of a vector again."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    shapes = [leaf.shape[: leaf.ndim - lanes] for leaf in leaves]
    dtypes = [leaf.dtype for leaf in leaves]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])

    def whole(joined: Any) -> Any:
        parts = [joined[end - int(np.prod(shape)) : end] for shape, end in zip(shapes, ends, strict=True)]
        leaves = [
            part.reshape(*shape, *part.shape[1:]).astype(dtype)
            for part, shape, dtype in zip(parts, shapes, dtypes, strict=True)
        ]
        return jax.tree_util.tree_unflatten(structure, leaves)

    return _joined(tree, lanes), whole


def _joined(tree: Any, lanes: int = 0) -> Any:
    """The numbers of a pytree as one vector."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]
    return jnp.concatenate([leaf.reshape(-1, *leaf.shape[leaf.ndim - lanes :]) for leaf in leaves])


class Polynomial(diffrax.AbstractLocalInterpolation):
    """The state within one step, of order 4."""

    t0: Any  # type: ignore[misc]
    t1: Any  # type: ignore[misc]
    y0: Any
    y1: Any
    dense: Any

    def evaluate(self, t0: Any, t1: Any = None, left: bool = True) -> Any:
        """The state at a time, or the difference of those at two times."""
        if t1 is not None:
            return tree_map(operator.sub, self.evaluate(t1), self.evaluate(t0))
        part = (t0 - self.t0) / jnp.where(self.t1 == self.t0, 1, self.t1 - self.t0)
        return tree_map(lambda a, b, *k: between(part.astype(a.dtype), a, b, k), self.y0, self.y1, *self.dense)


class Rodas5P(diffrax.AbstractAdaptiveSolver[None]):
    """Rodas5P for diffrax: of a vector field M y' = f(t, y, args), in any pytree of real arrays."""

    mass: Any = None
    """Of `ops.mass_matrix`, with M for the state as one vector; None for the unit matrix."""

    pair: bool = False
    """Whether the state is (y, w) with w' = (df/dy) w + g(t, y): the matrix of y does for w."""

    atol: float | None = None
    """Where the vector field jumps, algebraic equations are solved anew to this tolerance; None where it does not jump."""

    term_structure: ClassVar[Any] = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Callable[..., Any]] = Polynomial

    def order(self, terms: Any) -> int:
        """The power of the step with which the error falls."""
        return 5

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any) -> None:
        """Nothing is kept from one step to the next."""

    def func(self, terms: Any, t0: Any, y0: Any, args: Any) -> Any:
        """The slope."""
        if self.mass is None:
            return terms.vf(t0, y0, args)
        slope = self.mass.slope(terms.vf, t0, y0, args)
        return tree_map(lambda a, b: jnp.where(jnp.isfinite(a), a, b), slope, terms.vf(t0, y0, args))

    def step(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any, solver_state: Any, made_jump: Any) -> Any:
        """A step: the state after it, the error, what is needed to interpolate, and that nothing went wrong."""
        if self.atol is not None:
            anew: Callable[[Any], Any] = lambda y: self.mass.consistent(terms.vf, t0, y, args, self.atol, True)[0]  # noqa: E731
            y0 = lax.cond(made_jump, anew, lambda y: y, y0)
        before, whole = vector(y0)
        size = terms.contr(t0, t1).astype(before.dtype)

        def rate(part: Any, y: Any) -> Any:
            return size * _joined(terms.vf(t0 + part * (t1 - t0), whole(y), args)).astype(y.dtype)

        found = step(rate, before, None if self.mass is None else self.mass.matrix, self.pair)
        after = whole(found.y)
        dense = {"y0": y0, "y1": after, "dense": tuple(whole(k) for k in found.dense)}
        return after, whole(found.error), dense, None, diffrax.RESULTS.successful


def step_of_lanes(field: Any, t: Any, size: Any, h: Any, y: Any, pair: bool) -> tuple[Any, Any, tuple[Any, Any, Any]]:
    """One step in each lane of a pool.

    Args:
        field: of time and state, in all lanes at once.
        t: where each lane is, in the direction of integration, (lanes,).
        size: of its step, (lanes,).
        h: the same with the direction of time.
        y: its state, any pytree of arrays with the lanes as the last axis.
        pair: as for `step`.

    Returns:
        The state after the step, the error, and what `between` needs.
    """
    before, whole = vector(y, 1)
    h = h.astype(before.dtype)

    def rate(part: Any, y: Any) -> Any:
        return h * _joined(field(t + part * size, whole(y)), 1).astype(y.dtype)

    found = step(rate, before, None, pair)
    a, b, c = map(whole, found.dense)
    return whole(found.y), whole(found.error), (a, b, c)
