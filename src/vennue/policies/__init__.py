"""Scheduling policies: each turns the pool's open requests and supply into a plan.

Pure, and written against `vennue.core.plan` alone. `get_policy` finds one by name, `register` adds one of your own,
and `Policy` is what to derive it from.
"""

from vennue.policies.base import Policy, PolicyParameters
from vennue.policies.registry import available, get_policy, load_policies, register

__all__ = ["Policy", "PolicyParameters", "available", "get_policy", "load_policies", "register"]
