"""Signatures agree with the requirements, in whatever order those come and go."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vennue.core.region import RequirementRegistry
from vennue.core.requirement import DEFAULT_SCHEMA, Requirement

REQUIREMENTS = [
    Requirement.parse(text)
    for text in (
        "true",
        "device.ram_gb >= 4",
        "device.ram_gb >= 8 || device.charging",
        "!has(device.ram_gb)",
        '"x" in device.data',
        "size(device.data) > 1",
        "device.charging",
    )
]
PROFILES = [
    DEFAULT_SCHEMA.check(attributes)
    for attributes in (
        {},
        {"ram_gb": 2},
        {"ram_gb": 4, "data": ["x"]},
        {"ram_gb": 8, "data": ["x", "y"], "charging": False},
        {"ram_gb": 2, "data": [], "charging": True},
    )
]


class Registry(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.registry = RequirementRegistry(max_profiles=3)
        self.users: dict[int, list[Requirement]] = {}

    @rule(requirement=st.sampled_from(REQUIREMENTS))
    def register(self, requirement):
        bit = self.registry.register(requirement)
        users = self.users.setdefault(bit, [])
        assert all(user == requirement for user in users)
        users.append(requirement)

    @rule(data=st.data())
    def release(self, data):
        if self.users:
            bit = data.draw(st.sampled_from(sorted(self.users)))
            self.registry.release(bit)
            self.users[bit].pop()
            if not self.users[bit]:
                del self.users[bit]

    @rule(profile=st.sampled_from(PROFILES))
    def look_up(self, profile):
        expected = sum(users[0].matches(dict(profile.attributes)) << bit for bit, users in self.users.items())
        assert self.registry.signature(profile) == expected

    @invariant()
    def bits_are_dense_and_not_shared_by_different_requirements(self):
        assert self.registry.bits() == tuple(sorted(self.users))
        assert [self.registry.requirement(bit) for bit in self.registry.bits()] == [
            self.users[bit][0] for bit in sorted(self.users)
        ]
        assert len({users[0] for users in self.users.values()}) == len(self.users)


TestRegistry = Registry.TestCase
