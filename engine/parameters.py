"""The config's `parameters` → named arrays, and the pytrees that they make up.

In: numbers, nested lists, mappings of them, nodes with `_target_`. Out: `Parameters`: each array by its dotted name, which is what a
sweep, a derivative and a store speak of, and each parameter's structure, with a reference in the place of each array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from engine import values
from engine.config import Config
from engine.errors import PipelineError, PlanError, listed, nearest
from engine.references import Reference, flat, repeated, under
from engine.targets import build_node, check_nodes, make_importable

if TYPE_CHECKING:
    from engine.designs import Design


@dataclass(frozen=True, eq=False)
class Parameters:
    """What can be swept and differentiated, by dotted name, and how it is put together. Static."""

    nominal: Mapping[str, Any]
    """`rates.a` -> its nominal value: a number, a nested list, an array."""

    trees: Mapping[str, Any]
    """`rates` -> the parameter as a pytree of `Reference`s; what is no number in it stands there itself."""

    built: Mapping[str, str] = field(default_factory=dict)
    """Of each array that a `_target_` made, the name of what it made."""

    def refer(self, reference: Reference) -> Any:
        """The pytree of references to the parameters at or below a dotted name.

        Raises:
            values.PathError: the path leads nowhere.
        """
        if str(reference) in self.nominal:
            return Reference(str(reference))
        found = self.trees[reference.root]
        for depth, part in enumerate(reference.path):
            if isinstance(found, Reference):
                return Reference(found.root, reference.path[depth:])
            found = values.take(found, (part,))
        return found

    def continuous(self, name: str) -> list[str]:
        """The names at or below `name` that a derivative can be taken by: of what a `_target_` made, the real floating-point arrays.

        What is written as an integer is made a float, for it may stand for a number; an array of integers indexes.
        """
        return [
            other
            for other in under(name, self.nominal)
            if other not in self.built or np.asarray(self.nominal[other]).dtype.kind == "f"
        ]

    def beside(self, name: str) -> list[str]:
        """The names of the arrays that were made together with this one, by one `_target_`."""
        whole = self.built.get(name)
        return [other for other, made in self.built.items() if made == whole]

    def flat(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values by dotted name, from names, nested mappings, or pytrees of a parameter's structure.

        Raises:
            PlanError: a name is none of a parameter or is given twice, or a pytree has an array that the parameter lacks.
        """
        found: dict[str, Any] = {}
        twice = repeated(given, self.nominal)
        for name, value in flat(given, self.nominal).items():
            inside = {name: value}
            unknown = None if (below := under(name, self.nominal)) else name
            if name not in self.nominal:
                inside = {".".join((name, *path)): leaf for path, leaf in values.leaves(value)} if below else {}
            for full, leaf in inside.items():
                if full in self.nominal:
                    twice += [full] * (full in found)
                    found[full] = leaf
                elif is_parameter(leaf):
                    unknown = full
            if unknown:
                raise PlanError(
                    f"`parameters` must be names of the config's parameters, but {unknown!r} is none."
                    f"{nearest(unknown, self.nominal)} There are {listed(self.nominal)}."
                )
        if twice:
            raise PlanError(f"`parameters` must be given once each, but {twice[0]!r} stands there twice. Remove one.")
        return found


def read_parameters(config: Config) -> Parameters:
    """Take the parameters apart, after building those that a `_target_` makes.

    Raises:
        PipelineError: a node cannot be built, or gives no pytree of finite arrays with plain names.
    """
    nominal: dict[str, Any] = {}
    trees: dict[str, Any] = {}
    built: dict[str, str] = {}
    problems: list[str] = []
    for name, node in config.settings.parameters.items():
        trees[name] = expand(name, node, config, nominal, built, problems)
    if problems:
        raise PipelineError(problems)
    return Parameters(nominal, trees, built)


def rebuilt_otherwise(config: Config, parameters: Parameters) -> list[str]:
    """A problem for each parameter that a `_target_` makes anew with other numbers: no run would find its store again."""
    again = read_parameters(config)
    differ = [
        name
        for name in parameters.built
        if not np.array_equal(parameters.nominal[name], again.nominal.get(name, np.nan))
    ]
    return [
        f"`parameters.{made}` must be made alike each time, but {next(n for n in differ if parameters.built[n] == made)} "
        "differs when it is made again. Draw with jax.random.key(seed), with the seed in the node."
        for made in dict.fromkeys(parameters.built[name] for name in differ)
    ]


def expand(
    name: str, node: Any, config: Config, nominal: dict[str, Any], built: dict[str, str], problems: list[str]
) -> Any:
    """A parameter as a pytree of references, whose values are added to `nominal`."""
    if isinstance(node, Mapping) and "_target_" in node:
        tree = build_tree(name, node, config, problems)
        found = dict(take_apart(name, tree, problems))
        nominal.update(found)
        built.update(dict.fromkeys(found, name))
        return referring(name, tree, found)
    if isinstance(node, Mapping):
        return {key: expand(f"{name}.{key}", child, config, nominal, built, problems) for key, child in node.items()}
    if isinstance(node, list) and any(isinstance(child, Mapping) for child in node):
        return [expand(f"{name}.{i}", child, config, nominal, built, problems) for i, child in enumerate(node)]
    nominal[name] = node
    return Reference(name)


def build_tree(name: str, node: Mapping[str, Any], config: Config, problems: list[str]) -> Any:
    """What a node makes; an empty dict, and a problem, if it cannot."""
    key = f"parameters.{name}"
    make_importable(config.folder)
    before = len(problems)
    check_nodes(key, node, config.folder, problems)
    tree = None if len(problems) > before else build_node(key, dict(node), problems)
    if len(problems) > before:
        return {}
    values.register_dataclasses(tree)
    try:
        changed = changed_by_itself(tree)
    except Exception as error:  # whatever a class raises, or keys that cannot be sorted
        said = str(error).strip().splitlines() or [type(error).__name__]
        problems.append(
            f"`{key}` must be built into a pytree that JAX can take apart and put together, but of what {node['_target_']} gives JAX "
            f"says: {said[0]} Return a dict whose keys are all text, a dataclass or an equinox module."
        )
        return {}
    if changed is not None:
        problems.append(
            f"`{key}` must be a pytree that is the same when it is taken apart and put together, but {'.'.join((name, *changed))} "
            "changes. Let `tree_unflatten` set the fields without computing them again (object.__new__)."
        )
        return {}
    if not any(is_parameter(leaf) for _, leaf in values.leaves(tree)):
        problems.append(
            f"`{key}` must be built into a pytree with at least one array or float, but {node['_target_']} gives "
            f"{values.in_words(tree)}. Return a dict, a dataclass or an equinox module, or move the node to the stage that takes it."
        )
        return {}
    problems += [
        f"`{key}` must be built of fields that are given, but {kind} computes {field!r} from the others when it is made, and would "
        f"keep it while they are swept. Make {field} a property, or compute it in a stage."
        for kind, field in computed_fields(tree)
    ]
    return tree


def changed_by_itself(tree: Any) -> tuple[str, ...] | None:
    """The path of an array or float that becomes another one when its class is put together again of the same parts."""
    parts, structure = jax.tree_util.tree_flatten(tree)
    again = dict(values.leaves(jax.tree_util.tree_unflatten(structure, parts)))
    for path, leaf in values.leaves(tree):
        if is_parameter(leaf) and not np.array_equal(leaf, again.get(path), equal_nan=True):
            return path
    return None


def computed_fields(node: Any) -> Iterator[tuple[str, str]]:
    """Dataclasses in a pytree with arrays or floats of which some are given and others computed: kind and computed field."""
    inside = values.children(node)
    if dataclasses.is_dataclass(node):
        numeric = [
            f
            for f in dataclasses.fields(node)
            if any(is_parameter(leaf) for _, leaf in values.leaves(inside.get(f.name)))
        ]
        if any(f.init for f in numeric):
            yield from ((type(node).__name__, f.name) for f in numeric if not f.init)
    for child in inside.values():
        yield from computed_fields(child)


def take_apart(name: str, tree: Any, problems: list[str]) -> Iterator[tuple[str, Any]]:
    """The arrays and floats of a pytree with their dotted names; the rest is part of the program."""
    seen = set()
    for path, leaf in values.leaves(tree):
        if not is_parameter(leaf):
            continue
        full = ".".join((name, *path))
        if full in seen or any(not part or set(part) & set("./") for part in path):
            problems.append(
                f"`parameters.{name}` must have plain names inside, each once, but holds {full!r}. "
                "Rename its keys, without dots and slashes."
            )
        elif not np.isfinite(leaf).all():
            problems.append(f"`parameters.{full}` must be finite, but is not. Let its `_target_` return finite values.")
        seen.add(full)
        array = np.asarray(leaf)
        yield full, array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16 and its like


def referring(name: str, tree: Any, found: Mapping[str, Any]) -> Any:
    """A pytree with references to the arrays that were found in it."""
    names = iter([".".join((name, *path)) for path, _ in values.leaves(tree)])
    return values.outline(lambda leaf: Reference(full) if (full := next(names)) in found else leaf, tree)


def is_parameter(leaf: Any) -> bool:
    """Whether a leaf of a built pytree is a parameter: an array of numbers or a float. Keys, integers and functions are not."""
    if values.is_array(leaf):
        return np.dtype(leaf.dtype).kind in "biufcV" if not values.is_key(leaf.dtype) else False
    return isinstance(leaf, float | complex)


def has_nodes(node: Any) -> bool:
    """Whether a `_target_` makes a part of what is written."""
    children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    return (isinstance(node, Mapping) and "_target_" in node) or any(map(has_nodes, children))


def as_parameter(name: str, value: Any, points: Design, wrt: set[str], precision: str) -> np.ndarray[Any, Any]:
    """A nominal value in the dtype in which the parameter is computed.

    Integers stay integers, unless the sweep or a derivative makes the parameter continuous.
    """
    array = np.asarray(value)
    kind = array.dtype.kind
    if name in points.columns:
        kind = max(kind, points.columns[name].dtype.kind, key="biufc".index)
    if name in wrt:
        kind = max(kind, "f", key="biufc".index)
    wide = precision == "float64"
    dtype = {"b": np.bool_, "i": np.int64 if wide else np.int32, "u": np.int64 if wide else np.int32}.get(kind)
    if dtype is None:
        names = {"f": ("float32", "float64"), "c": ("complex64", "complex128")}
        dtype = np.dtype(names[kind][wide]).type
    with np.errstate(over="ignore"):
        for key, values_given in (
            (f"parameters.{name}", array),
            (f"sweep.axes.{name}", points.columns.get(name, array)),
        ):
            check_fits(key, np.asarray(values_given), np.dtype(dtype))
        return array.astype(dtype)


def widened(
    written: Mapping[str, Any], computed: Mapping[str, np.ndarray[Any, Any]], points: Design, wrt: Mapping[str, str]
) -> dict[str, str]:
    """Why parameters are floats though they are written as integers.

    Args:
        written: the nominal values as they are written.
        computed: the same as they are computed.
        points: of the sweep.
        wrt: parameter -> where the config asks for a derivative by it.
    """
    found = {}
    for name, value in computed.items():
        if np.asarray(written[name]).dtype.kind not in "iub" or value.dtype.kind in "iub":
            continue
        if name in points.columns and points.columns[name].dtype.kind not in "iub":
            found[name] = f"{points.source(name)} holds floats"
        else:
            found[name] = f"`{wrt[name]}` names it"
    return found


def check_fits(key: str, given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> None:
    """A value must not overflow in the precision in which it is computed.

    Raises:
        PlanError: one does.
    """
    if dtype.kind in "iu" and given.dtype.kind in "iuf":
        limits = np.iinfo(dtype)
        bad = (given < limits.min) | (given > limits.max)
    elif dtype.kind in "fc":
        bad = np.isfinite(given) & ~np.isfinite(given.astype(dtype))
    else:
        return
    if bad.any():
        raise PlanError(
            f"`{key}` must fit {dtype.name}, but holds {given[bad].flat[0]}. Write precision: float64, or scale the parameter."
        )
