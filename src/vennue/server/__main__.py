"""``python -m vennue.server``: a server configured by ``VENNUE_*`` variables alone, as in a container.

It prints its URL once it answers. ``vennue serve`` is the same with flags.
"""

import logging
import sys

from vennue.core.errors import VennueError
from vennue.server.config import ServerConfig
from vennue.server.run import run


def main() -> int:
    """Run; the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        return run(ServerConfig.from_environment(), ready=lambda url: print(url, flush=True))  # noqa: T201 - its output
    except VennueError as error:
        print(f"vennue: {error}", file=sys.stderr)  # noqa: T201 - its output
        return 1


if __name__ == "__main__":
    sys.exit(main())
