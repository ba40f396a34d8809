"""The routes, one file per caller: devices, job owners, both (blobs), leaves and operators."""

from vennue.control.coordinator import Coordinator
from vennue.control.keeper import Keeper
from vennue.control.leaves import Leaves
from vennue.control.parts import Parts
from vennue.control.selector import Selector
from vennue.server.config import Limits
from vennue.server.routes.blobs import BlobRoutes
from vennue.server.routes.devices import RootDeviceRoutes
from vennue.server.routes.jobs import JobRoutes
from vennue.server.routes.leaves import LeafRoutes
from vennue.server.routes.operators import OperatorRoutes
from vennue.server.routing import Route
from vennue.server.telemetry import Telemetry
from vennue.state.space import NO_BOUND, Space


def all_routes(
    coordinator: Coordinator,
    selector: Selector,
    limits: Limits,
    version: str,
    telemetry: Telemetry,
    *,
    keeper: Keeper | None = None,
    leaf_key: str = "",
    space: Space = NO_BOUND,
) -> list[Route]:
    """Every route, described at ``/openapi.json``."""
    operators = OperatorRoutes(coordinator, limits, version, telemetry, keeper, space)
    data = coordinator.data
    parts = Parts(data.blobs, data.uploads)
    routes = [
        *RootDeviceRoutes(coordinator, selector, parts, limits).routes(),
        *JobRoutes(coordinator, limits).routes(),
        *BlobRoutes(data.distribution, limits, data.models.store, parts).routes(),
        *LeafRoutes(Leaves(coordinator), limits.blob_bytes, leaf_key).routes(),
        *operators.routes(),
    ]
    operators.describe(routes)
    return routes
