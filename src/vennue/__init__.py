"""Vennue lets many federated-learning jobs share one pool of devices.

This module is the public surface: what users import is re-exported here, and nothing else is promised to stay. The
parts behind it import one way only, core ← policies ← simulation, control ← server ← cli. A name is loaded when it is
first used, so whoever needs one part (a policy, a simulation, the command line) does not wait for the others.
"""

from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all of this module
if TYPE_CHECKING:
    from vennue import errors
    from vennue.core.job import JobSpec
    from vennue.sdk import AsyncDevice, AsyncJob, AsyncRound, AsyncTask, Device, Job, Retry, Round, Task, Timing

__all__ = [
    "AsyncDevice",
    "AsyncJob",
    "AsyncRound",
    "AsyncTask",
    "Device",
    "Job",
    "JobSpec",
    "Retry",
    "Round",
    "Task",
    "Timing",
    "errors",
]
__version__: str


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("vennue")
    if name == "errors":
        return import_module("vennue.errors")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "vennue.core.job" if name == "JobSpec" else "vennue.sdk"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
