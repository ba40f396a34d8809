"""What went wrong: the one form of every error."""

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RFC 9457 problem document (``application/problem+json``): what went wrong, where, and what to do."""

    type: str
    """``urn:vennue:error:<code>``; the code is that of the class in `vennue.core.errors`."""
    title: str
    status: int
    detail: str
    field: str | None = None
    value: bool | int | float | str | None = None
    limit: bool | int | float | str | None = None
    fix: str | None = None
    story: list[str] = []
    retry_after_s: float | None = None
