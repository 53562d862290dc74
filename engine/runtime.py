"""The process that computes: precision, device and compile cache, set before JAX is first used.

In: the settings. Out: a configured JAX, and the facts about it that a store records.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from engine import __version__
from engine.errors import PlanError
from engine.schema import Settings

LIBRARIES = ("jax", "jaxlib", "diffrax", "equinox", "numpy", "scipy", "xarray", "zarr", "dask", "hydra-core")
COMPILED = "/jax/core/compile/backend_compile_duration"
CACHE_HIT = "/jax/compilation_cache/cache_hits"
CALLBACKS = logging.getLogger("jax._src.callback")
"""JAX prints the traceback of a callback that raised; it is in the engine's own log already."""

XLA_FLAGS = (
    ("xla_cpu_prefer_vector_width", "512", (0, 10), (0, 13), "avx512f"),
    ("xla_backend_extra_options", "xla_cpu_small_while_loop_byte_threshold=1000000", (0, 10), (0, 11), ""),
)
"""Name, value, the versions of jaxlib from and before which it is given, and the instructions that the processor must have.

The first has vectors as wide as the processor's (a tenth to a fifth faster); the second has a loop compiled as one function, not as a
list of kernels (a third faster), which later versions do by themselves. A jaxlib ends the process at a flag that it does not know, so
none is given to a version that it was not measured with (`scripts/bench.py`).
"""

SET_HERE: set[str] = set()
"""Variables of the environment that this process has set by itself."""


def configure(settings: Settings) -> list[str]:
    """Set precision, device and compile cache for this process.

    Returns:
        The settings by which JAX itself would end the run at the first number that is not finite; they are switched off.

    Raises:
        PlanError: JAX already runs on another platform, or the device asked for is not there.
    """
    wide = settings.precision == "float64"
    os.environ["JAX_ENABLE_X64"] = str(wide).lower()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    set_preallocation(settings.execution.preallocate)
    set_xla_flags()
    import jax

    from engine import jax_settings

    jax.config.update("jax_enable_x64", wide)
    jax.config.update("jax_disable_jit", False)  # execution.jit says it
    debugging = jax_settings.stop_debugging()
    set_compile_cache(settings.execution.compile_cache)
    device = find_device(settings.execution.device)
    jax.config.update("jax_default_device", device)
    listen()
    return debugging


def set_preallocation(part: bool | float) -> None:
    """How much of a GPU's memory JAX takes when it starts; variables that the user has set are left alone.

    JAX takes three quarters unless told otherwise, so that a second process finds none; the engine lets it take what it needs.
    """
    if {"XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & set(os.environ) - SET_HERE:
        return
    SET_HERE.update({"XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"})
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = str(bool(part)).lower()
    if isinstance(part, float):
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = str(part)
    else:
        os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)


def set_xla_flags() -> None:
    """Have XLA make the faster of the programs that it can make for this processor; flags that the user has set are left alone.

    XLA reads them once, when JAX starts: where it has, nothing is changed.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and getattr(bridge, "backends_are_initialized", lambda: True)():
        return
    given = os.environ.get("XLA_FLAGS", "")
    jaxlib = tuple(int(part) for part in version_of("jaxlib").split(".")[:2] if part.isdigit())
    more = [
        f"--{name}={value}"
        for name, value, first, beyond, instructions in XLA_FLAGS
        if first <= jaxlib < beyond and name not in given and instructions in processor()
    ]
    if more:
        os.environ["XLA_FLAGS"] = " ".join([given, *more]).strip()


def find_device(kind: str) -> Any:
    """The device asked for, or None for JAX's own choice.

    Raises:
        PlanError: there is none of that kind.
    """
    import jax

    try:
        jax.devices()
    except Exception as error:
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise PlanError(
            f"`JAX_PLATFORMS` must name a platform that JAX can start here, but is {asked!r}: {(str(error) or 'none').splitlines()[0]}. "
            "Unset the variable, or set it to cpu."
        ) from None
    if kind == "auto":
        return None
    try:
        return jax.devices(kind)[0]
    except RuntimeError:
        found = sorted({device.platform for device in jax.devices()})
        extra = {
            "gpu": " Install the extra `cuda` on a machine with an NVIDIA GPU.",
            "tpu": " Install the extra `tpu`.",
        }
        raise PlanError(
            f"`execution.device` must be a device of this machine, but is {kind!r} and there is only {', '.join(found)}."
            f"{extra.get(kind, '')}"
        ) from None


def devices(kind: str) -> tuple[Any, ...]:
    """This process's devices of a kind; for auto, of the kind that JAX prefers."""
    import jax

    if kind == "auto":
        return tuple(jax.local_devices())
    chosen = find_device(kind)
    return tuple(jax.local_devices(backend=chosen.platform))


def workers(scheduler: str, platform: str) -> int:
    """Chunks in flight: one on each core; on an accelerator one that computes while another is stored."""
    if scheduler == "synchronous":
        return 1
    return cores() if platform == "cpu" else min(2, cores())


def set_compile_cache(where: str) -> None:
    """Point JAX's persistent compile cache at a folder of this kind of machine.

    Compiled CPU code holds the instructions of the processor it was compiled for, so the folder is named after it. A cache that
    the user has set through JAX's own variable is left alone.
    """
    import jax

    if where == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_enable_compilation_cache", True)
    if where == "auto" and os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    folder = cache_folder() if where == "auto" else Path(where).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if where != "auto":
            raise PlanError(
                f"`execution.compile_cache` must be a folder that can be written, but {where!r} is not: {error.strerror}. "
                "Name another, or write off."
            ) from None
        jax.config.update("jax_enable_compilation_cache", False)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache_folder() -> Path:
    """Where compiled programs are kept: under the user's cache folder, by processor and version of jaxlib."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    kind = hashlib.sha256("\n".join((platform.machine(), processor(), metadata.version("jaxlib"))).encode()).hexdigest()
    return Path(base).expanduser() / "diffsim-engine" / f"programs-{kind[:12]}"


def processor() -> str:
    """The processor's model and instruction sets, as far as the platform tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        first = text.split("\n\n", 1)[0].splitlines()
        wanted = ("model name", "flags", "Features", "CPU part")
        return "\n".join(line for line in first if line.startswith(wanted))
    except OSError:
        return platform.processor()


@dataclass
class CompileLog:
    """What JAX compiled since the process began: programs built or loaded, seconds, and hits of the persistent cache."""

    programs: int = 0
    seconds: float = 0.0
    cache_hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    listening: bool = False
    unheard: set[int] = field(default_factory=set)
    """Threads that check something, and whose small programs are none of the run's."""

    def copy(self) -> CompileLog:
        """The counts as they stand."""
        return CompileLog(self.programs, self.seconds, self.cache_hits)


LOG = CompileLog()


def listen() -> None:
    """Count compilations by JAX's own events; the first call in a process registers the listeners."""
    import jax

    with LOG.lock:
        if LOG.listening:
            return
        LOG.listening = True

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED and threading.get_ident() not in LOG.unheard:
            with LOG.lock:
                LOG.programs += 1
                LOG.seconds += duration_secs

    def on_event(event: str, **_: Any) -> None:
        if event == CACHE_HIT and threading.get_ident() not in LOG.unheard:
            with LOG.lock:
                LOG.cache_hits += 1

    jax.monitoring.register_event_duration_secs_listener(on_duration)
    jax.monitoring.register_event_listener(on_event)


def check_profile(folder: str | None) -> None:
    """Refuse a folder for a profile that could not be made; nothing is made.

    Raises:
        PlanError: it is there and is no folder, or the folder around it cannot be written.
    """
    if folder is None:
        return
    where = Path(folder).expanduser().absolute()
    there = next(path for path in (where, *where.parents) if path.exists())
    why = "Not a directory" if not there.is_dir() else "" if os.access(there, os.W_OK) else "Permission denied"
    if why:
        raise PlanError(
            f"`execution.profile` must be a folder that can be written, but {folder!r} is not: {why} ({there}). Name another."
        )


@contextmanager
def profiled(folder: str | None) -> Iterator[None]:
    """Write a trace of JAX's profiler into a folder while the block runs; for None, do nothing.

    Raises:
        PlanError: the folder cannot be written.
    """
    if folder is None:
        yield
        return
    import jax

    where = Path(folder).expanduser().absolute()
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(
            f"`execution.profile` must be a folder that can be written, but {folder!r} is not: {error.strerror}. Name another."
        ) from None
    with jax.profiler.trace(str(where)):
        yield


@contextmanager
def quiet_callbacks() -> Iterator[None]:
    """Keep JAX from printing what a callback raises: the engine tells it."""
    disabled, CALLBACKS.disabled = CALLBACKS.disabled, True
    try:
        yield
    finally:
        CALLBACKS.disabled = disabled


@contextmanager
def counted() -> Iterator[CompileLog]:
    """Count what is compiled inside the block: the log that is yielded is filled at its end."""
    before, result = LOG.copy(), CompileLog()
    try:
        yield result
    finally:
        result.programs = LOG.programs - before.programs
        result.seconds = LOG.seconds - before.seconds
        result.cache_hits = LOG.cache_hits - before.cache_hits


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave what this thread compiles inside the block out of every count."""
    LOG.unheard.add(threading.get_ident())
    try:
        yield
    finally:
        LOG.unheard.discard(threading.get_ident())


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that a result depends on."""
    found = {"python": platform.python_version(), "diffsim-engine": __version__}
    return found | {name: version_of(name) for name in LIBRARIES}


@cache
def version_of(distribution: str) -> str:
    """The installed version of a distribution, or `none`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "none"


def device_facts() -> dict[str, Any]:
    """The device that programs run on, as JAX names it."""
    import jax

    device = jax.config.jax_default_device or jax.devices()[0]
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "count": jax.local_device_count(),
        "cores": cores(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def git_state(folder: Path) -> dict[str, Any]:
    """Commit and cleanliness of the repository that holds `folder`; empty where there is none."""
    import subprocess

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return {}


def is_interactive() -> bool:
    """Whether progress is watched on a terminal."""
    return sys.stderr.isatty()
