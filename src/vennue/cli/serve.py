"""``vennue serve``: the server, as a command."""

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from vennue.cli import terminal
from vennue.core.errors import InvalidInput
from vennue.server.config import ServerConfig


def serve(
    *,
    host: str | None = None,
    port: int | None = None,
    data_dir: Path | None = None,
    policy: str | None = None,
    parameter: Annotated[list[str] | None, Parameter(name=("--set", "-s"))] = None,
    policy_file: list[Path] | None = None,
    seed: int | None = None,
    record: Path | None = None,
    role: Literal["root", "leaf"] | None = None,
    root: str | None = None,
    leaf_key_file: Path | None = None,
    json: bool = False,
) -> int:
    """Run a server until Ctrl-C or SIGTERM.

    Args:
        host: Address to listen on; 0.0.0.0 for all of this machine's. [default: 127.0.0.1]
        port: 0 takes a free one. [default: 8765]
        data_dir: Where jobs, models and reports are kept. [default: vennue-data]
        policy: How devices are shared. [default: venn-sched]
        parameter: A parameter of the policy, NAME=VALUE; may be repeated.
        policy_file: A Python file that defines a policy of your own, for --policy to name; may be repeated.
        seed: Of the lottery that random-order uses. [default: 0]
        record: Record check-ins in this folder, for `vennue simulate --replay`: kinds of devices and times, no device.
        role: A leaf takes the reports of devices near it, and passes their sums on to the root. [default: root]
        root: A leaf's: address of the root, or of the leaf above.
        leaf_key_file: A file with the secret that root and leaves share; VENNUE_LEAF_KEY holds it otherwise.
        json: When ready, print one JSON document with the address.
    """
    from vennue.server.run import run

    config = ServerConfig.from_environment(
        os.environ,
        host=host,
        port=port,
        data_dir=data_dir,
        policy=policy,
        parameters=_parameters(parameter),
        policy_files=None if policy_file is None else [str(path) for path in policy_file],
        seed=seed,
        record_dir=record,
        role=role,
        root=root,
        leaf_key=None if leaf_key_file is None else _secret(leaf_key_file),
    )

    def ready(url: str) -> None:
        if json:
            terminal.print_json(
                {"url": url, "pid": os.getpid(), "data_dir": str(config.data_dir)}
                | ({"role": "leaf", "root": config.root} if config.role == "leaf" else {})
            )
        else:
            # Not the policy: the one in force may be another than the configured one, see `PUT /v1/policy`.
            what = f"leaf of {config.root}, " if config.role == "leaf" else ""
            terminal.notes().print(f"{url} is ready ({what}data in {config.data_dir})", soft_wrap=True)

    return run(config, ready=ready)


def _secret(path: Path) -> str:
    try:
        secret = path.read_text().strip()
        reason = None if secret else "the file is empty"
    except (OSError, UnicodeDecodeError) as error:
        secret, reason = "", error.strerror if isinstance(error, OSError) else "it is no text"
    if reason is not None:
        raise InvalidInput(
            f"cannot read the leaves' secret: {reason}",
            field="leaf-key-file",
            value=str(path),
            fix="write it first: openssl rand -hex 32 > FILE",
        )
    return secret


def _parameters(given: list[str] | None) -> dict[str, bool | int | float | str] | None:
    if not given:
        return None
    parameters: dict[str, bool | int | float | str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise InvalidInput(
                f"{text!r} is no NAME=VALUE", field="set", value=text, fix="write --set demand_scope=job"
            )
        try:
            parameters[name] = msgspec.json.decode(value, type=bool | int | float)
        except msgspec.MsgspecError:
            parameters[name] = value
    return parameters
