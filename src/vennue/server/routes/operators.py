"""Routes for operators: the pool and its plan, the policy, metrics, health, and this interface's own description."""

import functools
from collections.abc import Callable
from typing import Final

import msgspec

from vennue.control.coordinator import Coordinator
from vennue.control.keeper import Keeper
from vennue.control.notes import PolicyChoice
from vennue.protocol import Health, PlanHistory, PlanView, PolicyRequest, PoolSnapshot, PoolView
from vennue.server.config import Limits
from vennue.server.http import Answer, Request, json_answer
from vennue.server.openapi import describe
from vennue.server.routing import TEXT, Reply, Route
from vennue.server.telemetry import Telemetry
from vennue.state.space import NO_BOUND, Space

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class OperatorRoutes:
    """Handlers for what operators and their tools ask."""

    def __init__(
        self,
        coordinator: Coordinator,
        limits: Limits,
        version: str,
        telemetry: Telemetry,
        keeper: Keeper | None = None,
        space: Space = NO_BOUND,
    ) -> None:
        self._coordinator = coordinator
        self._keeper = keeper
        self._space = space
        self._limits = limits
        self._version = version
        self._telemetry = telemetry
        self._description: Callable[[], bytes] = bytes
        self._policy_decoder = msgspec.json.Decoder(PolicyRequest)

    def describe(self, routes: list[Route]) -> None:
        """Have ``/openapi.json`` answer with their description, which is made when it is first asked for."""
        self._description = functools.cache(lambda: msgspec.json.encode(describe(routes, self._version)))

    def routes(self) -> list[Route]:
        """The routes of these handlers."""
        return [
            Route(
                method="GET", path="/v1/pool", handler=self.pool, name="showPool", tag="operator",
                text="The pool: supply, requirements, regions.",
                replies=(Reply(status=200, text="The pool.", body=PoolView),),
            ),
            Route(
                method="GET", path="/v1/pool/snapshot", handler=self.snapshot, name="showSnapshot", tag="operator",
                text="""The pool for a simulation that goes on from it.

                Supply by kind of device and hour, and the jobs with their rounds to go.""",
                replies=(Reply(status=200, text="The snapshot.", body=PoolSnapshot),),
            ),
            Route(
                method="GET", path="/v1/plan", handler=self.plan, name="showPlan", tag="operator",
                text="The plan in force: for each region, who is served first.",
                replies=(Reply(status=200, text="The plan.", body=PlanView),),
            ),
            Route(
                method="GET", path="/v1/plan/history", handler=self.plan_history, name="showPlanHistory",
                tag="operator", text="The latest plans: when and why they were made, and what they changed.",
                replies=(Reply(status=200, text="The plans, newest first.", body=PlanHistory),),
            ),
            Route(
                method="PUT", path="/v1/policy", handler=self.set_policy, name="setPolicy", tag="operator",
                text="""Change the policy. No job is lost.

                The choice outlives the server, until one is started with another policy configured.""",
                body=PolicyRequest, replies=(Reply(status=200, text="The plan of the new policy.", body=PlanView),),
            ),
            Route(
                method="GET", path="/metrics", handler=self.metrics, name="metrics", tag="operator",
                text="Metrics, in Prometheus' text format.",
                replies=(Reply(status=200, text="The metrics.", body=TEXT),),
            ),
            Route(
                method="GET", path="/healthz", handler=self.healthz, name="healthz", tag="operator",
                text="Whether the process is alive.",
                replies=(Reply(status=200, text="It is.", body=Health),),
            ),
            Route(
                method="GET", path="/readyz", handler=self.readyz, name="readyz", tag="operator",
                text="Whether the server can do its work now.",
                replies=(
                    Reply(status=200, text="It can.", body=Health),
                    Reply(status=503, text="It cannot; the reason says why.", body=Health),
                ),
            ),
            Route(
                method="GET", path="/openapi.json", handler=self.openapi, name="openapi", tag="operator",
                text="This description.", replies=(Reply(status=200, text="The description.", body=dict),),
            ),
        ]  # fmt: skip

    async def pool(self, request: Request) -> Answer:
        """``GET /v1/pool``."""
        view = await self._coordinator.pool_view()
        storage = None if self._keeper is None else self._keeper.view()
        return json_answer(msgspec.structs.replace(view, storage=storage))

    async def snapshot(self, request: Request) -> Answer:
        """``GET /v1/pool/snapshot``."""
        return json_answer(await self._coordinator.snapshot())

    async def plan(self, request: Request) -> Answer:
        """``GET /v1/plan``."""
        return json_answer(await self._coordinator.plan_view())

    async def plan_history(self, request: Request) -> Answer:
        """``GET /v1/plan/history``."""
        return json_answer(await self._coordinator.plan_history())

    async def set_policy(self, request: Request) -> Answer:
        """``PUT /v1/policy``."""
        message = await request.json(self._policy_decoder, self._limits.json_bytes)
        await self._coordinator.set_policy(PolicyChoice(message.policy, message.parameters))
        return json_answer(await self._coordinator.plan_view())

    async def metrics(self, request: Request) -> Answer:
        """``GET /metrics``."""
        return Answer(headers=[("content-type", METRICS_TYPE)], body=self._telemetry.text())

    async def healthz(self, request: Request) -> Answer:
        """``GET /healthz``."""
        return json_answer(Health(status="ok", version=self._version))

    async def readyz(self, request: Request) -> Answer:
        """``GET /readyz``."""
        coordinator = self._coordinator
        if coordinator.failure is not None:
            health = Health(status="failing", version=self._version, reason=coordinator.failure)
        elif coordinator.stopping:
            health = Health(status="stopping", version=self._version)
        elif lack := self._space.lack():
            health = Health(status="failing", version=self._version, reason=lack)
        else:
            health = Health(status="ok", version=self._version)
        return json_answer(health, status=200 if health.status == "ok" else 503)

    async def openapi(self, request: Request) -> Answer:
        """``GET /openapi.json``."""
        return Answer(headers=[("content-type", "application/json")], body=self._description())
