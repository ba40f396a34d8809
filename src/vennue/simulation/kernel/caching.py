"""Where the kernel's compiled code is kept: a directory of its own for each version of everything that it depends on.

Numba looks at the file of a function alone to tell whether what it kept is still good. The kernel's functions take in
others, and constants of other files: code kept from before a change of those would read memory laid out otherwise, and
crash. So the directory is named by a digest of all these files, of Python, numba and the processor.
"""

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, cast

import llvmlite.binding as llvm
import numba
from numba.core import config

_config = cast("Any", config)  # its declared types lack its settings

SOURCES = (
    "vennue.core.profile",
    "vennue.policies.fairness",
    "vennue.policies.matching",
    "vennue.simulation.result",
    "vennue.simulation.world",
)
"""The modules beside the kernel's own whose constants and types are part of the compiled code."""

_BESIDE_BYTE_CODE = Path(__file__).parent / "__pycache__"


@contextmanager
def cache_directory() -> Iterator[bool]:
    """Have numba keep what is declared within this context in the kernel's directory; whether there is one.

    It is in ``NUMBA_CACHE_DIR`` if that is set, else beside the package's byte code, else among the user's caches. When
    none of them can be written to, the kernel is compiled anew by every process.
    """
    before = _config.CACHE_DIR
    found = _directory()
    _config.CACHE_DIR = before if found is None else str(found)
    try:
        yield found is not None
    finally:
        _config.CACHE_DIR = before


def is_kept() -> bool:
    """Whether the loop's compiled code is in that directory, so that no process has to compile it."""
    found = _directory()
    return found is not None and any(found.rglob("loop.advance-*.nbc"))


def _directory() -> Path | None:
    bases = [Path(_config.CACHE_DIR)] if _config.CACHE_DIR else [_BESIDE_BYTE_CODE, _user_caches() / "vennue"]
    return next((base / f"kernel-{digest()}" for base in bases if _is_writable(base)), None)


def digest() -> str:
    """Stands for all that the compiled code depends on."""
    kept = hashlib.sha256()
    for module in SOURCES:
        package, _, name = module.rpartition(".")
        kept.update(resources.files(package).joinpath(f"{name}.py").read_bytes())
    own = resources.files(__package__).iterdir()
    for file in sorted((file for file in own if file.name.endswith(".py")), key=lambda file: file.name):
        kept.update(file.read_bytes())
    machine = (sys.implementation.cache_tag, numba.__version__, llvm.get_host_cpu_name(), _processor_features())
    kept.update(repr(machine).encode())
    return kept.hexdigest()[:16]


def _processor_features() -> str:
    try:
        return str(llvm.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM cannot tell on this kind of processor
        return ""


def _user_caches() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)
