"""The settings a config may hold, typed and strict: the YAML tree and the class tree mirror each other.

In: the composed config as plain data. Out: a frozen `Settings`, or every problem at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from engine.errors import ConfigError, listed, nearest
from engine.ranges import misdeclared

UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86_400}
IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")


def read_bytes(value: object) -> object:
    """`"2 GiB"` or a number of bytes -> bytes."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+(?:e\d+)?)\s*([a-zA-Z]+)\s*", value)):
        number, unit = match.groups()
        if unit.lower() in UNITS:
            return int(float(number) * UNITS[unit.lower()])
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_seconds(value: object) -> object:
    """`"10 min"` or a number of seconds -> seconds."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+(?:e[-+]?\d+)?)\s*([a-zA-Z]+)\s*", value)):
        number, unit = match.groups()
        if unit.lower() in SECONDS:
            return float(number) * SECONDS[unit.lower()]
    return value


def read_count(value: object) -> object:
    """`1e3` is the count 1000: YAML reads scientific notation as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_outputs(value: object) -> object:
    """A list of references, or a mapping whose values may be bare references -> a mapping of nodes."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {item: {"from": item} for item in value}
    if isinstance(value, dict):
        return {name: {"from": node} if isinstance(node, str) else node for name, node in value.items()}
    return value


def read_names(value: object) -> object:
    """One name, or a list of names -> a list."""
    return [value] if isinstance(value, str) else value


def read_variables(value: object) -> object:
    """A list of names, or a mapping whose values may be null or a start alone -> a mapping of nodes."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return {item: {} for item in value}
    if isinstance(value, dict):
        return {name: {} if node is None else node for name, node in value.items()}
    return value


Count = Annotated[int, BeforeValidator(read_count), Field(gt=0)]


class Node(BaseModel):
    """A part of the config. Static: frozen, compares by value; unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Output(Node):
    """A value to store, one for each sample."""

    source: str = Field(alias="from", description="a reference such as stage.field")
    dims: list[str] | None = Field(None, description="a list of dimension names, one for each axis of the value")
    units: str | None = Field(None, description="text, such as 'm/s'")
    description: str | None = Field(None, description="text")
    length: str | None = Field(
        None, description="the name of an output, an integer: how many entries of the first axis hold a value"
    )
    max_abs: float | None = Field(None, gt=0, lt=math.inf, description="a positive number, or null")
    """A sample in which the value is larger, with either sign, fails with the status nonfinite."""


class Sweep(Node):
    """The points at which the pipeline is evaluated; `engine.designs` reads what stands in the axes."""

    design: Literal["grid", "zip", "latin_hypercube", "sobol", "halton", "random", "table"] = "grid"
    axes: dict[str, Any] = Field(default_factory=dict, description="a mapping from parameter to its axis")
    samples: Any = None
    replicates: Any = 1
    table: str | None = Field(None, description="the path of a CSV file")


class Derivative(Node):
    """A derivative of an output, stored for each sample as `name.parameter`."""

    of: str = Field(description="the name of an output")
    wrt: Annotated[list[str], BeforeValidator(read_names), Field(min_length=1)] = Field(
        description="a list of parameters"
    )
    kind: Literal["gradient", "jacobian", "hessian", "jvp", "vjp", "hvp"] = "gradient"
    mode: Literal["auto", "forward", "reverse"] = "auto"
    order: Count | None = Field(None, description="a positive integer")
    direction: Any = None


class DesignVariable(Node):
    """A parameter that a search may change. Bounds, start and values are in the parameter's own units."""

    start: Any = None
    bounds: Any = None
    scale: Literal["auto", "linear", "log"] = "auto"
    integer: Literal["enumerate"] | None = Field(None, description="'enumerate', or null")
    values: list[Any] | None = Field(None, description="a list of the values that may be taken")


class Limit(Node):
    """What an output must satisfy at the optimum, each element of an array."""

    min: float | None = Field(None, description="a number")
    max: float | None = Field(None, description="a number")
    equals: float | None = Field(None, description="a number")


class Optimize(Node):
    """A design problem: what to minimize, over which variables, under which constraints, and how to search.

    `engine.problem` reads it against the traced pipeline.
    """

    minimize: str | None = Field(None, description="the name of an output")
    maximize: str | None = Field(None, description="the name of an output")
    variables: Annotated[dict[str, DesignVariable], BeforeValidator(read_variables), Field(min_length=1)] = Field(
        description="a mapping from parameter to {start, bounds, scale}"
    )
    constraints: dict[str, Limit] = Field(
        default_factory=dict, description="a mapping from output to {min, max} or {equals}"
    )
    over: Literal["sweep"] | None = Field(None, description="'sweep', or null")
    reduce: Any = None
    allow_failed: float = Field(0.0, ge=0, lt=1, description="a part from 0 to 1")
    """With `over`: the part of the sweep's samples that may fail in an evaluation, and are left out of it."""
    method: Any = None
    max_steps: Count = Field(200, description="a positive integer")
    """Evaluations of the objective and its gradient that a search may take."""
    tolerance: float = Field(1e-8, gt=0, lt=1, description="a number between 0 and 1")
    """Of the projected gradient in scaled variables; see `engine.certificate`."""
    max_bad_steps: Count = Field(20, description="a positive integer")
    """Steps in a row that end at a number that is not finite, after which a search ends."""
    starts: dict[str, Any] | None = Field(None, description="a sweep's design, such as {design: sobol, samples: 16}")
    warm_start: str | None = Field(None, description="an axis of the sweep, or null")
    data: dict[str, Any] | None = Field(None, description="a mapping {file, inputs, outputs, sigma}")
    hessian: Literal["auto"] | bool = Field("auto", description="'auto', true or false")
    """Whether the certificate holds the Hessian's eigenvalues; auto: of at most 32 variables. False also keeps products with the Hessian
    from trust_constr, where second derivatives are not to be had or cost too much."""


class Scheduler(Node):
    """Who runs the chunks."""

    kind: Literal["threads", "synchronous", "processes", "cluster"] = "threads"
    workers: Count | None = Field(None, description="a positive integer, or null for one on each core")


class Execution(Node):
    """How the chunks are run."""

    chunk: Literal["auto"] | Count = Field("auto", description="'auto' or a positive integer")
    memory: Annotated[int, BeforeValidator(read_bytes), Field(gt=0)] = Field(
        2 * 2**30, description="a size such as '2 GiB'"
    )
    """Memory that the chunks in flight may take, all together, in bytes."""
    device: Literal["auto", "cpu", "gpu", "tpu"] = "auto"
    devices: Literal["auto"] | Count = Field("auto", description="'auto' or a positive integer")
    """Devices of that kind over which a chunk is split."""
    preallocate: bool | Annotated[float, Field(gt=0, le=1)] = Field(
        False, description="true, false, or a part from 0 to 1"
    )
    """Of a GPU's memory, when JAX starts."""
    on_error: Literal["continue", "stop"] = "continue"
    time_limit: Annotated[float, BeforeValidator(read_seconds), Field(gt=0, lt=math.inf)] | None = Field(
        None, description="a time such as '10 min' or a number of seconds, or null"
    )
    """Seconds that a chunk may take, after which the run stops."""
    debug_nans: bool = Field(False, description="true or false")
    jit: bool = Field(True, description="true or false")
    compile_cache: str = Field("auto", description="'auto', 'off' or a folder")
    profile: str | None = Field(None, description="a folder, or null")


class StoreSettings(Node):
    """Where the results go, and how they are laid out."""

    path: str | None = Field(None, description="the path of the store, or null")
    overwrite: bool = Field(False, description="true or false")
    compression: Any = "auto"
    shard: Count | None = Field(None, description="a positive number of samples, or null")


class Settings(Node):
    """A whole config. Static: frozen, compares by value."""

    name: str = Field(description="text that names the store")
    seed: Annotated[int, BeforeValidator(read_count), Field(ge=0, lt=2**63)] = Field(
        0, description="an integer from 0 to 2**63 - 1"
    )
    precision: Literal["float64", "float32"] = "float64"
    parameters: dict[str, Any] = Field(default_factory=dict, description="a mapping from name to value")
    ranges: dict[str, Any] = Field(default_factory=dict, description="a mapping from parameter to [low, high]")
    """The values that a parameter may take, both ends included; null for an open end."""
    constants: dict[str, Any] = Field(default_factory=dict, description="a mapping; read by interpolation only")
    stages: dict[str, dict[str, Any]] = Field(description="a mapping from stage to a node with `_target_`")
    outputs: Annotated[dict[str, Output] | None, BeforeValidator(read_outputs)] = Field(
        None, description="a mapping from name to reference, a list of references, or null"
    )
    coords: dict[str, str] = Field(default_factory=dict, description="a mapping from dimension to reference")
    sweep: Sweep = Field(Sweep(), description="a mapping")
    derivatives: dict[str, Derivative] = Field(default_factory=dict, description="a mapping from name to derivative")
    optimize: Optimize | None = Field(None, description="a mapping, or null")
    optimizer: dict[str, Any] | str | None = Field(None, description="a method of the group optimizer, or null")
    transforms: Any = "auto"
    solver: dict[str, Any] | str | None = Field(
        None, description="a mapping of settings, the name of a method, or null"
    )
    adjoint: Any = None
    scheduler: Scheduler = Field(Scheduler(), description="a mapping")
    execution: Execution = Field(Execution(), description="a mapping")
    store: StoreSettings = Field(StoreSettings(), description="a mapping")


def text_keys() -> frozenset[str]:
    """The keys whose value is text, whatever it looks like: `name: 1e234` is a name, not a number."""
    return frozenset({"name", "store.path", "sweep.table", "execution.compile_cache", "execution.profile"})


def is_text(key: str) -> bool:
    """Whether the value under the dotted `key` is text by the schema."""
    return key in text_keys() or re.fullmatch(r"outputs\.[^.]+\.(units|description|from)", key) is not None


def check(node: Mapping[str, Any]) -> tuple[Settings | None, list[str]]:
    """Read a composed config.

    Returns:
        The settings (None if they could not be read) and every problem found, each a complete message.
    """
    node = {str(name): value for name, value in node.items()}
    problems = list(check_keys(node))
    if problems:
        node = with_text_keys(node)  # so that the other mistakes are found too
    problems += [*missing(node), *check_names(node), *check_parameters(node.get("parameters"))]
    problems += misdeclared(node.get("ranges"), node.get("parameters"))
    try:
        settings = Settings.model_validate(dict(node))
    except ValidationError as error:
        said = {problem.split("`")[1] for problem in problems if "`" in problem}
        for key, problem in translate(error, node).items():
            if key not in said:
                problems.append(problem)
        return None, problems
    if not settings.name.strip() or re.search(r"[/\\\0]", settings.name):
        problems.append(
            f"`name` must be a file name, but is {settings.name!r}. Leave out slashes, or set `store.path`."
        )
    if not settings.stages:
        problems.append(
            "`stages` must hold at least one stage, but is empty. Add `stage: {_target_: module.function}`."
        )
    return settings, problems


def missing(node: object, key: str = "") -> Iterable[str]:
    """A problem for each `???`."""
    if node == "???":
        yield f"`{key}` must be given, but is missing (`???`). Write it in the file, or `{key}=value` on the command line."
    elif isinstance(node, dict):
        for name, child in node.items():
            yield from missing(child, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for i, child in enumerate(node):
            yield from missing(child, f"{key}.{i}")


def plain_name(name: object) -> str:
    """The nearest Python identifier."""
    text = re.sub(r"[^0-9a-zA-Z_]", "_", str(name))
    return text if re.match(r"[A-Za-z_]", text) else f"p{text}"


def check_keys(node: Mapping[str, Any]) -> Iterable[str]:
    """A problem for each key that YAML reads as something else than text, where a name belongs.

    Numbers may stand deeper inside: a mapping of a parameter is a pytree of the user's, a constant any dict. Parameters and stages are
    told of by `check_names`: quoting a number makes no name of it.
    """
    stages = stages if isinstance(stages := node.get("stages"), dict) else {}
    named = {"outputs", "coords", "constants", "derivatives", "ranges", "sweep.axes"}
    named |= {f"stages.{stage}{inside}" for stage in stages for inside in ("", "._inputs_")}
    trees = ("parameters", *(f"stages.{stage}._inputs_" for stage in stages))

    def visit(value: Any, key: str, in_tree: bool) -> Iterable[str]:
        if isinstance(value, Mapping):
            in_tree = in_tree and "_target_" not in value
            for name in value:
                if isinstance(name, bool):
                    read = "on and yes" if name else "off and no"
                    yield (
                        f"`{key}` must have text as keys, but has {str(name).lower()}, as YAML reads {read} too. "
                        f"Quote what is written there: '{read.split()[0]}'."
                    )
                elif not isinstance(name, str) and key in named:
                    yield f"`{key}` must have text as keys, but has the number {name}. Quote it: '{name}'."
            yield from mixed_keys(key, value) if in_tree else ()
        if isinstance(value, Mapping | list):
            for name, child in value.items() if isinstance(value, Mapping) else enumerate(value):
                if isinstance(child, Mapping | list):
                    yield from visit(child, f"{key}.{name}", in_tree or key in trees)

    for section, value in node.items():
        yield from visit(value, str(section), False)


def mixed_keys(key: str, tree: Mapping[Any, Any]) -> Iterable[str]:
    """A problem if JAX could not sort the keys of a mapping that is to be a pytree."""
    numbers = [name for name in tree if not isinstance(name, str | bool)]
    texts = [name for name in tree if isinstance(name, str)]
    if numbers and texts:
        yield (
            f"`{key}` must have keys of one kind, but has the number {numbers[0]} and the text {texts[0]!r}. "
            f"Quote it: '{numbers[0]}'."
        )


def with_text_keys(node: Any) -> Any:
    """A nested mapping with each key as text."""
    if isinstance(node, Mapping):
        return {str(name): with_text_keys(child) for name, child in node.items()}
    return [with_text_keys(child) for child in node] if isinstance(node, list) else node


def check_names(node: Mapping[str, Any]) -> Iterable[str]:
    """Stage and parameter names are the roots of dotted references: Python identifiers, and no two alike."""
    stages, parameters = (section if isinstance(section := node.get(k), dict) else {} for k in ("stages", "parameters"))
    for section, names in (("stages", stages), ("parameters", parameters)):
        for name in names:
            if not IDENTIFIER.match(str(name)):
                yield (
                    f"`{section}.{name}` must be a plain name (letters, digits, _), but is {name!r}: a dot would read as "
                    f"a reference into a value. Rename it to {plain_name(name)!r}."
                )
    for name in stages:
        if name in parameters:
            yield f"`stages.{name}` must differ from every parameter, but a parameter is called {name!r} too. Rename one."
        elif name == "key":
            yield "`stages.key` must not be called 'key', but is: an argument `key` is the PRNG key. Rename the stage."
    if "key" in parameters:
        yield "`parameters.key` must not be called 'key', but is: an argument `key` is the PRNG key. Rename it."


def check_parameters(parameters: object) -> Iterable[str]:
    """Nominal values are finite numbers, nested lists of them with one shape, mappings of these, or nodes that are built."""
    if isinstance(parameters, dict):
        for name, value in parameters.items():
            yield from check_parameter(f"parameters.{name}", value)


def check_parameter(key: str, value: object) -> Iterable[str]:
    """Problems of one parameter, and of those inside it."""
    if value == "???":
        return
    if isinstance(value, dict) and "_target_" in value:
        if not isinstance(value["_target_"], str):
            yield f"`{key}._target_` must be the import path of a function, but is {value['_target_']!r}. Write module.function."
    elif isinstance(value, dict):
        if not value:
            yield f"`{key}` must hold at least one number, but is an empty mapping. Write its values."
        for name, child in value.items():
            if not re.fullmatch(r"\w+", str(name)):
                yield f"`{key}.{name}` must be a plain name (letters, digits, _), but is {name!r}. Rename it to {plain_name(name)!r}."
            yield from check_parameter(f"{key}.{name}", child)
    elif isinstance(value, list) and any(isinstance(child, dict) for child in value):
        for i, child in enumerate(value):
            yield from check_parameter(f"{key}.{i}", child)
    else:
        yield from check_numbers(key, value)


def check_numbers(key: str, value: object) -> Iterable[str]:
    """Problems of a number, or of a nested list of numbers."""
    if isinstance(value, list):
        shapes = {shape_of(item) for item in value}
        if not value:
            yield f"`{key}` must be a number or a list of numbers, but is an empty list. Write its values."
        elif len(shapes) > 1:
            yield f"`{key}` must be a rectangular list, but its rows have the shapes {listed(sorted(shapes, key=str))}."
        for i, item in enumerate(value):
            yield from check_numbers(f"{key}.{i}", item)
    elif isinstance(value, str):
        hint = " Arithmetic is not evaluated: write the number." if re.fullmatch(r"[-+*/\d.() e]+", value) else ""
        yield (
            f"`{key}` must be a number or a nested list of numbers, but is text {value!r}.{hint or ' Text and paths are '}"
            f"{'' if hint else 'constants of a stage: write them in its node.'}"
        )
    elif value is None or not isinstance(value, bool | int | float | complex):
        yield (
            f"`{key}` must be a number or a nested list of numbers, but is {value!r}. "
            "Write the nominal value, or move what is no number into the node of the stage that takes it."
        )
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"`{key}` must be finite, but is {value}. Write a finite nominal value."
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        shown = str(value) if abs(value) < 10**40 else f"an integer of {len(str(abs(value)))} digits"
        yield f"`{key}` must fit 64 bits, but is {shown}. Write it as a float, such as 1.0e20."


def shape_of(value: object) -> tuple[int, ...]:
    """The shape of a nested list, by its first entries."""
    return (len(value), *(shape_of(value[0]) if value else ())) if isinstance(value, list) else ()


def translate(error: ValidationError, node: Mapping[str, Any]) -> dict[str, str]:
    """Pydantic's errors in the house's words: one message for each key, in the order of the file."""
    problems: dict[str, str] = {}
    for item in error.errors():
        location = [part for part in item["loc"] if not is_marker(part)]
        model, field, depth = locate(location)
        key = ".".join(str(part) for part in location)
        if item["type"] == "extra_forbidden":
            problems.setdefault(key, unknown_key(key, model))
            continue
        key = ".".join(str(part) for part in location[:depth])
        if item["type"] == "missing":
            name = {"source": "from"}.get(str(location[-1]), str(location[-1]))
            problems.setdefault(
                f"{key}",
                f"`{'.'.join([*map(str, location[:-1]), name])}` must be given, but is missing. Write {name}: {field}.",
            )
            continue
        found = dig(node, location[:depth])
        remedy = nearest(str(found), choices) if (choices := literals(model, location[:depth])) else ""
        problems.setdefault(key, f"`{key}` must be {field}, but is {shown(found)}.{remedy}")
    return problems


def is_marker(part: object) -> bool:
    """Pydantic names the branch of a union inside the location: `function-before[...]`, `int`, `list[str]`."""
    return isinstance(part, str) and (
        re.match(r"(function-|literal\[|list\[|dict\[|constrained-|lax-or)", part) is not None
        or part in {"int", "float", "str", "bool", "none", "[key]"}
    )


def locate(location: list[Any]) -> tuple[type[Node], str, int]:
    """The innermost model on the way to `location`, what its field must be, and how deep that field lies."""
    model: type[Node] = Settings
    described, depth = "valid", len(location)
    i = 0
    while i < len(location):
        fields = {(f.alias or n): f for n, f in model.model_fields.items()} | dict(model.model_fields)
        if (field := fields.get(location[i])) is None:
            break
        described, depth = must_be(field), i + 1
        inner = child_model(field.annotation)
        if inner is None:
            if len(location) > depth and "dict" in str(field.annotation):  # the value of a mapping of the user's names
                described, depth = "a mapping" if "dict[str, dict" in str(field.annotation) else "text", depth + 1
            break
        if inner[1]:  # a mapping of models: its next part is a name of the user's
            i += 1
        if i + 1 < len(location):
            model = inner[0]
            described, depth = "a mapping", i + 1
        i += 1
    return model, described, depth


def child_model(annotation: Any) -> tuple[type[Node], bool] | None:
    """The model that a field holds, and whether as the values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Node):
        return annotation, False
    for argument in get_args(annotation):
        if (inner := child_model(argument)) is not None:
            return inner[0], inner[1] or getattr(annotation, "__origin__", None) is dict
    return None


def must_be(field: Any) -> str:
    """What a field must be, in words: its description, or its allowed values."""
    allowed = get_args(field.annotation)
    return field.description or (f"one of {listed(allowed)}" if allowed else "valid")


def literals(model: type[Node], location: list[Any]) -> tuple[str, ...]:
    """The allowed texts of the field at the end of `location`."""
    field = model.model_fields.get(str(location[-1])) if location else None
    return tuple(str(a) for a in get_args(field.annotation) if isinstance(a, str)) if field else ()


def unknown_key(key: str, model: type[Node]) -> str:
    """The message for a key that the schema does not know."""
    names = [f.alias or n for n, f in model.model_fields.items()]
    where, _, last = key.rpartition(".")
    place = f"of `{where}`" if where else "of a config (what is only interpolated belongs under `constants:`)"
    return f"`{key}` must be a known key {place}, but is not.{nearest(last, names)} Known keys: {listed(names, 30)}."


def dig(node: object, location: list[Any]) -> object:
    """The value found at `location`, or None."""
    for part in location:
        if isinstance(node, Mapping):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        else:
            return None
    return node


def shown(value: object) -> str:
    """A value as a message shows it: its kind where that helps, shortened."""
    text = repr(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, str):
        return f"text {text}"
    return {type(None): "null", dict: f"a mapping {text}", list: f"a list {text}"}.get(type(value), text)


def settings_of(node: Mapping[str, Any]) -> Settings:
    """Read a composed config, or raise a `ConfigError` with every problem."""
    settings, problems = check(node)
    if problems or settings is None:
        raise ConfigError(problems)
    return settings
