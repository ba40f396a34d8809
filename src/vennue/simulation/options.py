"""What a simulated run assumes about devices and the pool, one documented option each, and two presets of them.

``default`` is how Vennue behaves: idle devices ask again, lost ones are replaced. ``faithful`` is how the simulator of
the Venn paper behaves, each of its peculiarities being one option here, so that published figures can be compared and
every difference be switched on by itself.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, cast, get_args

import msgspec

from vennue.core.batch import MAX_WINDOW_S
from vennue.core.errors import InvalidInput, did_you_mean
from vennue.core.job import JobSpec

LONGEST_S = 1e12
"""Longer than any trace, and short enough that seconds still count in a float."""

PresetName = Literal["default", "faithful"]

NotNegative = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_S)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_S)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run assumes. The defaults here are those of the preset ``default``. Durations are in seconds."""

    poll_interval_s: NotNegative = 60.0
    """An idle device asks again after this long, for as long as its session lasts. 0: it asks once, when its session
    begins, and is gone when there is nothing for it (faithful)."""
    tasks_per_session: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tasks after which a device asks no more in a session; 0 for no limit. It matters only while devices ask again."""
    anonymous_sessions: bool = False
    """Whether every session is a device of its own (faithful). Otherwise a device is known again at its next session,
    and starts the task anew that it had not finished, if the pool still waits for it."""
    extend_s: NotNegative = 0.0
    """Added to the end of every session (faithful: 80). It needs anonymous sessions, for a device's next one may begin
    before."""
    dispatch_s: NotNegative = 2.0
    """The task reaches its device after a time drawn uniformly between 0 and this."""
    accept_only_what_fits: bool = True
    """A device declines a task that would outlast its session on the mean device with the mean link."""
    lease_s: Annotated[float, msgspec.Meta(ge=1)] | None = 300.0
    """A device that takes longer is presumed lost and is replaced, unless the job says otherwise. None: as the job
    says, which is by default its deadline, so that no lost device is replaced (faithful)."""
    overcommit: Annotated[float, msgspec.Meta(ge=1, le=10)] = 1.1
    """Devices bound per device asked for, where a synchronous job with a deadline leaves that open. Faithful: 1."""
    min_fraction: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """The share of a round's devices that must report, for every job. None: as each job says."""
    deadlines: bool = True
    """Whether rounds have the deadlines that their jobs ask for; without, a round waits for all its devices."""
    replan_interval_s: NotNegative = 0.0
    """Least time between two plans; 0 plans at the first check-in after each change."""
    batch_window_s: Annotated[float, msgspec.Meta(ge=0, le=MAX_WINDOW_S)] = 0.0
    """Check-ins wait up to this long for one another and are bound together; 0 binds each at once."""
    horizon_s: Positive | None = None
    """The run ends here at the latest. Jobs that have not ended then make every average a lower bound. None: 30 days
    after the last arrival, or ten times as long as it would take to serve all demand with one task per session, if that
    is longer, but at most ten years. Policies that spread devices over many rounds with deadlines may never end
    (`random`, `las`)."""

    def check(self) -> None:
        """Make sure that the options fit each other.

        Raises:
            InvalidInput: they do not; the error says which and why.
        """
        if self.extend_s and not self.anonymous_sessions:
            raise InvalidInput(
                "extended sessions may overlap the device's next one", field="extend_s", value=self.extend_s, limit=0,
                fix="set anonymous_sessions=true with it",
            )  # fmt: skip

    def apply(self, spec: JobSpec) -> JobSpec:
        """What a job of the run really asks for."""
        changes: dict[str, object] = {}
        if spec.mode == "sync":
            if not self.deadlines:
                changes["deadline_s"] = None
            elif spec.deadline_s is not None and spec.overcommit == 1:
                changes["overcommit"] = self.overcommit
            if self.min_fraction is not None and spec.min_reports is None:
                changes["min_fraction"] = self.min_fraction
        changed = msgspec.structs.replace(spec, **changes)
        if self.lease_s is not None and spec.lease_s is None:
            changed = msgspec.structs.replace(changed, lease_s=min(self.lease_s, changed.effective_lease_s))
        return changed


PRESETS: Mapping[PresetName, Options] = {
    "default": Options(),
    "faithful": Options(
        poll_interval_s=0.0,
        tasks_per_session=1,
        anonymous_sessions=True,
        extend_s=80.0,
        lease_s=None,
        overcommit=1.0,
    ),
}


def options(preset: str = "default", /, **changes: object) -> Options:
    """A preset with some options changed.

    Args:
        preset: ``default`` or ``faithful``.
        **changes: options by name; strings are converted to the option's type (``"none"`` to None).

    Raises:
        InvalidInput: there is no such preset or option (the error names the nearest), or a value makes no sense.
    """
    if preset not in get_args(PresetName):
        raise _unknown("preset", preset, get_args(PresetName))
    for name in changes:
        if name not in Options.__struct_fields__:
            raise _unknown("option", name, Options.__struct_fields__)
    fields = msgspec.structs.asdict(PRESETS[cast("PresetName", preset)]) | {
        name: None if isinstance(value, str) and value.lower() == "none" else value for name, value in changes.items()
    }
    try:
        made = msgspec.convert(fields, Options, strict=False)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`") or None
        usual = getattr(PRESETS[cast("PresetName", preset)], field or "", None)
        raise InvalidInput(
            f"{problem}, got {fields.get(field or '')!r}", field=field, value=fields.get(field or ""),
            fix=f"it is {_said(usual)} in the preset {preset}; docs/simulation.md tells what each option takes",
        ) from error  # fmt: skip
    made.check()
    return made


def _said(value: object) -> str:
    """An option's value as one writes it on the command line."""
    return str(value).lower() if value is None or isinstance(value, bool) else f"{value:g}"


def _unknown(what: str, name: str, known: tuple[str, ...]) -> InvalidInput:
    return InvalidInput(
        f"there is no {what} {name!r}", field=what, value=name, limit=known,
        fix=did_you_mean(name, known, "choose one of " + ", ".join(known)),
    )  # fmt: skip
