"""YAML file and overrides → `Config`. The one home of Hydra and OmegaConf.

In: the path of a config and overrides in Hydra's grammar. Out: a resolved, checked, immutable `Config`.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine import schema
from engine.errors import ConfigError, listed, nearest

VERSION_BASE = "1.3"
IGNORED_BY_MEANING = ("name", "constants", "execution", "scheduler", "store", "solver", "adjoint")
"""Sections that do not change what is asked: where, how fast, and what stages have already taken in."""


@dataclass(frozen=True)
class Config:
    """A composed, resolved and checked config. Static."""

    path: Path
    """The YAML file, absolute."""

    overrides: tuple[str, ...]
    """The overrides as given."""

    node: Mapping[str, Any]
    """Every setting as plain data, interpolations resolved."""

    settings: schema.Settings
    """The same, typed."""

    @property
    def folder(self) -> Path:
        """The folder that the config's own paths are relative to."""
        return self.path.parent

    @property
    def meaning(self) -> dict[str, Any]:
        """The part of the config that says what is asked, without where and how it is run."""
        meaning = {k: v for k, v in self.node.items() if k not in IGNORED_BY_MEANING}
        if isinstance(outputs := meaning.get("outputs"), dict):
            labels = ("units", "description")
            meaning["outputs"] = {
                name: {k: v for k, v in output.items() if k not in labels} if isinstance(output, dict) else output
                for name, output in outputs.items()
            }
        return meaning


def groups_folder() -> Path:
    """The engine's own config groups: beside the installed package's modules, or in the project's `conf/`."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def read_option(group: str, name: str) -> dict[str, Any]:
    """The settings of an option of one of the engine's own groups, which must be there."""
    text = (groups_folder() / group / f"{name}.yaml").read_text(encoding="utf-8")
    return cast("dict[str, Any]", yaml.safe_load(text))


def read_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Compose, resolve and check a config.

    Args:
        path: a YAML file.
        overrides: `key=value` in Hydra's grammar.

    Raises:
        ConfigError: the file or an override cannot be read, or a setting is not valid; all that can be found at once.
    """
    file = existing_file(path)
    tokens = read_tokens(file)
    with initialize_config_dir(config_dir=str(file.parent), version_base=VERSION_BASE):
        parsed = parse_overrides(overrides)
        search = search_path(file)
        groups, values = split_groups(parsed, file, search)
        problems = sweeps_without_m(parsed)
        base = composed(file, [search, *(o.input_line or "" for o in groups)])
        problems += unknown_overrides(values, base)
        bad = problem_overrides(values, base)
        changes = [line for o in values if o not in bad for line in applied(o, base)]
        config = composed(file, [search, *(o.input_line or "" for o in groups), *changes])
        keep_order(config, base, values)
    problems += two_readings(tokens)
    keep_texts(config, tokens, values)
    node, unresolved = resolved(config)
    settings, found = schema.check(node)
    problems += unresolved + [problem for problem in found if problem not in problems]
    problems += unused_choices(parsed, config)
    if problems or settings is None:
        raise ConfigError(problems)
    return Config(file, tuple(overrides), node, settings)


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a config that is there, is a file, and ends in .yaml."""
    file = Path(path).expanduser().absolute()
    if file.is_dir():
        found = sorted(p.name for p in file.glob("*.yaml"))
        raise ConfigError(f"`CONFIG` must be a YAML file, but {str(path)!r} is a folder. It holds {listed(found)}.")
    if not file.exists():
        siblings = [p.name for p in file.parent.glob("*.yaml")] if file.parent.is_dir() else []
        hint = nearest(file.name, siblings) or (f" The folder holds {listed(sorted(siblings))}." if siblings else "")
        raise ConfigError(f"`CONFIG` must be the path of a YAML file, but {str(path)!r} is not there.{hint}")
    if file.suffix != ".yaml":
        raise ConfigError(f"`CONFIG` must end in .yaml, but is {file.name!r}. Rename it to {file.stem + '.yaml'!r}.")
    if (own := file.parent / "engine.yaml").is_file() and own.parent != groups_folder():
        raise ConfigError(
            f"`{own}` must have another name, but is called engine.yaml: `defaults: [engine, ...]` would take it for the engine's "
            "own defaults. Rename it."
        )
    return file


def read_tokens(file: Path) -> yaml.Node:
    """The file's YAML tree with the text of every scalar as it is written."""
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"`{file.name}` must be UTF-8 text, but byte {error.start} is {error.object[error.start]:#04x}. Save it as UTF-8."
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"`{file.name}` line {mark.line + 1}, column {mark.column + 1}" if mark else f"`{file.name}`"
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(
            f"{where} must be YAML, but {what}. Check the indentation, quotes and brackets there."
        ) from None
    except RecursionError:
        raise ConfigError(f"`{file.name}` must not nest as deeply as it does. Flatten it.") from None
    except OSError as error:
        raise ConfigError(f"`{file.name}` must be readable, but {error.strerror}. Check its permissions.") from None
    if root is None:
        raise ConfigError(f"`{file.name}` must hold a config, but is empty. Start with `defaults: [engine, _self_]`.")
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(
            f"`{file.name}` must be a mapping of settings, but is {root.tag.rpartition(':')[2]}. Start with `name: ...`."
        )
    check_size(file, root)
    check_sections(file, root)
    check_defaults(file, root)
    for mapping in mappings(root):
        for key in (key for key, _ in mapping.value if not isinstance(key, yaml.ScalarNode)):
            raise ConfigError(
                f"`{file.name}` line {key.start_mark.line + 1} must have a name as key, but has a list or a mapping. Write the name."
            )
        names = [k.value for k, _ in mapping.value]
        for name in {n for n in names if names.count(n) > 1 and n != "<<"}:
            line = [k.start_mark.line + 1 for k, _ in mapping.value if k.value == name]
            raise ConfigError(
                f"`{file.name}` must hold each key once, but {name!r} stands in lines {line[0]} and {line[1]}. Remove one."
            )
    return root


def check_size(file: Path, root: yaml.Node) -> None:
    """Aliases of aliases can stand for more nodes than there are atoms; a node inside itself has no end."""
    sizes: dict[int, int | None] = {}

    def size(node: yaml.Node) -> int:
        if (known := sizes.get(id(node), 0)) is None:
            raise ConfigError(
                f"`{file.name}` must not hold a node inside itself, but does, by an alias in line {node.start_mark.line + 1}. Remove it."
            )
        if known:
            return known
        sizes[id(node)] = None
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        total = 1 + sum(size(part) for child in children for part in (child if isinstance(child, tuple) else (child,)))
        sizes[id(node)] = total
        return total

    try:
        total = size(root)
    except RecursionError:
        raise ConfigError(f"`{file.name}` must not nest as deeply as it does. Flatten it.") from None
    if total > MOST_NODES:
        raise ConfigError(
            f"`{file.name}` must hold at most {MOST_NODES} values, but stands for {total} with its aliases. Put long lists into a table."
        )


def check_sections(file: Path, root: yaml.MappingNode) -> None:
    """Sections that are mappings must be written as such; Hydra's own message for a list names no key."""
    problems = []

    def visit(key: str, node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            for name, child in node.value:
                if (key, name.value) == ("sweep", "axes"):
                    visit("sweep.axes", child)
        elif key in MAPPINGS and not may_stand(key, node):
            line = node.start_mark.line + 1
            problems.append(f"`{key}` must be a mapping, but is {kind_of(node)} (line {line}). Write {MAPPINGS[key]}.")

    for name, child in root.value:
        visit(str(name.value), child)
    if problems:
        raise ConfigError(problems)


def may_stand(key: str, node: yaml.Node) -> bool:
    """Whether a node that is no mapping may stand for a section: an interpolation, `???`, null for what may be left out, or the
    name of a method for a solver."""
    kind = node.tag.rpartition(":")[2]
    if isinstance(node, yaml.ScalarNode) and ("${" in node.value or node.value == "???"):
        return True
    return (kind == "null" and key in ("solver", "adjoint")) or (kind == "str" and key == "solver")


def kind_of(node: yaml.Node) -> str:
    """A node that is no mapping, in words."""
    if not isinstance(node, yaml.ScalarNode):
        return "a list"
    kind = node.tag.rpartition(":")[2]
    return {"null": "null", "str": f"text {node.value!r}"}.get(kind, str(node.value))


def check_defaults(file: Path, root: yaml.MappingNode) -> None:
    """The engine's defaults must come before the file's own settings, which they would replace."""
    listed_defaults = next((child for name, child in root.value if name.value == "defaults"), None)
    if not isinstance(listed_defaults, yaml.SequenceNode):
        return
    names = [child.value for child in listed_defaults.value if isinstance(child, yaml.ScalarNode)]
    others = [name.value for name, _ in root.value if name.value != "defaults"]
    if "_self_" not in names and others:
        raise ConfigError(
            f"`defaults` must say where this file's own settings stand, but has no _self_. Write `- _self_` last in {file.name}."
        )
    if "engine" in names and "_self_" in names and names.index("_self_") < names.index("engine"):
        raise ConfigError(
            "`defaults` must name engine before _self_, but names it after: its defaults would replace this file's settings. "
            "Write [engine, ..., _self_]."
        )


def mappings(node: yaml.Node) -> Iterator[yaml.MappingNode]:
    """Every mapping in a YAML tree."""
    if isinstance(node, yaml.MappingNode):
        yield node
        for _, child in node.value:
            yield from mappings(child)
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from mappings(child)


def search_path(file: Path) -> str:
    """The override that adds the engine's groups behind the config's own folder."""
    return f'hydra.searchpath=["file://{groups_folder()}"]'


def composed(file: Path, overrides: list[str]) -> DictConfig:
    """What Hydra makes of the file, with its errors in our words."""
    try:
        return compose(file.stem, overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(compose_problem(error, file)) from None
    except (AttributeError, TypeError, ValueError) as error:  # a defaults list of the wrong shape
        raise ConfigError(
            "`defaults` must be a list of names and `group: option` pairs, such as [engine, {solver: tsit5}, _self_], "
            f"but Hydra says: {str(error).splitlines()[0]}."
        ) from None
    except RecursionError:
        raise ConfigError(
            f"`defaults` must not lead back to the file itself, but those of {file.name} do. Remove that entry."
        ) from None
    except Exception as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"`{file.name}` must compose, but {type(error).__name__}: {said}. Mend the file there."
        ) from None


def compose_problem(error: Exception, file: Path) -> str:
    """One message for an error of Hydra's while it composes."""
    text = str(error) or str(error.__cause__)
    if match := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group, option = match.groups()
        options = re.findall(r"^\t(\S+)$", text, re.MULTILINE)
        return f"`{group}` must be one of {listed(options, 40)}, but is {option!r}.{nearest(option, options)}"
    if match := re.search(r"(?:Could not (?:load|find)|Cannot find primary config) '?([^'\n]+?)'?(?:\.|$)", text):
        return f"`defaults` must name configs that exist, but {match[1]!r} is not found beside {file.name} or in the engine."
    if match := re.search(r"Could not override '([^']+)'\. No match in the defaults list", text):
        return f"`{match[1]}` must stand in the defaults to be chosen, but does not. Add `- {match[1]}: ...` to `defaults`."
    if match := re.search(r"Error merging override \+?([^\s=]+)=(.*)", text):
        key, value = match.groups()
        if key in MAPPINGS:
            return f"`{key}` must be a mapping, but is {value}. Write {MAPPINGS[key]}."
        return (
            f"`{key}` must be given a value of the kind that the config has, but is given {value!r}. "
            f"Override a key inside it (`{key}.name=...`), or take it out and add it: '~{key}' '+{key}={value}'."
        )
    if match := re.search(r"In '([^']+)'.*\s+Cannot merge (Dict|List)Config with (Dict|List)Config", text):
        name, before, now = match[1], *({"Dict": "a mapping", "List": "a list"}[kind] for kind in match.groups()[1:])
        return (
            f"`{name}.yaml` must hold {before} wherever the configs before it in `defaults` do, but holds {now} in one such place. "
            "Write it alike in both."
        )
    if "Incompatible key type" in text:
        key = next((part.split(":")[1].strip() for part in text.splitlines() if "full_key" in part), "")
        return f"`{key or file.name}` must have names as keys, but has one that is null or no plain value. Write a name, in quotes."
    line = next((line for line in text.splitlines() if line.strip()), text)
    return f"`{file.name}` must compose, but Hydra says: {line.strip()}"


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """The overrides, parsed; every one that cannot be is a problem."""
    parsed, problems = [], []
    for text in overrides:
        try:
            parsed.append(OverridesParser.create().parse_override(text))
        except HydraException:
            problems.append(override_problem(text))
    if problems:
        raise ConfigError(problems)
    return parsed


def override_problem(text: str) -> str:
    """What is wrong with an override that Hydra's grammar refuses."""
    key, separator, value = text.partition("=")
    if not separator:
        return f"`{text}` must be an override key=value, but has no '='. Options of the command start with --."
    quoted = value.replace('"', '\\"')
    listing = f", or a list as [{value.strip('()')}]" if value.startswith("(") else ""
    return (
        f"`{key}` must be given a value in Hydra's grammar, but {value!r} is none. "
        f"""Quote it as text: '{key}="{quoted}"'{listing}."""
    )


def sweeps_without_m(parsed: list[Override]) -> list[str]:
    """`k=1,2,3` asks for three runs, which only `-m` does."""
    return [
        f"`{o.key_or_group}` must be one value, but is the choice {o.value_part()}. "
        f"A list is {o.key_or_group}=[{o.value_part()}]; several runs need `-m`; "
        f"a sweep over a parameter belongs to `sweep.axes.{o.key_or_group.rpartition('.')[2]}`."
        for o in map(Choice, parsed)
        if o.is_sweep
    ]


class Choice:
    """An override seen as a choice between runs."""

    def __init__(self, override: Override) -> None:
        self.override = override
        self.key_or_group = override.key_or_group
        self.is_sweep = override.is_sweep_override()

    def value_part(self) -> str:
        """What stands behind the equals sign."""
        return (self.override.input_line or "").partition("=")[2]


def split_groups(parsed: list[Override], file: Path, search: str) -> tuple[list[Override], list[Override]]:
    """Overrides that choose from a group, and overrides that set a value."""
    folders = [file.parent, groups_folder()]
    loader = GlobalHydra.instance().config_loader()
    try:
        listing = cast("Any", loader).compute_defaults_list(file.stem, [search], RunMode.RUN)
        chosen = set(listing.overrides.known_choices)
    except Exception:  # composing will find the same mistake, and say it
        chosen = set()
    if METHODS not in chosen:
        parsed = [added(o) if names_a_method(o) else o for o in parsed]
    if wrong := [
        o
        for o in parsed
        if o.key_or_group in chosen and not (o.is_delete() or o.is_sweep_override()) and is_no_option(o)
    ]:
        raise ConfigError(
            [
                f"`{o.key_or_group}` must be the name of an option, but is {Choice(o).value_part()}. `python -m engine list` "
                "shows them."
                for o in wrong
            ]
        )
    groups = [
        o
        for o in parsed
        if not o.is_sweep_override()
        and (
            o.get_key_element().lstrip("+~") in chosen
            or (o.is_add() and any((f / o.key_or_group).is_dir() for f in folders))
        )
        and (o.is_delete() or isinstance(o.value(), str | list))
        and "hydra" not in o.key_or_group
    ]
    return groups, [o for o in parsed if o not in groups and not o.is_sweep_override()]


def names_a_method(override: Override) -> bool:
    """Whether an override is `optimizer=name`: it chooses also where no optimizer stands in the defaults."""
    return (
        override.type is OverrideType.CHANGE
        and override.key_or_group == METHODS
        and not override.is_sweep_override()
        and isinstance(override.value(), str)
    )


def added(override: Override) -> Override:
    """An override as if it were written with a plus."""
    return OverridesParser.create().parse_override(f"+{override.input_line}")


def is_no_option(override: Override) -> bool:
    """Whether the value can neither choose from a group nor set keys in what was chosen."""
    value = override.value()
    names = value if isinstance(value, list) else [value]
    return not isinstance(value, dict) and not all(isinstance(name, str) for name in names)


def unknown_overrides(values: list[Override], base: DictConfig) -> list[str]:
    """A problem for each `key=value` whose key is not there: only `+key=value` may add one."""
    plain = OmegaConf.to_container(base, resolve=False)
    problems = []
    for o in problem_overrides(values, base):
        where, _, last = o.key_or_group.rpartition(".")
        parent = find(plain, where.split(".")) if where else plain
        names = list(parent) if isinstance(parent, dict) else []
        names += schema.Optimize.model_fields if where == "optimize" else ()
        anywhere = [key for key in flat_keys(plain) if key.rpartition(".")[2] == last]
        hint = nearest(last, names) or (f" Did you mean {anywhere[0]!r}?" if anywhere else "")
        number = next((name for name in names if not isinstance(name, str) and str(name) == last), None)
        if number is not None:
            change = f"{where}={{{number}: {Choice(o).value_part()}}}"
            problems.append(
                f"`{o.key_or_group}` must be a key that is text to be overridden, but is a number. Write '{change}', or quote the key "
                "in the file."
            )
            continue
        if (dotted := dotted_key(plain, o.key_or_group.split("."))) is not None:
            first, _, rest = dotted.partition(".")
            problems.append(
                f"`{o.key_or_group}` must stand nested in the file to be overridden, but its key there is {dotted!r}. "
                f"Write {first}: {{{rest}: ...}} there."
            )
            continue
        closed = not where or (where.split(".")[0] in CLOSED and where not in NAMED)
        adding = "" if closed else f" To add it, write +{o.input_line}."
        problems.append(f"`{o.key_or_group}` must be a key of the config to be overridden, but is not.{hint}{adding}")
    return problems


def dotted_key(node: object, parts: Sequence[str]) -> str | None:
    """A key with dots in it to which a dotted name leads, if one does: `a.b` of `{p: {a.b: 1}}` for `p.a.b`."""
    for i, part in enumerate(parts):
        if not isinstance(node, dict):
            return None
        rest = ".".join(parts[i:])
        if rest in node:
            return rest if "." in rest else None
        node = node.get(part)
    return None


def problem_overrides(values: list[Override], base: DictConfig) -> list[Override]:
    """Overrides that change or delete a key that is not there."""
    plain = OmegaConf.to_container(base, resolve=False)
    return [
        o
        for o in values
        if o.type in {OverrideType.CHANGE, OverrideType.DEL}
        and find(plain, o.key_or_group.split(".")) is ABSENT
        and not is_left_out(o, base)
    ]


def is_left_out(override: Override, base: DictConfig) -> bool:
    """Whether an override sets what a file may say of its design problem and does not."""
    section, _, key = override.key_or_group.partition(".")
    return (
        override.type is OverrideType.CHANGE
        and section == "optimize"
        and key in schema.Optimize.model_fields
        and isinstance(OmegaConf.select(base, section), DictConfig)
        and key not in base[section]
    )


METHODS = "optimizer"
"""The group that a command may choose from without a place in the defaults: what it sets has a default of its own."""

CLOSED = ("execution", "sweep", "store", "scheduler")
"""Sections to which no key can be added."""

NAMED = ("sweep.axes", "outputs", "coords", "derivatives")
"""Mappings of the user's own names, whose order is the order in the store. On the command line, such a mapping or a
member of it replaces what the file has; elsewhere Hydra merges."""


def applied(override: Override, base: DictConfig) -> list[str]:
    """The override as Hydra is to apply it."""
    line, key = override.input_line or "", override.key_or_group
    if is_left_out(override, base):
        return [f"+{line}"]
    if override.type is OverrideType.CHANGE and key == "sweep" and isinstance(value := override.value(), dict):
        return ["~sweep.axes", f"++{line}"] if "axes" in value else [line]
    if override.type is not OverrideType.CHANGE or not (key in NAMED or key.rpartition(".")[0] in NAMED):
        return [line]
    stands = OmegaConf.is_config(OmegaConf.select(base, key))
    if stands:
        return [f"~{key}", f"+{line}"]
    return [f"++{line}"] if isinstance(override.value(), dict) else [line]


def keep_order(config: DictConfig, base: DictConfig, values: list[Override]) -> None:
    """Members that were replaced stay where they stand in the file, unless the whole mapping was replaced."""
    for key in set(NAMED) - {o.key_or_group for o in values}:
        new, old = (OmegaConf.select(c, key) for c in (config, base))
        if isinstance(new, DictConfig) and isinstance(old, DictConfig):
            plain = cast("dict[str, Any]", OmegaConf.to_container(new, resolve=False))
            ordered = {name: plain[name] for name in [*old, *plain] if name in plain}
            if list(ordered) != list(plain):
                OmegaConf.update(config, key, ordered, merge=False, force_add=True)


MOST_NODES = 2_000_000
"""Values that a file may stand for, its aliases followed."""

MAPPINGS = {
    "stages": "stages: {name: {_target_: module.function}}",
    "parameters": "parameters: {name: 1.0}",
    "ranges": "ranges: {parameter: [low, high]}",
    "constants": "constants: {name: value}",
    "coords": "coords: {dimension: stage.field}",
    "sweep": "sweep: {axes: {name: [1.0, 2.0]}}",
    "sweep.axes": "axes: {name: [1.0, 2.0]}",
    "derivatives": "derivatives: {name: {of: output, wrt: [parameter]}}",
    "solver": "solver: {rtol: 1.0e-8}, or choose one in `defaults`: {solver: tsit5}",
    "adjoint": "adjoint: {_target_: ops.adjoints.default_adjoint, _partial_: true}, or leave it out",
    "scheduler": "scheduler: {kind: threads}, or choose one in `defaults`: {scheduler: threads}",
    "execution": "execution: {chunk: auto}",
    "store": "store: {path: results/name.zarr}",
}
"""Sections that are mappings, with an example."""

ABSENT = object()


def find(node: object, parts: Sequence[str]) -> object:
    """The value under a dotted key, or ABSENT."""
    for part in parts:
        if isinstance(node, dict) and part in node:
            node = node[part]
        elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, str) and node.startswith("${"):
            return node  # an interpolated node: Hydra decides
        else:
            return ABSENT
    return node


def flat_keys(node: object, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a nested mapping."""
    if isinstance(node, dict):
        for name, child in node.items():
            yield (key := f"{prefix}{name}")
            yield from flat_keys(child, f"{key}.")


def two_readings(root: yaml.Node) -> list[str]:
    """Plain scalars that a YAML file and the command line read differently are refused, with what to write instead."""
    problems = []
    for key, token in scalars(root):
        if token.style is None and not schema.is_text(key) and (remedy := misread(token)) is not None:
            line = token.start_mark.line + 1
            problems.append(
                f"`{key}` must be unambiguous, but {token.value} (line {line}) reads differently on the command line. {remedy}"
            )
    return problems


def misread(token: yaml.ScalarNode) -> str | None:
    """What to write instead of a plain scalar whose meaning depends on who reads it, or None."""
    text, tag = token.value, token.tag.rpartition(":")[2]
    lower = text.lower()
    if tag == "bool" and lower not in {"true", "false"}:
        return f"Write {str(lower in {'yes', 'on', 'y'}).lower()}, or quote it if it is text."
    if re.fullmatch(r"[-+]?\.?(nan|inf)", lower):
        return f"Numbers are finite here; quote it if it is text: '{text}'."
    if tag == "int" and re.search(r"^[-+]?0[0-9xob_]|:", text):
        return "Write the integer in decimal, or quote it if it is text."
    if tag == "float" and ":" in text:
        return "Write the number in decimal, or quote it if it is text."
    return None


def scalars(node: yaml.Node, key: str = "") -> Iterator[tuple[str, yaml.ScalarNode]]:
    """Every scalar value with its dotted key."""
    if isinstance(node, yaml.MappingNode):
        for name, child in node.value:
            yield from scalars(child, f"{key}.{name.value}" if key else str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for i, child in enumerate(node.value):
            yield from scalars(child, f"{key}.{i}")
    elif isinstance(node, yaml.ScalarNode):
        yield key, node


def keep_texts(config: DictConfig, root: yaml.Node, values: list[Override]) -> None:
    """Give back to text settings what was written: `name: 695e0514` is not the number infinity."""
    written = {
        key: token.value
        for key, token in scalars(root)
        if schema.is_text(key) and token.style is None and isinstance(OmegaConf.select(config, key), int | float | bool)
    }
    for o in values:
        if schema.is_text(o.key_or_group) and not o.is_delete():
            written.pop(o.key_or_group, None)
            if isinstance(o.value(), int | float | bool):
                written[o.key_or_group] = Choice(o).value_part()
    for key, text in written.items():
        OmegaConf.update(config, key, text, force_add=True)


def resolved(config: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The config as plain data with interpolations resolved, and a problem for each that cannot be."""
    try:
        return cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True)), []
    except OmegaConfBaseException:
        pass
    plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=False))
    problems: list[str] = []

    def visit(node: Any, key: str) -> Any:
        if isinstance(node, dict):
            return {name: visit(child, f"{key}.{name}" if key else str(name)) for name, child in node.items()}
        if isinstance(node, list):
            return [visit(child, f"{key}[{i}]") for i, child in enumerate(node)]
        if isinstance(node, str) and "${" in node:
            try:
                value = OmegaConf.select(config, key, throw_on_missing=True, throw_on_resolution_failure=True)
                return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            except OmegaConfBaseException as error:
                problems.append(interpolation_problem(key, node, error, plain))
        return node

    return cast("dict[str, Any]", visit(plain, "")), problems


def interpolation_problem(key: str, text: str, error: Exception, plain: dict[str, Any]) -> str:
    """The message for an interpolation that leads nowhere."""
    names = re.findall(r"\$\{([^{}:]+)\}", text)
    absent = next((n for n in names if find(plain, n.split(".")) in (ABSENT, "???")), None)
    if absent is None:
        return f"`{key}` must resolve, but {text!r} does not: {str(error).splitlines()[0]}."
    group = (groups_folder() / absent).is_dir()
    remedy = f" Add `- {absent}: ...` to `defaults`." if group else nearest(absent, flat_keys(plain))
    state = "is missing (`???`)" if find(plain, absent.split(".")) == "???" else "is not in the config"
    return f"`{key}` must resolve, but {text!r} refers to {absent!r}, which {state}.{remedy}"


def unused_choices(parsed: list[Override], config: DictConfig) -> list[str]:
    """Overrides of a solver that no stage takes, and of an optimizer where nothing is optimized, would be ignored: refuse them."""
    plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=False))
    keys = {o.key_or_group.split(".")[0]: o.key_or_group for o in reversed(parsed)}
    problems = []
    if "solver" in keys and "${solver" not in json.dumps(plain.get("stages"), default=str):
        problems.append(
            f"`{keys['solver']}` must change a stage, but no stage takes it. Write `solver: ${{solver}}` in the stage's node."
        )
    if METHODS in keys and plain.get("optimize") is None:
        problems.append(
            f"`{keys[METHODS]}` must say how to search, but the config has no `optimize`. Add it to the file."
        )
    return problems


def expand_multirun(overrides: Sequence[str]) -> list[list[str]]:
    """Hydra's `-m`: the overrides of each run, the outer product of the choices.

    >>> expand_multirun(["solver=tsit5,dopri8", "seed=1"])
    [['solver=tsit5', 'seed=1'], ['solver=dopri8', 'seed=1']]
    """
    parsed = parse_overrides(overrides)
    try:
        return [list(run) for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None) for run in batch]
    except Exception as error:
        sweeps = [o.input_line for o in parsed if o.is_sweep_override()]
        raise ConfigError(
            f"`{sweeps[0] if sweeps else '-m'}` must be a list of choices for -m, but Hydra says: {str(error).splitlines()[0]}. "
            "Write the choices out: key=a,b,c."
        ) from None


def build(node: object) -> Any:
    """Instantiate the `_target_` nodes inside a value with Hydra; lists and mappings come back as plain ones."""
    if isinstance(node, dict | list):
        return instantiate(copy.deepcopy(node), _convert_="all")
    return node


def encode(node: Any) -> Any:
    """Plain data as strict JSON data: numbers that JSON lacks become `{"$float": "inf"}`."""
    if isinstance(node, Mapping):
        return {str(k): encode(v) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return [encode(v) for v in node]
    if isinstance(node, float) and not math.isfinite(node):
        return {"$float": repr(node)}
    return node
