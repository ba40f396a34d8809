"""What the core does to a check-in before it binds: attributes to profile, profile to region, and counting it.

Also what a requirement that nobody has asked for before costs a pool of 4096 kinds of devices. The baseline of a
look-up is the cheapest thing that could be in its place: a method that reads a dictionary of strings.
"""

import random
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.harness import Result, seconds_per_call
from vennue.core.region import RequirementRegistry
from vennue.core.requirement import Requirement
from vennue.core.supply import Supply

REQUIREMENTS = 64
KINDS = 4096
CALLS = 50_000


class _Directory:
    def __init__(self) -> None:
        self.numbers = {f"d{number}": number for number in range(KINDS)}

    def number(self, name: str) -> int:
        return self.numbers[name]


def _registry() -> RequirementRegistry:
    registry = RequirementRegistry()
    for number in range(REQUIREMENTS):
        registry.register(Requirement.parse(f"device.ram_gb >= {number % 8} && device.cpu_score >= {number // 8}"))
    return registry


def _device(number: int) -> dict[str, object]:
    """One of 4096 kinds; a requirement over memory and score sees 256 of them apart."""
    return {
        "ram_gb": number % 16,
        "cpu_score": number // 16 % 16 + 0.5,
        "android": number // 256 % 16,
        "os": "android",
        "charging": True,
        "data": ["keyboard", "photos"],
    }


def _ns(call: Callable[[], object]) -> float:
    return seconds_per_call(call, calls=CALLS) * 1e9


def bench_requirement() -> Iterator[Result]:
    """Profiles, signatures and supply, for a device seen before and for a requirement never seen."""
    registry, supply, directory = _registry(), Supply(), _Directory()
    device = _device(1000)
    raw = msgspec.json.encode(device)
    profile = registry.profile(device)
    lookup_ns = _ns(lambda: directory.number("d1000"))

    def at_most(name: str, call: Callable[[], object], gate_ns: float) -> Result:
        return Result(
            name=f"requirement/{name}", value=_ns(call), unit="ns", gate=gate_ns, higher_is_better=False,
            baseline=lookup_ns,
        )  # fmt: skip

    yield at_most("signature", lambda: registry.signature(profile), 150)
    yield at_most("profile_of_raw", lambda: registry.profile_of_raw(raw), 300)
    yield at_most("profile", lambda: registry.profile(device), 1500)
    yield at_most("observe", lambda: supply.observe(profile, 5.0), 300)

    rng = random.Random(1)
    for number in rng.sample(range(KINDS), KINDS):
        supply.observe(registry.profile(_device(number)), number * 0.1)
    now = KINDS * 0.1
    supply.region_rates(registry, now)
    texts = iter(f"device.ram_gb >= {number % 8}.5 && device.cpu_score > {number}.25" for number in range(1000))

    def rates_again() -> None:
        supply.region_rates(RequirementRegistry(), now)

    yield Result(
        name="requirement/region_rates", value=seconds_per_call(rates_again) * 1e3, unit="ms", higher_is_better=False
    )
    yield Result(
        name="requirement/new_rate",
        value=seconds_per_call(lambda: supply.rate(Requirement.parse(next(texts)), now), repeats=20) * 1e3,
        unit="ms",
        higher_is_better=False,
    )
    yield Result(
        name="requirement/parse",
        value=seconds_per_call(lambda: Requirement.parse("device.ram_gb >= 4 && device.charging"), calls=500) * 1e6,
        unit="µs",
        higher_is_better=False,
    )
