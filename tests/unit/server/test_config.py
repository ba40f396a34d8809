"""The configuration: defaults that work, values from the environment and from flags, and errors that name the value."""

from pathlib import Path

import pytest

from vennue.control.pacing import Pacing
from vennue.core.errors import InvalidInput
from vennue.server.config import Limits, ServerConfig, _leaves


def test_an_empty_environment_gives_the_defaults():
    assert ServerConfig.from_environment({}) == ServerConfig()


def test_variables_are_named_for_their_fields_at_any_depth():
    config = ServerConfig.from_environment(
        {
            "VENNUE_HOST": "0.0.0.0",
            "VENNUE_PORT": "0",
            "VENNUE_DATA_DIR": "/srv/pool",
            "VENNUE_POLICY": "srsf",
            "VENNUE_PARAMETERS": '{"x": 1.5}',
            "VENNUE_PACING_SHORT_S": "0.25",
            "VENNUE_LIMITS_BLOB_BYTES": "1000",
            "VENNUE_VALIDATE": "1",
        }
    )
    assert config == ServerConfig(
        host="0.0.0.0",
        port=0,
        data_dir=Path("/srv/pool"),
        policy="srsf",
        parameters={"x": 1.5},
        pacing=Pacing(short_s=0.25),
        limits=Limits(blob_bytes=1000),
        validate=True,
    )


def test_a_flag_takes_precedence_over_the_environment_unless_it_was_not_given():
    config = ServerConfig.from_environment(
        {"VENNUE_PORT": "1", "VENNUE_POLICY": "fifo"}, port=2, policy=None, data_dir=Path("x")
    )
    assert (config.port, config.policy, config.data_dir) == (2, "fifo", Path("x"))


def test_variables_of_other_parts_are_left_alone():
    assert ServerConfig.from_environment({"VENNUE_SERVER": "http://x", "PORT": "1"}) == ServerConfig()


def test_a_variable_that_looks_like_a_misspelt_setting_is_told_in_the_log(caplog):
    ServerConfig.from_environment({"VENNUE_DISK_QUOTA": "5", "VENNUE_SERVER": "http://x", "VENNUE_ZZZ": "1"})
    assert caplog.messages == [
        "VENNUE_DISK_QUOTA is no setting, and left alone: did you mean 'VENNUE_DISK_QUOTA_BYTES'?"
    ]


@pytest.mark.parametrize("text", ["1", "true", "YES"])
def test_yes_is_written_in_several_ways(text):
    assert ServerConfig.from_environment({"VENNUE_VALIDATE": text}).validate


@pytest.mark.parametrize(
    ("environ", "field"),
    [
        ({"VENNUE_PORT": "x"}, "VENNUE_PORT"),
        ({"VENNUE_PORT": "1.5"}, "VENNUE_PORT"),
        ({"VENNUE_PORT": "65536"}, "port"),
        ({"VENNUE_HOST": ""}, "host"),
        ({"VENNUE_VALIDATE": "maybe"}, "VENNUE_VALIDATE"),
        ({"VENNUE_DRAIN_S": "-1"}, "drain_s"),
        ({"VENNUE_BATCH_WINDOW_S": "30.5"}, "batch_window_s"),
        ({"VENNUE_LIMITS_WAITERS": "0"}, "limits.waiters"),
        ({"VENNUE_PACING_BUSY_S": "0.1"}, "pacing"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(environ, field):
    with pytest.raises(InvalidInput) as caught:
        ServerConfig.from_environment(environ)
    assert caught.value.field == field


def test_an_unknown_flag_is_refused():
    with pytest.raises(InvalidInput, match="prot"):
        ServerConfig.from_environment({}, prot=1)


def test_every_setting_is_documented():
    documented = (Path(__file__).parents[3] / "docs" / "server.md").read_text(encoding="utf-8")
    for path, _ in _leaves(ServerConfig):
        assert f"`VENNUE_{'_'.join(path).upper()}`" in documented
