"""A store and the number of a sample → that sample alone, once more, and where it went wrong.

In: a store, which says what was run. Out: a `Reproduction`. This is the one command that imports what a store names; it says what
and from where before it does. Nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from engine import runtime
from engine.config import Config, encode, read_config
from engine.draft import Draft, make_draft
from engine.errors import ConfigError, PlanError, StoreError, SweepError, listed
from engine.origins import Trouble, hunt, raised
from engine.plan import Plan, make_plan
from engine.program import Program
from engine.runs import NAMES, differences
from engine.schema import settings_of
from engine.status import STATUS
from engine.store import Store, opened

Say = Callable[[str], None]
ROUNDING = 1e4
"""A difference of so many units in the last place is no difference: a single sample may be computed in another order."""


@dataclass(frozen=True)
class Value:
    """One output or derivative of the sample, as computed again. Static."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    value: Any
    """The first few numbers."""

    nonfinite: int
    """How many of its numbers are not finite."""

    difference: float | None
    """The largest difference to what the store holds, relative to its largest number; None where the store holds none."""

    @property
    def is_rounding(self) -> bool:
        """Whether the difference is none, or may come of another order of the same arithmetic."""
        eps = np.finfo(self.dtype).eps if np.dtype(self.dtype).kind in "fc" else 0.0
        return self.difference is not None and self.difference <= ROUNDING * float(eps)


@dataclass(frozen=True)
class Reproduction:
    """What came of a sample that was computed again. Static."""

    status: str
    """reproduced, or differs from what the store holds."""

    store: str
    sample: int
    samples: int
    parameters: dict[str, Any]
    outcome: str
    """Its status by name: ok, nonfinite, max_steps."""

    stored: str
    """What the store says of it."""

    outputs: list[Value]
    origins: list[Trouble]
    """Where it went wrong; empty if all is finite."""

    warnings: list[str]


def reproduce(path: str, sample: int, config: str | None = None, say: Say = lambda text: None) -> Reproduction:
    """Compute one sample of a store again.

    Args:
        path: the store.
        sample: its global flat index, in C order over the sweep's dimensions.
        config: where the config is now, if it is not where it was; it is read as it is there, with the overrides that were given.
        say: called with a line for people before anything is imported, and with each warning.

    Raises:
        UserError: there is no such store or sample, or the config or its modules are not there any more.
    """
    store = opened(path)
    if "optimize" in store.attributes:
        raise StoreError(
            f"`STORE` must hold a sweep, but {path} holds an optimization, whose samples are searches. Its `history` has every step; to "
            "compute one point again, run the config with `optimize=null` and that point as its parameters."
        )
    samples = int(np.prod(store.blocks.shape, dtype=np.int64))
    if not 0 <= sample < samples:
        raise SweepError(
            f"`--sample` must be from 0 to {samples - 1}, but is {sample}. {path} holds {samples} sample{'s' * (samples != 1)}; "
            "they count through the sweep's dimensions, the last one fastest."
        )
    read = recorded_config(store) if config is None else read_config(config, store.attributes.get("overrides", ()))
    read = on_this_machine(read)
    announce(read, say)
    warnings: list[str] = []
    draft = draft_of(read, store, warnings)
    for warning in warnings:
        say(f"warning: {warning}")
    if draft.design.samples != samples:
        raise SweepError(
            f"`--config` must hold the sweep of the store, but {read.path.name} has {draft.design.samples} samples and the "
            f"store {samples}. Give the config that the store was made from."
        )
    stored = int(np.asarray(store.status()).ravel()[sample])
    plan = make_plan(draft, chunk=1)
    outputs, status, error = compute(plan, sample)
    values = compared(store, outputs, sample, stored)
    width = int(store.attributes.get("chunk", 1))
    if (
        status == stored
        and not agree(values)
        and draft.fingerprint == store.attributes.get("fingerprint")
        and width > 1
    ):
        # Another width is other machine code, whose rounding an adaptive solve or a difference may magnify.
        outputs, status, error = compute(make_plan(draft, chunk=width), sample)
        values = compared(store, outputs, sample, stored)
    same = stored in (status, STATUS["pending"]) and agree(values)
    return Reproduction(
        "reproduced" if same else "differs",
        store.path,
        sample,
        samples,
        draft.design.point(sample),
        NAMES[status],
        NAMES.get(stored, str(stored)),
        values,
        origins_of(plan, sample, status, error),
        warnings,
    )


def recorded_config(store: Store) -> Config:
    """The config that a store was made from, where its file is now.

    Raises:
        ConfigError: the file is not where it was.
    """
    facts = store.attributes
    name = str(facts.get("config_file", ""))
    places = list(dict.fromkeys(folders(facts.get("config_folder", {}), store.path)))
    folder = next((place for place in places if (place / name).is_file()), None)
    if folder is None:
        raise ConfigError(
            f"`{name}`, the config that {store.path} was made from, must be there, with the modules that it names, but is not in "
            f"{listed(map(str, places))}. Say where it is with --config FILE."
        )
    remember_working_directory(folder, facts.get("config_folder", {}))
    return Config(folder / name, tuple(facts.get("overrides", ())), facts["config"], settings_of(facts["config"]))


def folders(recorded: Mapping[str, str], store: str) -> Iterator[Path]:
    """Where the config may be, the likeliest first: where it lay as seen from the store and from the working directory."""
    local = "://" not in store
    if "from_store" in recorded and local:
        yield (Path(store).expanduser().resolve().parent / recorded["from_store"]).resolve()
    if "from_working_directory" in recorded:
        yield (Path.cwd() / recorded["from_working_directory"]).resolve()
    if "absolute" in recorded:
        yield Path(recorded["absolute"])
    if not recorded:  # a store of before this was recorded
        yield Path.cwd()


def remember_working_directory(folder: Path, recorded: Mapping[str, str]) -> None:
    """Make importable what was so from the folder in which the run was started, after all else."""
    parts = PurePosixPath(recorded.get("from_working_directory", "")).parts
    if parts and ".." not in parts and len(parts) <= len(folder.parents):
        sys.path.append(str(folder.parents[len(parts) - 1]))


def on_this_machine(config: Config) -> Config:
    """The config for one sample on this machine: where and how it is computed may change, and not what."""
    node = dict(config.node)
    execution = {**node["execution"], "chunk": 1, "devices": "auto", "profile": None, "debug_nans": False}
    try:
        runtime.configure(config.settings)
    except PlanError:  # it was computed on another kind of device
        execution["device"] = "auto"
    node["execution"] = execution
    if isinstance(node["transforms"], list):
        node["transforms"] = [
            "devices" if isinstance(layer, dict) and set(layer) == {"devices"} else layer
            for layer in node["transforms"]
        ]
    return replace(config, node=node, settings=settings_of(node))


def announce(config: Config, say: Say) -> None:
    """Say what is about to be imported."""
    modules = sorted({target.rpartition(".")[0] for target in targets(config.node)})
    say(f"importing {', '.join(modules) or 'nothing'} from {config.folder} and the working directory")


def targets(node: Any) -> Iterator[str]:
    """Every `_target_` in a config."""
    if isinstance(node, Mapping):
        if isinstance(target := node.get("_target_"), str):
            yield target
        for child in node.values():
            yield from targets(child)
    elif isinstance(node, list):
        for child in node:
            yield from targets(child)


def draft_of(config: Config, store: Store, warnings: list[str]) -> Draft:
    """The traced pipeline; what differs from that of the store is appended to the warnings."""
    draft = make_draft(config)
    facts = store.attributes
    if draft.fingerprint != facts.get("fingerprint"):
        what = differences(draft, store) or "the program"
        warnings.append(f"this is not quite what {store.path} was made from. What differs: {what}.")
    old, new = facts.get("versions", {}), runtime.versions()
    changed = [
        f"{n} {old[n]} -> {new[n]}"
        for n in ("jax", "jaxlib", "diffrax", "equinox", "numpy")
        if old.get(n, new[n]) != new[n]
    ]
    if changed:
        warnings.append(f"the libraries are not those that {store.path} was made with: {', '.join(changed)}.")
    return draft


def compute(plan: Plan, sample: int) -> tuple[dict[str, np.ndarray[Any, Any]], int, Exception | None]:
    """The outputs of one sample and its status, or what it raised."""
    program = Program(replace(plan, devices=plan.devices[:1]))
    program.prepare()
    with runtime.quiet_callbacks():
        try:
            found, codes = program.at(np.array([sample], np.int64))
        except Exception as error:
            return {}, STATUS["error"], error
    outputs = dict(program.once_values) | {name: array[0] for name, array in found.items()}
    outputs = {v.name: outputs[v.name] for v in plan.variables if v.name in outputs and not v.coordinate}
    return outputs, int(codes[0]), None


def origins_of(plan: Plan, sample: int, status: int, error: Exception | None) -> list[Trouble]:
    """Where a sample went wrong."""
    if error is not None:
        return [raised(plan.sample_jaxpr, plan.draft.pipeline.names, error)]
    return hunt(plan, sample, status) if status != STATUS["ok"] else []


def compared(store: Store, outputs: Mapping[str, np.ndarray[Any, Any]], sample: int, status: int) -> list[Value]:
    """The outputs, each beside what the store holds."""
    return [value_of(name, array, stored_value(store, name, sample, status)) for name, array in outputs.items()]


def agree(values: list[Value]) -> bool:
    """Whether all are what the store holds, as far as it holds them."""
    return all(value.difference is None or value.is_rounding for value in values)


def stored_value(store: Store, name: str, sample: int, status: int) -> np.ndarray[Any, Any] | None:
    """What the store holds of a variable; None where it holds nothing."""
    variable = next((v for v in store.variables if v.name == name), None)
    if variable is None or status != STATUS["ok"]:
        return None
    if not variable.swept:
        return store.read(name)
    index = np.unravel_index(sample, store.blocks.shape) if store.blocks.shape else ()
    region = tuple(slice(int(i), int(i) + 1) for i in index)
    return store.read(name, region).reshape(variable.shape[len(index) :])


def value_of(name: str, array: np.ndarray[Any, Any], stored: np.ndarray[Any, Any] | None) -> Value:
    """One output in short."""
    wrong = 0 if array.dtype.kind in "biu" else int(np.count_nonzero(~np.isfinite(array)))
    shown = [plain(v) for v in array.ravel()[:4]]
    return Value(
        name,
        array.shape,
        str(array.dtype),
        shown[0] if not array.shape else shown,
        wrong,
        None if stored is None else difference(array, stored),
    )


def plain(value: Any) -> Any:
    """A number as strict JSON has it; one that is not finite or not real as text."""
    found = value.item() if hasattr(value, "item") else value
    return encode_number(found)


def encode_number(value: Any) -> Any:
    """Text for what JSON lacks."""
    return str(value) if isinstance(value, complex) or isinstance(encode(value), dict) else value


def difference(array: np.ndarray[Any, Any], stored: np.ndarray[Any, Any]) -> float:
    """The largest difference, relative to the largest number that is stored."""
    if array.dtype.kind == "b" or np.array_equal(array, stored, equal_nan=array.dtype.kind in "fc"):
        return float(not np.array_equal(array, stored, equal_nan=array.dtype.kind in "fc"))
    with np.errstate(all="ignore"):
        gap = np.max(np.abs(np.asarray(array, complex) - np.asarray(stored, complex)))
        size = np.max(np.abs(np.asarray(stored, complex)))
        relative = float(gap / size) if size > 0 else float(gap)
    return relative if np.isfinite(relative) else sys.float_info.max
