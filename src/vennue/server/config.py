"""The server's configuration: one typed object, with defaults that work on one machine.

The environment (`ServerConfig.from_environment`) and the command line only fill it in; nothing else in the server
reads either. Validation happens when it is made, so a server never starts on a configuration that makes no sense.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_origin

import msgspec

from vennue.control.explain import STALL_GRACE_S
from vennue.control.keeper import Keeping
from vennue.control.pacing import Pacing
from vennue.core.batch import MAX_WINDOW_S
from vennue.core.errors import InvalidInput, did_you_mean
from vennue.core.job import Setting
from vennue.core.tenant import Quota

log = logging.getLogger("vennue.server")

GIB = 2**30
MIN_KEY = 16
_OTHERS = {"VENNUE_SERVER", "VENNUE_DEBUG"}
"""What the environment may say to other parts of Vennue."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one caller may ask of the server. Sizes in bytes, durations in seconds."""

    json_bytes: int = 2**20
    """The largest JSON body."""
    check_in_bytes: int = 64 * 1024
    """The largest check-in."""
    blob_bytes: int = 4 * GIB
    """The largest model. A report may be as large as its round's model."""
    idle_body_s: float = 60.0
    """A body of which nothing arrives for this long is given up."""
    wait_s: float = 60.0
    """The longest long poll; a client that asks for more gets this."""
    waiters: int = 10_000
    """Long polls at once; more are told to come back."""
    jobs: int = 10_000
    """Active jobs at once; who submits more is told to come back."""
    connections: int = 16_384
    """Connections at once; more are told to come back."""
    idle_connection_s: float = 30.0
    """A connection on which no request comes for this long is closed."""
    lag_s: float = 1.0
    """When the server's event loop comes later than this, check-ins are told to come back, unread."""
    record_bytes: int = GIB
    """The most that recordings of check-ins take; the oldest go first."""
    variant_bytes: int = 4 * GIB
    """How much of the disk other forms of models (compressed, deltas, rounded) may take; a cache."""
    uploads: int = 1024
    """Reports and models being received at once; more are told to come back."""
    least_bytes_per_s: float = 1024.0
    """A body that arrives more slowly than this, over ``idle_body_s`` and more, is given up."""


class LeafSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a leaf works."""

    flush_reports: int = 1000
    """A partial sum goes to the root when so many reports wait for one,"""
    flush_bytes: int = 4 * GIB
    """or so many bytes of them,"""
    flush_s: float = 0.5
    """or when the first of them has waited this long."""
    deadline_margin_s: float = 5.0
    """And always so long before the end of the round's deadline."""
    answer_s: float = 30.0
    """How long a device's report waits to be counted before the device is told to ask again."""
    cache_bytes: int = 20 * GIB
    """How much of the disk models may take."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that ``vennue serve`` can be told."""

    host: str = "127.0.0.1"
    """The address to listen on; ``0.0.0.0`` for every one of this machine's."""
    port: int = 8765
    """0 takes a free port; the server says which."""
    data_dir: Path = Path("vennue-data")
    """Where the ledger, models and reports live. One server at a time may use it."""
    policy: str = "venn-sched"
    parameters: dict[str, Setting] = {}
    """The policy's parameters."""
    policy_files: list[str] = []
    """Python files that define policies of one's own, to be known by their names."""
    strategy_files: list[str] = []
    """The same for strategies. A leaf without a job's strategy passes its reports on one by one."""
    attributes: dict[str, Any] = {}
    """Device attributes beyond the usual ones, for requirements: their names and kinds, as in ``{"lidar": "bool"}``."""
    seed: int = 0
    """Of the lottery that ``random-order`` uses."""
    replan_interval_s: float = 0.0
    """Least time between two plans."""
    accept_lease_s: float = 30.0
    """How long a device may take to answer to a private requirement."""
    pacing: Pacing = Pacing()
    """When devices that found no task come back."""
    admission_window_s: float = 86_400.0
    """Jobs above all observed supply are refused once the pool has been observed for this long."""
    stall_grace_s: float = STALL_GRACE_S
    """A job for which no eligible device has checked in for this long counts as stalled."""
    quotas: dict[str, Quota] = {}
    """Of tenants, by name, as in ``{"vision": {"devices": 500}}``; ``"*"`` stands for every tenant not named."""
    role: Literal["root", "leaf"] = "root"
    """A root keeps the pool; a leaf takes models to devices and sums up their reports, for the root."""
    root: str = ""
    """A leaf's: the address of the root, or of the leaf above."""
    leaf_key: str = ""
    """The secret that leaves show to the root and to each other. A root without one takes no leaves."""
    leaf: LeafSettings = LeafSettings()
    batch_window_s: float = 0.0
    """How long check-ins may wait to be bound together; 0 binds each at once."""
    limits: Limits = Limits()
    drain_s: float = 10.0
    """At a stop, how long requests and commits in flight may take."""
    record_dir: Path | None = None
    """Where to record check-ins for replays: kinds of devices and times, no device. By default nowhere."""
    keep: Keeping = Keeping()
    """When models that no job needs are removed."""
    least_free_bytes: int = 64 * 2**20
    """With less room on the disk than this, the server says that it is not ready; 0 for no bound."""
    spare_bytes: int = GIB
    """How much of the disk files of past rounds' reports may take, until later ones are written over them, which is
    faster; 0 removes each with its round."""
    disk_quota_bytes: int | None = None
    """How much of the disk models, and uploads of them, may take; no bound by default."""
    durable_blobs: bool = True
    """Whether models and aggregates survive a power loss, and not only a crash of the process."""
    durable_reports: bool = False
    """Whether acknowledged reports survive a power loss, and not only a crash of the process."""
    validate: bool = False
    """Check the core's invariants after every event: for tests, at a high cost."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise _bad("port", self.port, "must be 0 to 65535", "0 takes a free port")
        if not self.host:
            raise _bad("host", self.host, "must be an address", "127.0.0.1 for this machine only, 0.0.0.0 for all")
        durations = (
            "accept_lease_s", "admission_window_s", "batch_window_s", "drain_s", "replan_interval_s", "stall_grace_s",
        )  # fmt: skip
        for field in durations:
            value = getattr(self, field)
            if not 0 <= value < float("inf"):
                raise _bad(field, value, "must be 0 or more seconds", "give a duration")
        if self.batch_window_s > MAX_WINDOW_S:
            raise _bad(
                "batch_window_s", self.batch_window_s, f"must be at most {MAX_WINDOW_S:g} s: devices wait so long for "
                "an answer", "2 collects two seconds of check-ins, 0 binds each at once",
            )  # fmt: skip
        if self.disk_quota_bytes is not None and self.disk_quota_bytes <= 0:
            raise _bad("disk_quota_bytes", self.disk_quota_bytes, "must be above 0", "leave it out for no quota")
        for field, fix in (("least_free_bytes", "0 for no bound"), ("spare_bytes", "0 to keep none")):
            if getattr(self, field) < 0:
                raise _bad(field, getattr(self, field), "must be 0 or more bytes", fix)
        for group in ("keep", "limits", "leaf"):
            for name, value in msgspec.structs.asdict(getattr(self, group)).items():
                if not 0 < value < float("inf"):
                    raise _bad(f"{group}.{name}", value, "must be above 0", "leave it out for the default")
        self._check_leaf()

    def _check_leaf(self) -> None:
        if self.role == "leaf":
            if not self.root.startswith(("http://", "https://")):
                raise _bad("root", self.root, "must be the root's address", "write it as in http://pool.example:8765")
            if not self.leaf_key:
                raise _bad("leaf_key", "", "must be the root's secret for leaves", "give both the same VENNUE_LEAF_KEY")
        elif self.root:
            raise _bad("root", self.root, "is a leaf's, and this server is a root", "add VENNUE_ROLE=leaf")
        if self.leaf_key and len(self.leaf_key) < MIN_KEY:
            raise _bad("leaf_key", "…", f"must have {MIN_KEY} characters or more", "draw one: openssl rand -hex 32")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **flags: Any) -> Self:
        """The configuration from ``VENNUE_*`` variables, over which ``flags`` that are not None take precedence.

        A variable is named for its field, ``VENNUE_PORT`` or ``VENNUE_LIMITS_BLOB_BYTES``; what is not text is
        written as in JSON. Variables of other parts of Vennue are left alone; one that looks like a misspelt setting
        is told in the log.

        Raises:
            InvalidInput: a value that makes no sense; the error names the variable or flag.
        """
        values: dict[str, Any] = {}
        settings = {"VENNUE_" + "_".join(path).upper(): (path, kind) for path, kind in _leaves(cls)}
        for name, (path, kind) in settings.items():
            if name in environ:
                _place(values, path, _parse(name, environ[name], kind))
        for name in environ:
            if name.startswith("VENNUE_") and name not in settings and name not in _OTHERS:
                # Compared without what all begin with, which would make any two of them alike.
                ours = (setting.removeprefix("VENNUE_") for setting in settings)
                near = did_you_mean(name.removeprefix("VENNUE_"), ours, "")
                if near:
                    log.warning("%s is no setting, and left alone: %s", name, near.replace("'", "'VENNUE_", 1))
        values |= {flag: value for flag, value in flags.items() if value is not None}
        try:
            return msgspec.convert(values, cls, dec_hook=_decode_path)
        except msgspec.ValidationError as error:
            raise InvalidInput(str(error), field="configuration") from error


def _leaves(kind: type[msgspec.Struct], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for field in msgspec.structs.fields(kind):
        here = (*path, field.name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            leaves += _leaves(field.type, here)
        else:
            leaves.append((here, field.type))
    return leaves


def _place(values: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


_AS_JSON = """write the value as in JSON: 8765, 0.5, true, or {"name": 1}"""


def _parse(name: str, text: str, kind: Any) -> Any:
    if kind in {str, Path, Path | None} or get_origin(kind) is Literal:
        return text
    if kind is bool:
        try:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        except KeyError:
            raise _bad(name, text, "must be 1 or 0", "1 for yes, 0 for no") from None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{error}, got {text!r}", field=name, value=text, fix="take a value and names that the setting has"
        ) from None
    except msgspec.MsgspecError:
        raise InvalidInput(f"is no JSON, got {text!r}", field=name, value=text, fix=_AS_JSON) from None


def _decode_path(kind: type, value: object) -> Any:
    if kind is Path and isinstance(value, str | os.PathLike):
        return Path(value)
    raise NotImplementedError(f"{kind} in a configuration")


def _bad(field: str, value: object, message: str, fix: str) -> InvalidInput:
    return InvalidInput(f"{message}, got {value!r}", field=field, value=value, fix=fix)
