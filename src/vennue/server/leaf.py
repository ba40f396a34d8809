"""The leaf's application: models from its cache, reports into its sums, and everything else of a device passed on.

So a device needs one address, whether that is the root's or a leaf's. Owners and operators ask the root.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vennue.control.distribution import Distribution
from vennue.control.leaf import Leaf, PassOn
from vennue.control.parts import Parts
from vennue.core.errors import InvalidInput, NotFound, TooLate
from vennue.core.ids import AssignmentId
from vennue.protocol import Health
from vennue.server.application import Application
from vennue.server.config import Limits
from vennue.server.http import Answer, Request, Transport, json_answer
from vennue.server.openapi import describe
from vennue.server.routes.blobs import BlobRoutes
from vennue.server.routes.devices import DeviceRoutes
from vennue.server.routes.leaves import LeafRoutes
from vennue.server.routes.operators import METRICS_TYPE
from vennue.server.routing import TEXT, Reply, Route
from vennue.server.upstream import HttpUpstream
from vennue.state.space import NO_BOUND, Space
from vennue.updates.blobs import check_digest

_COUNTERS = {
    "reports": "Reports that were acknowledged, here or at leaves below",
    "duplicates": "Repeated reports that were answered again",
    "refused_reports": "Reports refused: too late, or not fit for their round",
    "report_bytes": "Bytes of the reports acknowledged here",
    "partials": "Partial sums that the root has counted",
    "partials_refused": "Partial sums that had to be made again without some reports",
    "passed_on": "Requests of devices that were passed on",
}


class LeafApp(Application):
    """Answers requests. It belongs to the leaf's event loop.

    Args:
        leaf: started.
        upstream: the root, or the leaf above.
        distribution: where models are, and their other forms.
        limits: on what a caller may send.
        version: of the program.
        leaf_key: what leaves below must show.
        space: the room on the disks, by default as if there were enough.
    """

    def __init__(
        self,
        leaf: Leaf,
        upstream: HttpUpstream,
        distribution: Distribution,
        limits: Limits,
        version: str,
        *,
        leaf_key: str,
        space: Space = NO_BOUND,
    ) -> None:
        super().__init__(limits)
        self._leaf = leaf
        self._root = upstream.url
        operator = _OperatorRoutes(leaf, upstream, self.responses, version, space)
        parts = Parts(distribution.blobs, leaf.uploads, upstream.make_room)
        routes = [
            *_DeviceRoutes(leaf, upstream, parts, limits).routes(),
            *_BlobRoutes(upstream, distribution, limits).routes(),
            *LeafRoutes(leaf, limits.blob_bytes, leaf_key).routes(),
            *operator.routes(),
        ]
        operator.description = functools.cache(lambda: msgspec.json.encode(describe(routes, version)))
        self.serve(routes)

    @property
    def stopping(self) -> bool:
        return self._leaf.stopping

    async def _answer(self, request: Request, transport: Transport) -> None:
        try:
            await super()._answer(request, transport)
        except NotFound as error:
            if error.field == "path":
                error.fix = f"this is a leaf: ask its root, {self._root}"
            raise


class _DeviceRoutes(DeviceRoutes):
    """A device's calls: reports are taken here, the others passed on."""

    def __init__(self, leaf: Leaf, upstream: HttpUpstream, parts: Parts, limits: Limits) -> None:
        super().__init__(leaf.receive, parts, limits)
        self._leaf = leaf
        self._upstream = upstream

    async def report(self, request: Request) -> Answer:
        try:
            return await super().report(request)
        except PassOn:
            return await self._pass_on(request, self._limits.blob_bytes)

    async def upload_state(self, request: Request) -> Answer:
        try:
            return await super().upload_state(request)
        except PassOn:
            return await self._pass_on(request, 0)

    async def upload(self, request: Request) -> Answer:
        try:
            return await super().upload(request)
        except PassOn as error:
            if not request.has_unread_body:
                raise TooLate(error.message, field="assignment", fix="check in again") from error
            return await self._pass_on(request, self._limits.blob_bytes)

    async def expected(self, id: AssignmentId, token: str) -> int | None:
        return await self._leaf.expected(id, token)

    def refused(self, id: AssignmentId, token: str, error: InvalidInput) -> None:
        self._leaf.counters.refused_reports += 1

    async def finished(self, id: AssignmentId) -> int:
        raise PassOn("the root has its receipt", field="assignment", value=id)

    async def check_in(self, request: Request) -> Answer:
        return await self._pass_on(request, self._limits.check_in_bytes)

    accept = decline = abort = check_in

    async def _pass_on(self, request: Request, limit: int) -> Answer:
        self._leaf.counters.passed_on += 1
        return await self._upstream.pass_on(request, limit)


class _BlobRoutes(BlobRoutes):
    """Models, fetched when they are first asked for."""

    def __init__(self, upstream: HttpUpstream, distribution: Distribution, limits: Limits) -> None:
        super().__init__(distribution, limits)
        self._upstream = upstream

    def routes(self) -> list[Route]:
        return [route for route in super().routes() if route.handler == self.get]

    async def get(self, request: Request) -> Answer:
        digest = check_digest(request.params["sha256"])
        while True:
            await self._upstream.fetch(digest)
            answer = await super().get(request)
            if self._upstream.cache.use(digest):  # or it had to go while another form of it was made
                return answer


class _OperatorRoutes(Collector):
    """Health and metrics of the leaf itself."""

    def __init__(self, leaf: Leaf, upstream: HttpUpstream, responses: Counter[int], version: str, space: Space) -> None:
        self.description: Callable[[], bytes] = bytes
        self._leaf = leaf
        self._upstream = upstream
        self._responses = responses
        self._version = version
        self._space = space
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def routes(self) -> list[Route]:
        common: dict[str, Any] = {"method": "GET", "tag": "operator"}
        return [
            Route(
                path="/metrics", handler=self.metrics, name="metrics", text="Metrics, in Prometheus' text format.",
                replies=(Reply(status=200, text="The metrics.", body=TEXT),), **common,
            ),
            Route(
                path="/healthz", handler=self.healthz, name="healthz", text="Whether the process is alive.",
                replies=(Reply(status=200, text="It is.", body=Health),), **common,
            ),
            Route(
                path="/readyz", handler=self.readyz, name="readyz", text="Whether the leaf can do its work now.",
                replies=(
                    Reply(status=200, text="It can.", body=Health),
                    Reply(status=503, text="It cannot; the reason says why.", body=Health),
                ), **common,
            ),
            Route(
                path="/openapi.json", handler=self.openapi, name="openapi", text="This description.",
                replies=(Reply(status=200, text="The description.", body=dict),), **common,
            ),
        ]  # fmt: skip

    async def metrics(self, _: Request) -> Answer:
        return Answer(headers=[("content-type", METRICS_TYPE)], body=generate_latest(self._registry))

    async def healthz(self, _: Request) -> Answer:
        return json_answer(Health(status="ok", version=self._version))

    async def readyz(self, _: Request) -> Answer:
        if self._leaf.stopping:
            return json_answer(Health(status="stopping", version=self._version), status=503)
        failure = self._space.lack() or await self._upstream.trouble()
        if failure is not None:
            return json_answer(Health(status="failing", version=self._version, reason=failure), status=503)
        return json_answer(Health(status="ok", version=self._version))

    async def openapi(self, _: Request) -> Answer:
        return Answer(headers=[("content-type", "application/json")], body=self.description())

    def collect(self) -> Iterator[Metric]:
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"vennue_leaf_{name}", text, value=getattr(self._leaf.counters, name))
        refused_bytes = self._leaf.refused_bytes
        text = "Bytes received of reports and sums that were refused or broken off"
        yield CounterMetricFamily("vennue_leaf_refused_bytes", text, value=refused_bytes)
        yield CounterMetricFamily("vennue_leaf_models_fetched", "Models downloaded", value=self._upstream.fetched)
        evicted = self._upstream.cache.evicted
        yield CounterMetricFamily("vennue_leaf_models_evicted", "Models removed to make room", value=evicted)
        responses = CounterMetricFamily("vennue_responses", "Answers by HTTP status", labels=["status"])
        for status, count in sorted(self._responses.items()):
            responses.add_metric([str(status)], count)
        yield responses
        gauges = {
            "attempts": ("Attempts known", self._leaf.attempts),
            "waiting_reports": ("Reports that wait to be counted", self._leaf.waiting),
            "cache_bytes": ("Bytes of the disk that models take", self._upstream.cache.blobs.used_bytes),
            "uploads": ("Reports being received", self._leaf.uploads.active),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"vennue_leaf_{name}", text, value=value)
