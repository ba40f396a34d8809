"""Routes: what the server answers to, as data. The router finds handlers in it, the OpenAPI description is made of it.

So the description cannot miss a route, and a route cannot go undescribed.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from vennue.core.errors import NotFound
from vennue.server.http import Handler
from vennue.server.problems import RequestError

BINARY: Final = "binary"
"""A body of bytes, instead of a message."""
TEXT: Final = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A value in a route's path, query or headers; ``schema`` is JSON Schema."""

    name: str
    where: str
    schema: dict[str, Any]
    text: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One of a route's good answers."""

    status: int
    text: str
    body: Any = None
    """A message type, `BINARY`, `TEXT` or None."""
    links: tuple[tuple[str, str], ...] = ()
    """Where to go from here: names of routes, each with the pointer into the body that is their ``id``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path.

    ``path`` has placeholders in braces, each one whole segment. ``problems`` are the statuses of its errors beyond
    those that every route has. ``secured`` tells which secret it takes, if any: a task's token, or the leaves' key.
    """

    method: str
    path: str
    handler: Handler
    name: str
    text: str
    tag: str
    replies: tuple[Reply, ...]
    body: Any = None
    body_required: bool = True
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    secured: Literal["", "task", "leaf"] = ""


@dataclass(slots=True)
class _Node:
    """A segment of the paths: the next segments, and the routes that end here."""

    literal: dict[str, "_Node"] = field(default_factory=dict)
    placeholder: tuple[str, "_Node"] | None = None
    methods: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds the route of a request. Cost grows with the path's segments, not with the routes."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._root = _Node()
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    name = segment[1:-1]
                    if node.placeholder is None:
                        node.placeholder = (name, _Node())
                    assert node.placeholder[0] == name, f"{route.path} names a placeholder anew"
                    node = node.placeholder[1]
                else:
                    node = node.literal.setdefault(segment, _Node())
            assert route.method not in node.methods, f"{route.method} {route.path} is there twice"
            node.methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route, and the values of its placeholders.

        Raises:
            NotFound: no route has this path.
            RequestError: (405) the path has no such method.
        """
        node = self._root
        params: dict[str, str] = {}
        for segment in path.split("/")[1:]:
            following = node.literal.get(segment)
            if following is None and node.placeholder is not None and segment:
                name, following = node.placeholder
                params[name] = segment
            if following is None:
                raise _no_such_path(path)
            node = following
        if not node.methods:
            raise _no_such_path(path)
        route = node.methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.methods))
            raise RequestError(
                f"{path[:200]} does not take {method}",
                status=405,
                headers=(("allow", allowed),),
                field="method",
                value=method,
                limit=allowed,
                fix=f"use {allowed}",
            )
        return route, params


def _no_such_path(path: str) -> NotFound:
    return NotFound("no such path", field="path", value=path[:200], fix="see /openapi.json for all there are")
