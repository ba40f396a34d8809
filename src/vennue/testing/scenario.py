"""What a seed stands for: the jobs, the devices, and everything that is going to go wrong.

A scenario is drawn whole before anything runs, so what happens in a simulation never changes what the seed stands for.
Times are virtual seconds from the beginning.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from vennue.core.tenant import Quota
from vennue.testing.ledgers import Fault

ChaosKind = Literal[
    "kill the server", "stop the server", "break the ledger", "turn the wall's clock", "freeze the server",
    "kill a device", "double a device", "cut a device off", "kill an owner", "cancel a job", "change the policy",
]  # fmt: skip

POLICIES: Final = ("fifo", "srsf", "las", "random", "random-order", "venn-sched", "venn")
RAM_GB: Final = (2, 4, 8)
REQUIREMENTS: Final = ("true", "device.ram_gb >= 4", "device.ram_gb >= 8", "device.ram_gb < 8")
PRIVATE: Final = "device.samples >= 50"
QUOTA: Final = 2

_CHAOS: Final[dict[ChaosKind, int]] = {
    "kill the server": 4,
    "stop the server": 1,
    "break the ledger": 2,
    "turn the wall's clock": 1,
    "freeze the server": 1,
    "kill a device": 4,
    "double a device": 1,
    "cut a device off": 3,
    "kill an owner": 2,
    "cancel a job": 1,
    "change the policy": 1,
}
"""How often each happens, relative to the others."""


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """A job, and when its owner comes."""

    key: str
    starts_at_s: float
    spec: dict[str, Any]
    is_managed: bool = False
    """Whether the platform runs its rounds."""
    after: tuple[tuple[int, str], ...] = ()
    """Earlier jobs of the scenario, by their places, and which of their ends will do."""


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """A device."""

    name: str
    attributes: dict[str, Any]
    private: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chaos:
    """Something that happens at a moment: to whom, and for how long."""

    at_s: float
    kind: ChaosKind
    pick: float
    """Which of those that it may happen to, as a number in [0, 1)."""
    for_s: float


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """All that a seed stands for."""

    seed: int
    policy: str
    jobs: tuple[JobPlan, ...]
    devices: tuple[DevicePlan, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """More settings of the server."""
    chaos_s: float = 0.0
    """For how long things go wrong. Then nothing does any more, and every job has to end."""
    chaos: tuple[Chaos, ...] = ()
    network: dict[str, Any] = field(default_factory=dict)
    """Rates of `vennue.testing.FaultyTransport`."""
    ledger: dict[str, Any] = field(default_factory=dict)
    """Rates of `vennue.testing.FaultyLedger`."""
    ledger_faults: tuple[tuple[int, Fault], ...] = ()
    """What happens at given writes to the ledger, counted from 1."""
    disk_s: float = 0.0
    """The longest that a piece of work on the disk takes."""
    disk_fail_rate: float = 0.0
    """Probability that a piece of work on the disk fails."""
    disk_crash_rate: float = 0.0
    """Probability that the server dies before or after a piece of work on the disk, alike."""
    misbehaving: float = 0.0
    """Probability that a device does something else with a task than to train and report it."""


def scenario(seed: int) -> Scenario:
    """The seed's scenario."""
    rng = random.Random(f"scenario {seed}")
    devices = tuple(_device(rng, number) for number in range(rng.randint(4, 7)))
    jobs: list[JobPlan] = []
    for number in range(rng.randint(1, 4)):
        jobs.append(_job(rng, number, jobs, devices))
    chaos_s = rng.uniform(30, 150)
    badness = rng.choice((0.2, 1.0, 1.0, 2.0))
    kinds, weights = tuple(_CHAOS), tuple(_CHAOS.values())
    chaos = [
        Chaos(
            at_s=rng.uniform(0, chaos_s),
            kind=rng.choices(kinds, weights)[0],
            pick=rng.random(),
            for_s=rng.choice((0.1, 2.0, 30.0)) * rng.uniform(0.5, 1.5),
        )
        for _ in range(rng.randint(0, round(10 * badness)))
    ]
    return Scenario(
        seed=seed,
        policy=rng.choice(POLICIES),
        settings=_settings(rng),
        jobs=tuple(jobs),
        devices=devices,
        chaos_s=chaos_s,
        chaos=tuple(sorted(chaos, key=lambda one: one.at_s)),
        network={
            "drop": badness * rng.uniform(0, 0.1),
            "delay": rng.uniform(0.2, 1.0),
            "delay_s": (0.001, rng.choice((0.05, 0.5, 0.5, 5.0))),
            "duplicate": badness * rng.uniform(0, 0.1),
            "replay": badness * rng.uniform(0, 0.1),
            "disconnect": badness * rng.uniform(0, 0.1),
        },
        ledger={
            "crash_rate": badness * rng.uniform(0, 0.1),
            "fail_rate": badness * rng.uniform(0, 0.1),
            "delay_s": (0.0, rng.choice((0.0, 0.01, 0.5))),
        },
        disk_s=rng.choice((0.0, 0.01, 1.0)),
        disk_fail_rate=rng.choice((0.0, badness * rng.uniform(0, 0.05))),
        disk_crash_rate=badness * rng.uniform(0, 0.02),
        misbehaving=badness * rng.uniform(0, 0.2),
    )


def _settings(rng: random.Random) -> dict[str, Any]:
    return {
        "batch_window_s": rng.choice((0.0, 0.0, 0.0, 3.0)),
        "replan_interval_s": rng.choice((0.0, 0.0, 5.0)),
        "quotas": {"few": Quota(devices=QUOTA, borrow=rng.random() < 0.5)},
    }


def _device(rng: random.Random, number: int) -> DevicePlan:
    return DevicePlan(
        name=f"d{number}",
        attributes={"ram_gb": rng.choice(RAM_GB)},
        private={"samples": rng.choice((10, 100))},
    )


def _job(rng: random.Random, number: int, earlier: list[JobPlan], devices: tuple[DevicePlan, ...]) -> JobPlan:
    """A job that can run: at least one of the devices may serve it, and it asks for no more than there are."""
    while True:
        requirement, is_private = rng.choice(REQUIREMENTS), rng.random() < 0.3
        able = [
            device
            for device in devices
            if _meets(device.attributes["ram_gb"], requirement) and (not is_private or device.private["samples"] >= 50)
        ]
        if able:
            break
    spec: dict[str, Any] = {
        "name": f"job {number}",
        "demand": rng.randint(1, min(4, len(able))),
        "rounds": rng.randint(1, 5),
        "requirement": requirement,
        "lease_s": rng.choice((20.0, 60.0)),
    }
    if is_private:
        spec["private_requirement"] = PRIVATE
    if rng.random() < 0.4:
        spec["deadline_s"] = rng.choice((60.0, 200.0))
    if rng.random() < 0.3:
        spec["overcommit"] = rng.choice((1.5, "auto"))
    if rng.random() < 0.2:
        spec["min_reports"] = rng.randint(1, spec["demand"])
    if rng.random() < 0.2:
        spec["max_attempts"] = rng.randint(1, 5)
    if rng.random() < 0.1:
        spec["weight"] = 4.0
    if rng.random() < 0.3 and spec["demand"] <= QUOTA:
        spec["tenant"] = "few"
    after: tuple[tuple[int, str], ...] = ()
    if earlier and rng.random() < 0.3:
        after = ((rng.randrange(len(earlier)), rng.choice(("completed", "ended"))),)
    return JobPlan(
        key=f"key {number}",
        starts_at_s=rng.choice((0.0, rng.uniform(0, 30))),
        spec=spec,
        is_managed=rng.random() < 0.25,
        after=after,
    )


def _meets(ram_gb: int, requirement: str) -> bool:
    return {"true": True, "device.ram_gb >= 4": ram_gb >= 4, "device.ram_gb >= 8": ram_gb >= 8}.get(
        requirement, ram_gb < 8
    )
