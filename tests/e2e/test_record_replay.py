"""A server records its check-ins, and a simulation replays them under other policies."""

import json

from tests.e2e.server_process import ServerProcess
from vennue.cli import run
from vennue.cli.terminal import ExitCode

WORKLOAD = """\
name: two
jobs:
  - {name: any, demand: 20, rounds: 2, workload_s: 10}
  - {name: big, demand: 10, rounds: 2, workload_s: 10, requirement: device.ram_gb >= 4}
"""


def test_what_a_server_recorded_is_replayed_under_other_policies(tmp_path, capsys):
    records = tmp_path / "records"
    with ServerProcess(tmp_path / "data", record_dir=str(records)) as server, server.client() as client:
        for number in range(60):
            attributes = {"ram_gb": 2 if number % 2 else 6}
            client.post("/v1/check-ins", json={"device": f"d{number}", "attributes": attributes})
        assert server.stop() == 0
    assert "d59" not in "".join(file.read_text() for file in records.iterdir())
    workload = tmp_path / "jobs.yaml"
    workload.write_text(WORKLOAD)
    code = run(["simulate", str(workload), "--policy", "fifo,srsf", "--replay", str(records), "--jobs", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == ExitCode.OK
    assert found["experiment"]["trace"] == str(records)
    assert [one["unfinished"] for one in found["runs"]] == [0, 0]
