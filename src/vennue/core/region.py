"""Regions: which of the registered requirements a device meets, as one integer.

The registry gives each distinct requirement a bit; a device's signature has the bits of the requirements that it
meets, and devices of one signature are one region of the Venn diagram. Requirements come and go with their jobs, and
bits are used again, so signatures may only be compared under one `RequirementRegistry.version`. Looking up the region
of a profile seen before is one dictionary lookup, however many requirements there are; a new requirement costs one
evaluation for each profile that checks in again, when it does. Memory is bounded, whatever devices send.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush

import msgspec

from vennue.core.errors import InvalidInput, InvariantViolated
from vennue.core.ids import Signature
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema, Profile, Requirement

MAX_RAW_BYTES = 1024
"""Longer attribute texts are not remembered; they are checked anew each time."""


class RequirementRegistry:
    """The requirements in use, their bits, and the signatures of the profiles seen lately.

    Args:
        schema: what devices' attributes are checked against; `DEFAULT_SCHEMA` if left out.
        max_profiles: how many profiles, and how many texts of attributes, are remembered. All are forgotten at once
            when there are more; a profile that comes again is evaluated again.
    """

    def __init__(self, schema: AttributeSchema = DEFAULT_SCHEMA, *, max_profiles: int = 65_536) -> None:
        self.schema = schema
        self.version = 0
        """Grows when a requirement comes or goes, and with it the meaning of signatures."""
        self._max_profiles = max_profiles
        self._bits: dict[Requirement, int] = {}
        self._users: dict[int, int] = {}
        self._free: list[int] = []
        self._registered: dict[int, tuple[Requirement, int]] = {}  # bit → requirement, version that brought it; by age
        self._in_use = 0
        self._considered: dict[Requirement, Requirement] = {}
        self._signatures: dict[Profile, Signature] = {}  # of this version
        self._evaluated: dict[Profile, tuple[int, int]] = {}  # signature and the version it was right for
        self._profiles: dict[bytes, Profile] = {}

    def register(self, requirement: Requirement) -> int:
        """Count one more user of the requirement and return its bit, the same for equal requirements."""
        bit = self._bits.get(requirement)
        if bit is None:
            requirement = self._considered.get(requirement, requirement)
            bit = heappop(self._free) if self._free else len(self._bits)
            self._bits[requirement] = bit
            self._users[bit] = 0
            self._in_use |= 1 << bit
            self._signatures.clear()
            self.version += 1
            self._registered[bit] = requirement, self.version
        self._users[bit] += 1
        return bit

    def bit(self, requirement: Requirement) -> int | None:
        """The bit of an equal requirement, if one is registered."""
        return self._bits.get(requirement)

    @contextmanager
    def considering(self, requirement: Requirement) -> Iterator[None]:
        """Meanwhile, if an equal requirement is registered, take this one, whose answers may have been foreseen."""
        self._considered[requirement] = requirement
        try:
            yield
        finally:
            self._considered.pop(requirement, None)

    def release(self, bit: int) -> None:
        """Count one user less. Without users, the requirement is forgotten and its bit is free for another.

        Raises:
            InvariantViolated: no requirement has this bit.
        """
        requirement = self.requirement(bit)
        self._users[bit] -= 1
        if self._users[bit] == 0:
            del self._users[bit], self._bits[requirement], self._registered[bit]
            self._in_use &= ~(1 << bit)
            heappush(self._free, bit)
            self._signatures.clear()
            self.version += 1

    @property
    def users(self) -> int:
        """How many users all requirements have together: the active jobs."""
        return sum(self._users.values())

    def requirement(self, bit: int) -> Requirement:
        """The requirement with this bit.

        Raises:
            InvariantViolated: no requirement has this bit.
        """
        found = self._registered.get(bit)
        if found is None:
            raise InvariantViolated(f"no requirement is registered under bit {bit}", value=bit)
        return found[0]

    def bits(self) -> tuple[int, ...]:
        """The bits in use, ascending."""
        return tuple(sorted(self._registered))

    def signature(self, profile: Profile) -> Signature:
        """The region that devices with this profile are in."""
        try:
            return self._signatures[profile]
        except KeyError:
            return self._evaluate(profile)

    def profile(self, attributes: dict[str, object]) -> Profile:
        """The profile of a device that sent these attributes: `AttributeSchema.check`, remembered.

        Raises:
            InvalidInput: as `AttributeSchema.check`.
        """
        try:
            raw = msgspec.json.encode(attributes)
        except (TypeError, ValueError, RecursionError):  # not what JSON can carry, so the check says what is wrong
            return self.schema.check(attributes)
        profile = self._profiles.get(raw)
        return self._remember(raw, self.schema.check(attributes)) if profile is None else profile

    def profile_of_raw(self, raw: bytes) -> Profile:
        """`profile` of attributes that are still JSON: for text seen before, a lookup of its bytes and no parsing.

        Raises:
            InvalidInput: not a JSON object, or as `AttributeSchema.check`.
        """
        profile = self._profiles.get(raw)
        if profile is not None:
            return profile
        try:
            attributes = msgspec.json.decode(raw, type=dict[str, object])
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidInput(
                f"the attributes are not a JSON object: {error}", field="attributes", fix='send {"name": value, …}'
            ) from None
        return self._remember(raw, self.schema.check(attributes))

    def _remember(self, raw: bytes, profile: Profile) -> Profile:
        if len(raw) <= MAX_RAW_BYTES:
            if len(self._profiles) >= self._max_profiles:
                self._profiles.clear()
            self._profiles[raw] = profile
        return profile

    def _evaluate(self, profile: Profile) -> Signature:
        signature, version = self._evaluated.get(profile, (0, 0))
        for bit, (requirement, since) in reversed(self._registered.items()):
            if since <= version:
                break
            signature = signature | 1 << bit if requirement.matches(profile) else signature & ~(1 << bit)
        signature &= self._in_use
        if len(self._evaluated) >= self._max_profiles and profile not in self._evaluated:
            self._evaluated.clear()
            self._signatures.clear()
        self._evaluated[profile] = signature, self.version
        self._signatures[profile] = Signature(signature)
        return Signature(signature)
