"""A policy of one's own, for `vennue simulate` and `vennue serve`. The README explains it."""

from vennue.policies import Policy


class LongestWait(Policy):
    name = "longest-wait"

    def order(self, view):
        return sorted(view.requests, key=lambda request: request.opened_at)
