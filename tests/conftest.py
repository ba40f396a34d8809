"""What every test shares: Hypothesis profiles, and the skip of tests whose service this machine does not have.

Profiles: ``dev`` is the default, ``ci`` (when ``CI`` is set) has twice as many examples. Both draw the same ones on
every run, so a failure is never luck; ``soak`` searches for hours (``make soak``).
"""

import gc
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Deadlines are off: an example's duration says more about the machine than about the code.
_COMMON: dict[str, Any] = {
    "deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]
}  # fmt: skip
_THE_SAME: dict[str, Any] = {"derandomize": True, "database": None}
settings.register_profile("dev", max_examples=50, **_THE_SAME, **_COMMON)
settings.register_profile("ci", max_examples=100, **_THE_SAME, **_COMMON)
settings.register_profile("soak", max_examples=10_000, **_COMMON)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A shell lets programs in the background ignore Ctrl-C, and those that they start: tests stop theirs by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nor does what a test sees depend on the terminal, the settings or the proxy of whoever runs it.
for _name in [*os.environ]:
    if _name.startswith("VENNUE_") or _name in {"COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE"}:
        del os.environ[_name]
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, (os.environ.get(_name), "127.0.0.1,localhost,::1")))

# Debian keeps daemons out of an ordinary user's PATH, and PostgreSQL's out of everybody's.
_POSTGRES = map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))
PROGRAM_PATH = os.pathsep.join([*_POSTGRES, os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])


def pytest_collection_finish() -> None:
    """Let no collection look through thousands of tests and their modules again: it takes as long as a simulation."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked ``services("nginx")`` where that program is not installed."""
    for marker in item.iter_markers("services"):
        missing = [program for program in marker.args if shutil.which(program, path=PROGRAM_PATH) is None]
        if missing:
            pytest.skip(f"needs {', '.join(missing)}: install it, or run `make test-all` as root on Debian")


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    """A test that leaves a logger of ours less to say fails itself, and not one that listens later."""
    yield
    assert logging.getLogger("vennue").getEffectiveLevel() == logging.WARNING
