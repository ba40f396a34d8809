"""The pool as numbers for a simulation to go on from: supply by kind of device and hour, jobs with rounds to go."""

from vennue.control.hours import hours_of
from vennue.core.pool import Pool
from vennue.policies.base import Policy
from vennue.protocol import JobLoad, KindSupply, PoolSnapshot


def snapshot(pool: Pool, *, policy: str, planner: object, now: float) -> PoolSnapshot:
    """The pool at this moment. It names kinds of devices, and no device."""
    hours = hours_of(pool.supply, now)
    observed_s = hours.observed_s.tolist()
    return PoolSnapshot(
        taken_at=now,
        policy=policy,
        parameters=_parameters(planner),
        supply=[
            KindSupply(
                attributes={name: list(v) if isinstance(v, tuple) else v for name, v in attributes.items()},
                by_hour_per_s=[
                    None if seconds <= 0 else count / seconds for count, seconds in zip(counts, observed_s, strict=True)
                ],
            )
            for attributes, counts in zip(hours.attributes, hours.counts.T.tolist(), strict=True)
            if any(counts)
        ],
        jobs=[
            JobLoad(
                id=job.id,
                name=job.spec.name,
                spec=job.spec,
                rounds_left=job.rounds_left,
                collection_s=job.collection_s / job.committed if job.committed and job.spec.mode == "sync" else None,
            )
            for job in pool.jobs.values()
            if not job.state.terminal
        ],
    )


def _parameters(planner: object) -> dict[str, bool | int | float | str]:
    if not isinstance(planner, Policy):
        return {}
    fields = planner.parameters.__struct_fields__
    values = {name: getattr(planner.parameters, name) for name in fields}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}
