"""A leaf among devices on slow links: what it passes on for them keeps nobody else waiting."""

import select
from collections.abc import Iterator

import pytest

from tests.e2e.calls import end, is_problem, of, put, report, submit, task_for
from tests.e2e.server_process import ServerProcess, model, raw_request
from vennue.server.upstream import CONNECTIONS

KEY = "a secret of leaves"
BIG = model(1.0, size=500_000)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("root") / "data", leaf_key=KEY) as running:
        yield running


@pytest.fixture
def leaf(root, tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data", role="leaf", root=root.url, leaf_key=KEY) as running:
        yield running


@pytest.mark.slow_suite
@pytest.mark.parametrize("what", ["check-ins", "small reports", "reports"])
def test_devices_that_send_slowly_through_a_leaf_keep_no_other_waiting(root, leaf, what):
    with root.client() as owner, leaf.client() as device:
        job = submit(owner, demand=2, strategy="median")  # whose reports are passed on one by one
        digest = put(owner, model(size=500_000))
        answer = owner.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest})
        assert answer.status_code == 200, answer.text
        task = task_for(device, "slow")
        head = {
            "check-ins": raw_request("POST", "/v1/check-ins", "content-length: 400", body=b"{"),
            "small reports": raw_request(
                "PUT", f"{of(task)}/report", f"authorization: Bearer {task['token']}", "content-length: 400", body=b"8"
            ),
            "reports": raw_request(
                "PUT", f"{of(task)}/report", f"authorization: Bearer {task['token']}",
                f"content-length: {len(BIG)}", body=BIG[:100_000],
            ),
        }[what]  # fmt: skip
        slow = [leaf.connect() for _ in range(CONNECTIONS + 40)]
        for connection in slow:
            connection.sendall(head)
        other = task_for(device, "fast")
        assert device.get(f"/v1/blobs/{digest}").status_code == 200
        if what == "reports":  # then those have all places for them, which the last ones are told
            assert select.select(slow, [], [], 30)[0]
            assert is_problem(report(device, other, BIG), 503)["retry_after_s"] > 0
        else:
            assert report(device, other, BIG).status_code == 200
        assert device.get("/readyz").status_code == 200
        for connection in slow:
            connection.close()
        end(owner, job)
