"""``vennue``, also as ``python -m vennue``: the command line, which Ctrl-C ends quietly however soon it comes.

Most of the first half second goes into imports, where there is nothing to be cleaned up yet, and where an exception at
any line would be shown as a traceback, or as an error of whatever module was being imported.
"""

import os
import signal


def main() -> None:
    """Run the command line (the console script's entry point)."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # not where it is ignored, as in the background of a script
        signal.signal(signal.SIGINT, _end)
    from vennue.cli import main as run

    signal.signal(signal.SIGINT, usual)
    run()


def _end(*_: object) -> None:
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
