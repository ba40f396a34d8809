"""Small worlds for the policies' tests: requests with the fields that matter, and regions by their bits."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vennue.core.assignment import Assignment
from vennue.core.ids import AttemptId, DeviceId, JobId, Signature, assignment_id
from vennue.core.plan import Plan, PoolView, Request
from vennue.core.profile import ResponseProfile

BITS = 70
"""Requirements of a `history`: more than fit a machine word."""


def request(
    job: str, bit: int = 0, needs: int = 10, *, arrival: int | None = None, bound: int = 0, **fields: Any
) -> Request:
    """A request of job ``job``; jobs are named by one letter, and arrive in the order of the alphabet."""
    made = Request(
        AttemptId(f"{job}.1.1"),
        JobId(job),
        bit,
        demand=fields.pop("demand", needs + bound),
        wanted=needs + bound,
        opened_at=fields.pop("opened_at", 0.0),
        deadline_at=fields.pop("deadline_at", None),
        arrival=ord(job[0]) - ord("a") if arrival is None else arrival,
        rounds_left=fields.pop("rounds_left", None),
        attained=fields.pop("attained", 0),
        lottery=fields.pop("lottery", 0.5),
        **fields,
    )
    bind(made, bound)
    return made


def bind(request: Request, devices: int) -> None:
    """Give a request so many devices more."""
    for number in range(len(request.live) + 1, len(request.live) + devices + 1):
        id = assignment_id(request.attempt, number)
        request.live[id] = Assignment(
            id, DeviceId(id), request, Signature(1 << request.bit), 0.0, math.inf, accepted=True, version=0
        )


def region(*bits: int) -> Signature:
    """The region of the devices that meet exactly the requirements under these bits."""
    return Signature(sum(1 << bit for bit in bits))


def view(
    requests: Sequence[Request], rates: Mapping[Signature, float] | None = None, now: float = 0.0, **fields: Any
) -> PoolView:
    """A view with these requests; by default one region that meets every requirement, at one check-in per second."""
    if rates is None:
        rates = {region(*{r.bit for r in requests}): 1.0}
    return PoolView(now, requests, rates, **{"everyone": requests} | fields)


def jobs(plan: Plan, signature: Signature) -> str:
    """The jobs that a region serves, first in front, as one string."""
    return "".join(offer.attempt.partition(".")[0] for offer in plan.offers(signature))


def history(rng: random.Random) -> Iterator[PoolView]:
    """Views of one pool, as requests open, are filled bit by bit and close, and as its supply changes now and then."""
    bits = sorted(rng.sample(range(BITS), rng.randint(1, 6)))
    requests: list[Request] = []
    profiles: dict[JobId, ResponseProfile] = {}
    rates = _rates(rng, bits)
    for step in range(rng.randint(1, 8)):
        for r in requests:
            bind(r, rng.choice([0, 0, 0, 1, 5]))
        requests = [r for r in requests if rng.random() < (0.9 if r.needs else 0.5)] if rng.random() < 0.9 else []
        for _ in range(rng.choice([0, 1, 2, 4])):
            made = _some_request(rng, rng.choice(bits), step, len(requests))
            requests.append(made)
            if rng.random() < 0.5:
                profiles[made.job] = _some_profile(rng)
        if rng.random() < 0.2:
            rates = _rates(rng, bits)
        capabilities = sorted((rng.expovariate(0.02), rng.choice([*rates, region()])) for _ in range(60))
        needy = [r for r in requests if r.needs > 0]
        yield PoolView(60.0 * step, needy, rates, step, capabilities, dict(profiles), list(requests))


def _rates(rng: random.Random, bits: Sequence[int]) -> dict[Signature, float]:
    seen = {region(*(bit for bit in bits if rng.random() < 0.5)) for _ in range(rng.randint(0, 8))}
    return {signature: rng.choice([0.0, 1e-6, 0.1, 0.3, 1.0, 7.5]) for signature in sorted(seen)}


def _some_request(rng: random.Random, bit: int, step: int, number: int) -> Request:
    return request(
        f"j{step}-{number}",
        bit,
        rng.choice([1, 3, 3, 20]),
        arrival=rng.randrange(4),
        bound=rng.choice([0, 0, 2]),
        opened_at=60.0 * step,
        arrived_at=60.0 * rng.randint(0, step),
        committed=rng.randrange(3),
        rounds_left=rng.choice([None, 1, 9]),
        deadline_at=rng.choice([None, 60.0 * step + 300.0]),
        lottery=rng.random(),
        attained=rng.choice([0, 7]),
        weight=rng.choice([1.0, 1.0, 2.0]),
        continuous=rng.random() < 0.1,
    )


def _some_profile(rng: random.Random) -> ResponseProfile:
    profile = ResponseProfile()
    profile.observe_round(rng.choice([0.0, 5.0, 100.0]), rng.choice([0.0, 60.0, 300.0]))
    for _ in range(rng.choice([0, 200])):
        expected_s = rng.expovariate(0.02)
        profile.observe_report(expected_s, expected_s * rng.uniform(0.8, 1.5))
    return profile
