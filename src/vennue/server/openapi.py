"""The OpenAPI 3.1 description, made from the routes and the messages of `vennue.protocol`, served at /openapi.json."""

import inspect
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT

from vennue.protocol import Problem
from vennue.server.problems import MEDIA_TYPE
from vennue.server.routing import BINARY, TEXT, Route

_STATUSES: Final = {
    400: "The request is malformed: JSON that is not JSON, a body that was cut off.",
    401: "The secret is missing: the task's token, or the leaves' key.",
    403: "The secret is the wrong one, or the assignment is somebody else's.",
    404: "There is no such thing.",
    405: "The path does not take this method.",
    408: "The body stopped arriving.",
    409: "The request contradicts the present state: too late, closed, or used before.",
    413: "The body is above the limit.",
    416: "The range is not within the blob.",
    422: "A value makes no sense; the problem names it, the limit and the fix.",
    500: "The server failed. Nothing is known of its inside; its log has the details.",
    503: "The server cannot do this now; try again after `Retry-After` seconds.",
    507: "This would take more of the disk than models may; the problem has the numbers.",
}
_EVERYWHERE: Final = (500, 503)
_WITH_BODY: Final = (400, 408, 413, 422)


def describe(routes: list[Route], version: str) -> dict[str, Any]:
    """The description of these routes."""
    types = [Problem]
    for route in routes:
        types += [kind for kind in (route.body, *(reply.body for reply in route.replies)) if _is_message(kind)]
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(
        [_described(kind) for kind in unique], ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(unique, schemas, strict=True))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Vennue",
            "version": version,
            "description": "A pool of devices, shared by federated-learning jobs.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "task": {"type": "http", "scheme": "bearer", "description": "The token that came with the task."},
                "leaf": {"type": "http", "scheme": "bearer", "description": "The pool's key for leaves."},
            },
        },
    }


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    summary, _, details = inspect.cleandoc(route.text).partition("\n\n")
    operation: dict[str, Any] = {"operationId": route.name, "tags": [route.tag], "summary": summary}
    if details:
        operation["description"] = details
    if route.parameters:
        operation["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.where,
                "required": parameter.required,
                "description": parameter.text,
                "schema": parameter.schema,
            }
            for parameter in route.parameters
        ]
    if route.body is not None:
        operation["requestBody"] = {"required": route.body_required, "content": _content(route.body, schema_of)}
    if route.secured:
        operation["security"] = [{route.secured: []}]
    statuses = {*_EVERYWHERE, *route.problems}
    if route.path.startswith("/v1/"):
        statuses.add(422)  # for a query parameter that it does not take
    if route.body is not None:
        statuses.update(_WITH_BODY)
    if route.secured:
        statuses.update((401, 403))
    responses: dict[str, Any] = {}
    for reply in route.replies:
        responses[str(reply.status)] = {"description": reply.text}
        if reply.body is not None:
            responses[str(reply.status)]["content"] = _content(reply.body, schema_of)
        if reply.links:
            responses[str(reply.status)]["links"] = {
                name: {"operationId": name, "parameters": {"id": f"$response.body#{pointer}"}}
                for name, pointer in reply.links
            }
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": _STATUSES[status],
            "content": {MEDIA_TYPE: {"schema": schema_of[Problem]}},
        }
    operation["responses"] = responses
    return operation


def _content(kind: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    if kind == BINARY:
        return {"application/octet-stream": {}}
    if kind is dict:
        return {"application/json": {"schema": {"type": "object"}}}
    if kind == TEXT:
        return {"text/plain": {"schema": {"type": "string"}}}
    return {"application/json": {"schema": schema_of[kind]}}


def _described(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A message whose attributes are taken as raw JSON, for speed, as one that says that they are an object."""
    fields = msgspec.structs.fields(kind)
    if all(field.type is not msgspec.Raw for field in fields):
        return kind
    return msgspec.defstruct(
        kind.__name__,
        [
            (field.name, dict[str, Any], {})
            if field.type is msgspec.Raw
            else (field.name, field.type)
            if field.required
            else (field.name, field.type, field.default_factory() if field.default is NODEFAULT else field.default)
            for field in fields
        ],
        namespace={"__doc__": kind.__doc__},
        kw_only=True,
        forbid_unknown_fields=kind.__struct_config__.forbid_unknown_fields,
    )


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
