"""A leaf as a cache of models: what a thousand devices ask of it costs its root one download, and its disk a bound."""

import asyncio
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.e2e.calls import announced, closed, end, is_problem, of, part, put, report, sha256, state, submit, task_for
from tests.e2e.server_process import ServerProcess, model

KEY = "a secret of leaves"
CACHE_BYTES = 3_500_000


def model_of(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(1_000_000)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("root") / "data", leaf_key=KEY) as running:
        yield running


@pytest.fixture
def leaf(root, tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path / "data", role="leaf", root=root.url, leaf_key=KEY, leaf_cache_bytes=str(CACHE_BYTES)
    ) as running:
        yield running
        assert running.stop() == 0, running.log


def metric(server: ServerProcess, name: str) -> float:
    with server.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def ask(url: str, path: str, devices: int) -> list[str]:
    """The digests of what so many devices get that ask at once, fifty at a time."""
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=50)) as client:
        answers = await asyncio.gather(*(client.get(path) for _ in range(devices)))
    return [sha256(answer.content) for answer in answers]


@pytest.mark.slow_suite
def test_a_thousand_devices_that_ask_a_leaf_cost_the_root_one_download(root, leaf):
    with root.client() as client:
        digest = put(client, np.random.default_rng(9).bytes(20_000))
    before = metric(root, "vennue_responses_total")
    assert asyncio.run(ask(leaf.url, f"/v1/blobs/{digest}", 1000)) == [digest] * 1000
    assert metric(leaf, "vennue_leaf_models_fetched_total") == 1
    # One for the model, one for the metrics that were asked for before.
    assert metric(root, "vennue_responses_total") - before == 2


def test_the_cache_is_bounded_and_what_was_not_used_for_the_longest_goes(root, leaf):
    models = [model_of(seed) for seed in range(5)]
    with root.client() as owner, leaf.client() as device:
        digests = [put(owner, data) for data in models]
        for digest, data in zip(digests, models, strict=True):
            assert device.get(f"/v1/blobs/{digest}").content == data
            assert metric(leaf, "vennue_leaf_cache_bytes") <= CACHE_BYTES
        assert metric(leaf, "vennue_leaf_models_evicted_total") == 2
        assert device.get(f"/v1/blobs/{digests[-1]}").content == models[-1]
        assert metric(leaf, "vennue_leaf_models_fetched_total") == 5
        assert device.get(f"/v1/blobs/{digests[0]}").content == models[0]
        assert metric(leaf, "vennue_leaf_models_fetched_total") == 6


def test_models_that_come_at_once_wait_for_room_in_the_cache(root, leaf):
    models = [model_of(seed) for seed in range(20, 26)]
    with root.client() as owner:
        digests = [put(owner, data) for data in models]

    async def ask_for_all() -> list[str]:
        async with httpx.AsyncClient(base_url=leaf.url, timeout=60) as client:
            answers = await asyncio.gather(*(client.get(f"/v1/blobs/{digest}") for digest in digests * 5))
        return [sha256(answer.content) for answer in answers]

    assert asyncio.run(ask_for_all()) == digests * 5
    assert metric(leaf, "vennue_leaf_cache_bytes") <= CACHE_BYTES


def test_a_leaf_with_a_wrong_key_says_so_and_its_devices_may_turn_elsewhere(root, tmp_path):
    leaf = ServerProcess(tmp_path / "other", role="leaf", root=root.url, leaf_key="another secret of leaves")
    with leaf, root.client() as owner, leaf.client() as device:
        assert device.get("/readyz").status_code == 503  # before any report could be lost to it
        job = submit(owner, demand=1)
        answer = owner.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": put(owner, model())})
        assert answer.status_code == 200, answer.text
        task = task_for(device, "misled")
        assert "VENNUE_LEAF_KEY" in is_problem(report(device, task, model(1.0)), 503, "root")["fix"]
        ready = device.get("/readyz")
        assert ready.status_code == 503
        assert "not the pool's key" in ready.json()["reason"]
        assert report(owner, task, model(1.0)).status_code == 200
        end(owner, job)


def test_a_leaf_whose_disk_has_too_little_room_is_not_ready(root, tmp_path):
    leaf = ServerProcess(
        tmp_path / "data", role="leaf", root=root.url, leaf_key=KEY, least_free_bytes=str(2**62)
    )  # fmt: skip
    with leaf, leaf.client() as device:
        ready = device.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "failing")
        assert f"are free in {tmp_path / 'data'}, {2**62} are needed" in ready.json()["reason"]


def test_a_leaf_does_not_start_on_a_roots_directory_whose_reports_it_would_remove(root, tmp_path):
    with ServerProcess(tmp_path / "data") as other, other.client() as owner:
        job = submit(owner, demand=2)
        answer = owner.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": put(owner, model())})
        assert answer.status_code == 200, answer.text
        assert report(owner, task_for(owner, "one"), model(1.0)).status_code == 200
        other.kill()
    leaf = ServerProcess(tmp_path / "data", role="leaf", root=root.url, leaf_key=KEY)
    assert leaf.wait() != 0
    assert "a root's" in leaf.log
    with ServerProcess(tmp_path / "data") as again, again.client() as owner:
        assert report(owner, task_for(owner, "two"), model(3.0)).status_code == 200
        view = closed(owner, job)
        assert (view["state"], view["reported"]) == ("committed", 2)


def test_a_model_that_is_larger_than_the_cache_is_refused_with_the_numbers(root, leaf):
    with root.client() as owner, leaf.client() as device:
        digest = put(owner, bytes(CACHE_BYTES + 1))
        problem = is_problem(device.get(f"/v1/blobs/{digest}"), 507)
        assert problem["limit"] == CACHE_BYTES


def test_a_leaf_makes_other_forms_by_itself_and_passes_on_what_is_not_there(root, leaf):
    with root.client() as owner, leaf.client() as device:
        digest = put(owner, b"the same line again\n" * 10_000)
        answer = device.get(f"/v1/blobs/{digest}", headers={"accept-encoding": "zstd"})
        assert answer.headers["content-encoding"] == "zstd"
        is_problem(device.get(f"/v1/blobs/{'0' * 64}"), 404, "digest")
        assert device.get(f"/v1/blobs/{digest}/upload").status_code == 404


def test_a_report_in_parts_is_collected_by_the_leaf_and_counts_at_the_root(root, leaf):
    with root.client() as owner, leaf.client() as device:
        job = submit(owner, demand=1)
        answer = owner.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": put(owner, model(size=10_000))})
        assert answer.status_code == 200, answer.text
        task, update = task_for(device, "slow"), model(2.0, size=10_000)
        path, headers = of(task), announced(task, update)
        assert part(device, path, update[:7000], 0, last=False, **headers).json()["received_bytes"] == 7000
        assert state(device, path, **headers) == (7000, False)
        last = part(device, path, update[7000:], 7000, last=True, **headers)
        assert (last.status_code, last.json()["complete"]) == (200, True)
        view = closed(owner, job)
        assert (view["state"], view["reported"], view["weight"]) == ("committed", 1, 7.0)
        assert state(device, path, **headers) == (len(update), True)
        end(owner, job)


def test_models_in_a_full_cache_give_way_to_a_report_in_parts(root, leaf):
    with root.client() as owner, leaf.client() as device:
        job = submit(owner, demand=1)
        digest = put(owner, model(size=200_000))
        answer = owner.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": digest})
        assert answer.status_code == 200, answer.text
        task, update = task_for(device, "slow"), model(2.0, size=200_000)
        path, headers = of(task), announced(task, update)
        for seed in range(30, 34):
            data = model_of(seed)
            assert device.get(f"/v1/blobs/{put(owner, data)}").content == data
        assert metric(leaf, "vennue_leaf_cache_bytes") + len(update) > CACHE_BYTES
        assert part(device, path, update[:500_000], 0, last=False, **headers).json()["received_bytes"] == 500_000
        assert part(device, path, update[500_000:], 500_000, last=True, **headers).json()["complete"]
        assert owner.get(f"/v1/jobs/{job}/rounds/1", params={"wait": 10}).json()["state"] == "committed"
        assert metric(leaf, "vennue_leaf_cache_bytes") <= CACHE_BYTES


def test_a_leaf_passes_parts_on_that_it_cannot_sum_up(root, leaf):
    with root.client() as owner, leaf.client() as device:
        job = submit(owner, demand=1, strategy="median")
        answer = owner.post(f"/v1/jobs/{job}/rounds", json={"round": 1, "model": put(owner, model(size=10_000))})
        assert answer.status_code == 200, answer.text
        task, update = task_for(device, "slow"), model(2.0, size=10_000)
        path, headers = of(task), announced(task, update)
        assert part(device, path, update[:7000], 0, last=False, **headers).json()["received_bytes"] == 7000
        assert state(owner, path, **headers) == (7000, False)
        assert part(device, path, update[7000:], 7000, last=True, **headers).json()["complete"]
        assert closed(owner, job)["state"] == "committed"
        end(owner, job)
