"""A policy of one's own, and a server that follows it. The README explains it."""

from vennue.policies import Policy, register
from vennue.server.config import ServerConfig
from vennue.server.run import run


@register
class LongestWait(Policy):
    name = "longest-wait"

    def order(self, view):
        return sorted(view.requests, key=lambda request: request.opened_at)


run(ServerConfig.from_environment(policy="longest-wait"), ready=print)
