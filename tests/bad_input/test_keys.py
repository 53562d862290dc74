"""Random numbers that are the same for every sample: a key captured at import is refused, a constant seed is warned about."""

from __future__ import annotations

import pytest

from engine.errors import StageError
from tests.project import Project

MODEL = """\
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.random import fold_in, normal, split

    KEY = jax.random.key(0)
    OLD = jax.random.PRNGKey(1)
    KEYS = split(KEY, 4)
    IN_NUMPY = np.asarray(OLD)
    NOISE = normal(KEY, (3,))
    PAIR = jnp.arange(2, dtype=jnp.uint32)


    def helper(x):
        return x * normal(KEY)


    def noise(x, n, key):
        return {expression}
"""
LINE = 19
CONFIG = """\
    defaults: [engine, {solver: tsit5}, _self_]
    name: case
    parameters: {x: 0.5, n: 1}
    stages: {noise: {_target_: model.noise}}
    sweep: {axes: {x: [0.1, 0.2]}}
"""
CAPTURED = {
    "typed": "x + normal(KEY)",
    "old": "x + normal(OLD)",
    "numpy": "x + normal(IN_NUMPY)",
    "split": "x + normal(split(KEY)[0])",
    "split of the old kind": "x + normal(split(OLD)[0])",
    "fold of a number": "x + normal(fold_in(KEY, 3))",
    "gamma": "x + jax.random.gamma(KEY, 2.0)",
    "poisson": "x + jax.random.poisson(KEY, x)",
    "vmap": "x + jax.vmap(normal)(KEYS).sum()",
    "jit": "jax.jit(lambda x: x + normal(KEY))(x)",
    "checkpoint": "jax.checkpoint(lambda x: x + normal(KEY))(x)",
    "grad": "jax.grad(lambda x: x * normal(KEY))(x)",
    "fori_loop": "jax.lax.fori_loop(0, 3, lambda i, s: s + normal(fold_in(KEY, i)), x)",
    "scan": "jax.lax.scan(lambda c, _: ((split(c[0])[0], c[1] + normal(c[0])), None), (KEY, x), None, length=3)[0][1]",
    "while_loop": "jax.lax.while_loop(lambda s: s < 3, lambda s: s + jax.random.uniform(KEY), x)",
    "cond": "jax.lax.cond(x > 0, lambda: normal(KEY), lambda: 0.0)",
}
FINE = {
    "key": "x + normal(key)",
    "split": "x + normal(split(key)[1])",
    "fold": "x + normal(fold_in(key, 7))",
    "old kind": "x + normal(jax.random.key_data(key))",
    "swept seed": "x + normal(jax.random.key(n))",
    "swept seed of the old kind": "x + normal(jax.random.PRNGKey(n))",
    "fold of a parameter": "x + normal(fold_in(KEY, n))",
    "choice of a key": "x + normal(KEYS[n])",
    "drawn on import": "x + NOISE.sum()",
    "captured and not drawn from": "(x, split(KEY))[0]",
    "integers that are no key": "x + normal(fold_in(key, PAIR[1])) + PAIR.sum()",
    "loop": "jax.lax.fori_loop(0, 3, lambda i, s: s + normal(fold_in(key, i)), x)",
}


def write(project: Project, expression: str) -> Project:
    return project.model(MODEL.replace("{expression}", expression)).yaml(CONFIG)


@pytest.mark.parametrize("case", CAPTURED)
def test_a_captured_key_is_refused(project: Project, case: str) -> None:
    with pytest.raises(StageError) as caught:
        write(project, CAPTURED[case]).load()
    message = str(caught.value)
    assert message.startswith(
        "`stages.noise` must draw from the key of its sample, but it draws from a PRNG key that was made when"
    )
    assert f"model.py:{LINE}: return " in message
    assert "Take an argument called `key`" in message
    assert len(caught.value.problems) == 1


def test_a_captured_key_is_refused_without_a_sweep_too(project: Project) -> None:
    with pytest.raises(StageError, match="made when its module was imported"):
        write(project, "x + normal(KEY)").load("sweep.axes={}")


def test_the_line_of_a_helper_is_shown(project: Project) -> None:
    with pytest.raises(StageError, match=r"`stages\.noise` must(.|\n)*model\.py:15: return x \* normal\(KEY\)"):
        write(project, "helper(x)").load()


@pytest.mark.parametrize("case", FINE)
def test_numbers_of_the_sample_are_fine(project: Project, case: str) -> None:
    assert write(project, FINE[case]).load("sweep.axes={x: [0.1, 0.2], n: [1, 2]}").warnings == ()


@pytest.mark.parametrize("seed", ["jax.random.key(0)", "jax.random.PRNGKey(0)", "fold_in(jax.random.key(3), 1)"])
def test_a_constant_seed_is_warned_about(project: Project, seed: str) -> None:
    write(project, f"x + normal({seed})")
    (warning,) = project.load().warnings
    assert warning.startswith(
        "`stages.noise` should draw from the key of its sample, but draws from one of a constant seed"
    )
    assert f"(model.py:{LINE}): the same numbers for every sample. Take an argument called `key`" in warning
    assert project.load("sweep.axes={}").warnings == ()


def test_every_stage_is_told(project: Project) -> None:
    project.model(MODEL.replace("{expression}", "x + normal(KEY)")).yaml(
        CONFIG.replace("{noise:", "{second: {_target_: model.helper}, noise:")
    )
    with pytest.raises(StageError) as caught:
        project.load()
    assert sorted(p.split("`")[1] for p in caught.value.problems) == ["stages.noise", "stages.second"]


def test_a_key_that_another_stage_hands_on(project: Project) -> None:
    """No stage by itself does both: the one in which the numbers are drawn is named."""
    project.model("""\
        import jax

        KEY = jax.random.key(0)


        def keys():
            return KEY


        def noise(x, keys):
            return x + jax.random.normal(keys)
    """).yaml(CONFIG.replace(", n: 1", "").replace("{noise:", "{keys: {_target_: model.keys}, noise:"))
    with pytest.raises(StageError, match=r"`stages\.noise` must draw(.|\n)*model\.py:11"):
        project.load()
