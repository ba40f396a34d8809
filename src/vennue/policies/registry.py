"""Policies by name: the built-in ones, those registered in this process or found in a file, and installed ones.

Another distribution installs one by an entry point in the group ``vennue.policies``: the policy's name, and its class.
"""

from typing import Final

from vennue.extensions import Extensions
from vennue.policies.base import Policy
from vennue.policies.fifo import Fifo
from vennue.policies.las import Las
from vennue.policies.matching import FifoMatch
from vennue.policies.partition import ClientRandom, StaticPartition
from vennue.policies.random_ import Random, RandomOrder
from vennue.policies.srsf import Srsf, SrsfJob
from vennue.policies.venn import Venn, VennSched

POLICIES: Final[Extensions[Policy]] = Extensions(
    Policy,
    (Random, RandomOrder, Fifo, Srsf, SrsfJob, Las, VennSched, FifoMatch, Venn, StaticPartition, ClientRandom),
    kind="policy",
    group="vennue.policies",
    files_field="policy_files",
    derive_from="vennue.policies.Policy",
)
available = POLICIES.available
register = POLICIES.register
load_policies = POLICIES.load


def get_policy(name: str, /, **parameters: object) -> Policy:
    """A new instance of the policy with this name.

    Args:
        name: one of `available`.
        **parameters: the policy's parameters; those left out have their defaults.

    Raises:
        InvalidInput: no policy has this name (the error suggests the nearest), it has no such parameter, a value
            makes no sense, or the distribution that installed it does not import.
    """
    return POLICIES.find(name)(**parameters)
