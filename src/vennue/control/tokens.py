"""Task tokens: proof that an assignment is the caller's, without a table of who holds what.

A token names the device and carries HMAC-SHA256 (RFC 2104), under the attempt's key, of the assignment and the device.
It can be checked by any process that knows the key, at any time, so tokens survive restarts. Every attempt has a key of
its own, derived from the pool's secret: a leaf is handed the keys of the attempts that it serves, and no other.
"""

import base64
import functools
import hmac

from vennue.core.errors import Forbidden
from vennue.core.ids import AssignmentId, AttemptId, DeviceId, attempt_of

REMEMBERED_KEYS = 4096


class Tokens:
    """Issues and checks the tokens of one pool.

    Args:
        secret: the pool's; whoever knows it can forge tokens.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.key = functools.lru_cache(REMEMBERED_KEYS)(self._key)
        """An attempt's key; whoever knows it can forge tokens of that attempt."""

    def issue(self, assignment: AssignmentId, device: DeviceId) -> str:
        """The token that lets ``device`` act on ``assignment``."""
        name = device.encode()
        return f"{_encode(name)}.{_encode(_mac(self.key(attempt_of(assignment)), assignment, name))}"

    def device(self, assignment: AssignmentId, token: str) -> DeviceId:
        """The device that holds a token for this assignment.

        Raises:
            Forbidden: the token was not issued by this pool for this assignment.
        """
        return holder(self.key(attempt_of(assignment)), assignment, token)

    def _key(self, attempt: AttemptId) -> bytes:
        return hmac.digest(self._secret, b"attempt\0" + attempt.encode(), "sha256")


def holder(key: bytes, assignment: AssignmentId, token: str) -> DeviceId:
    """The device that holds a token for this assignment, by the key of its attempt.

    Raises:
        Forbidden: the token was not issued under this key for this assignment.
    """
    name_text, _, mac_text = token.partition(".")
    try:
        name, mac = _decode(name_text), _decode(mac_text)
        device = DeviceId(name.decode())
    except ValueError:
        raise _forbidden(assignment) from None
    if not hmac.compare_digest(mac, _mac(key, assignment, name)):
        raise _forbidden(assignment)
    return device


def _mac(key: bytes, assignment: AssignmentId, device: bytes) -> bytes:
    # An assignment's id holds no NUL, so the boundary between the two is unambiguous.
    return hmac.digest(key, assignment.encode() + b"\0" + device, "sha256")


def _forbidden(assignment: AssignmentId) -> Forbidden:
    return Forbidden(
        f"the token is not for assignment {assignment}",
        field="Authorization",
        fix="send the token that came with the assignment, as: Authorization: Bearer TOKEN",
    )


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
