"""Binding in process: region lookup, plan and assignment, with 1000 jobs and 64 requirements.

Each check-in goes through `Pool.handle` as the server's do, supply counted and timers looked at, and finds a request
that needs a device; the requirements overlap, so regions hold hundreds of offers. The device profiles are known from
earlier check-ins, as they are a minute after a start.
The baseline is what the cheapest possible pool would do with the same events: look the device up in a dictionary.
"""

import random
from collections.abc import Iterator

from benchmarks.harness import Result, seconds_per_call
from vennue.core.events import CheckIn, OpenRound, SubmitJob
from vennue.core.ids import DeviceId, Digest, JobId
from vennue.core.job import JobSpec
from vennue.core.pool import Pool
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.policies import get_policy

JOBS = 1000
REQUIREMENTS = 64
CHECK_INS = 100_000
GATE_PER_S = 200_000


def _pool(policy: str) -> Pool:
    pool = Pool(get_policy(policy))
    for number in range(JOBS):
        step = number % REQUIREMENTS
        requirement = f"device.ram_gb >= {step % 8} && device.cpu_score >= {step // 8}"
        job = JobId(f"j{number}")
        pool.handle(SubmitJob(job, JobSpec(name=job, demand=10_000, requirement=requirement)), 0.0)
        pool.handle(OpenRound(job, 1, Digest("0" * 64)), 0.0)
    return pool


def _check_ins() -> list[CheckIn]:
    rng = random.Random(1)
    profiles = [
        DEFAULT_SCHEMA.check({"ram_gb": ram, "cpu_score": cpu, "android": android})
        for ram in range(1, 13)
        for cpu in range(1, 17)
        for android in range(9, 14)
    ]
    return [CheckIn(DeviceId(f"d{n}"), rng.choice(profiles), rng.random()) for n in range(CHECK_INS)]


def bench_bind() -> Iterator[Result]:
    """Check-ins bound per second under the plans of two policies."""
    events = _check_ins()

    def look_up() -> None:
        held: dict[DeviceId, CheckIn] = {}
        for event in events:
            if event.device not in held:
                held[event.device] = event

    baseline_per_s = CHECK_INS / seconds_per_call(look_up)
    for policy in ("fifo", "venn-sched"):
        yield Result(
            name=f"bind/{policy}",
            value=CHECK_INS / _seconds_to_bind(policy, events),
            unit="/s",
            gate=GATE_PER_S,
            baseline=baseline_per_s,
        )


def _seconds_to_bind(policy: str, events: list[CheckIn]) -> float:
    repeats = 5
    fresh_pools = [_pool(policy) for _ in range(repeats + 1)]
    for pool in fresh_pools:
        for event in events:
            pool.registry.signature(event.profile)

    def bind() -> None:
        handle = fresh_pools.pop().handle
        bound = 0
        for number, event in enumerate(events):
            bound += handle(event, number * 1e-4) is not None
        if bound != CHECK_INS:
            raise RuntimeError(f"only {bound} of {CHECK_INS} check-ins were bound")

    return seconds_per_call(bind, repeats=repeats)
