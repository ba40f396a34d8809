"""The ``vennue`` command: one file per group of commands, mounted here on one application.

It stands on top of everything else and holds no logic of its own. Each command group is a ``cyclopts.App`` in its own
module, imported when it is first used, so that ``vennue --help`` answers at once.
"""

import cyclopts

import vennue

app = cyclopts.App(name="vennue", help="Many federated-learning jobs, one pool of devices.", version=vennue.__version__)


def main() -> None:
    """Run the command line (the console script's entry point)."""
    app()
