"""Planning: what one plan of `venn-sched` costs, with every cache cold and when a single request has changed.

Jobs spread over groups whose requirements overlap at random, over 300 regions. The baseline is a `fifo` plan of the
same view: a sort by arrival, which no policy can do without.
"""

import random
from collections.abc import Callable, Iterator

from benchmarks.harness import Result, seconds_per_call
from vennue.core.ids import AttemptId, JobId, Signature
from vennue.core.plan import PoolView, Request
from vennue.policies import get_policy

REGIONS = 300
COLD_GATE_MS = 10.0
INCREMENTAL_GATE_MS = 1.0


def bench_plan() -> Iterator[Result]:
    """Milliseconds per plan."""
    for jobs in (100, 1000):
        for groups in (10, 100):
            view = _view(jobs, groups)
            baseline_ms = _cold("fifo", view)
            yield _result(f"{jobs}-jobs-{groups}-groups-cold", _cold("venn-sched", view), COLD_GATE_MS, baseline_ms)
            yield _result(f"{jobs}-jobs-{groups}-groups", _incremental(view), INCREMENTAL_GATE_MS, baseline_ms)


def _cold(policy: str, view: PoolView) -> float:
    return _ms(lambda: get_policy(policy).plan(view))


def _incremental(view: PoolView) -> float:
    policy = get_policy("venn-sched")
    policy.plan(view)
    rng = random.Random(1)

    def replan() -> None:
        changed = rng.choice(view.requests)
        changed.wanted += rng.choice((-1, 1))
        policy.plan(view)

    return _ms(replan)


def _view(jobs: int, groups: int) -> PoolView:
    rng = random.Random(jobs + groups)
    rates: dict[Signature, float] = {}
    while len(rates) < REGIONS:
        rates[Signature(sum(1 << bit for bit in range(groups) if rng.random() < 0.3))] = rng.expovariate(1.0)
    return PoolView(0.0, [_request(number, rng.randrange(groups), rng) for number in range(jobs)], rates)


def _request(number: int, bit: int, rng: random.Random) -> Request:
    demand = rng.randint(20, 1500)
    return Request(
        AttemptId(f"j{number}.1.1"),
        JobId(f"j{number}"),
        bit,
        demand=demand,
        wanted=demand,
        opened_at=float(number),
        deadline_at=None,
        arrival=number,
        rounds_left=rng.randint(1, 2000),
        attained=0,
        lottery=rng.random(),
    )


def _ms(plan: Callable[[], object]) -> float:
    return seconds_per_call(plan, calls=5, repeats=30) * 1e3


def _result(variant: str, value_ms: float, gate_ms: float, baseline_ms: float) -> Result:
    return Result(
        name=f"plan/{variant}", value=value_ms, unit="ms", gate=gate_ms, higher_is_better=False, baseline=baseline_ms
    )
