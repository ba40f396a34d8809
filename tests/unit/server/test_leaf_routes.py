"""The routes of leaves: the key that they show, and a partial sum's message and numbers in one body."""

import msgspec
import numpy as np
import pytest

from tests.unit.control.rig import rig_at
from tests.unit.server.test_app import Exchange, ask
from vennue.core.ids import attempt_of
from vennue.protocol import AttemptView, PartialManifest, PartialReceipt, PartialReport
from vennue.server.app import App
from vennue.server.config import Limits
from vennue.tensors.model import save

KEY = "a secret of thirty-two letters.."
SHOWN = f"Bearer {KEY}"


@pytest.fixture
async def rig(tmp_path):
    async with rig_at(tmp_path) as started:
        yield started


@pytest.fixture
def app(rig):
    return App(rig.coordinator, rig.selector, Limits(), "1", leaf_key=KEY)


async def round_of(rig, devices=2):
    job = await rig.job(demand=devices)
    await rig.open(job)
    return job, [rig.task(f"d{n}") for n in range(devices)]


def partial(*tasks) -> bytes:
    reports = [PartialReport(task.assignment, task.token, 10, 1.0) for task in tasks]
    message = msgspec.json.encode(PartialManifest(reports=reports, weight=len(tasks), models=len(tasks)))
    sums = save({"w": np.full(2, 6.0, np.float32)}, {"vennue.sums": "1"})
    return len(message).to_bytes(8, "little") + message + sums


async def put(app, task, *chunks, authorization=SHOWN) -> Exchange:
    path = f"/v1/attempts/{attempt_of(task.assignment)}/partials/p1"
    headers = {} if authorization is None else {"authorization": authorization}
    return await ask(app, "PUT", path, *chunks, **headers)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 50, 10_000])
async def test_a_partial_sum_counts_in_whatever_pieces_it_comes(app, rig, size):
    job, tasks = await round_of(rig)
    body = partial(*tasks)
    answer = await put(app, tasks[0], *(body[start : start + size] for start in range(0, len(body), size)))
    assert msgspec.json.decode(answer.body, type=PartialReceipt) == PartialReceipt(counted=True)
    assert rig.numbers((await rig.coordinator.round(job, 1, wait_s=20)).result) == [3.0, 3.0]


@pytest.mark.parametrize("end", [0, 4, 8, 100, -1])
async def test_a_partial_sum_that_is_cut_off_counts_nothing(app, rig, end):
    _, tasks = await round_of(rig)
    answer = await put(app, tasks[0], partial(*tasks)[:end])
    assert answer.status in {400, 422}
    assert rig.coordinator.counters.reports == 0


async def test_a_manifest_that_claims_to_be_endless_is_refused_unread(app, rig):
    _, tasks = await round_of(rig)
    answer = await put(app, tasks[0], (2**60).to_bytes(8, "little") + b"x")
    assert (answer.status, answer.json["field"]) == (413, "body")


async def test_a_manifest_that_is_no_json_is_refused(app, rig):
    _, tasks = await round_of(rig)
    answer = await put(app, tasks[0], (4).to_bytes(8, "little") + b"{{{{")
    assert answer.status == 400


@pytest.mark.parametrize(("authorization", "status"), [(None, 401), ("Bearer x", 403), (f"Basic {KEY}", 401)])
async def test_whoever_shows_another_key_is_refused(app, rig, authorization, status):
    _, tasks = await round_of(rig)
    assert (await put(app, tasks[0], partial(*tasks), authorization=authorization)).status == status


async def test_a_root_without_a_key_takes_no_leaves(tmp_path):
    async with rig_at(tmp_path) as rig:
        app = App(rig.coordinator, rig.selector, Limits(), "1")
        _, tasks = await round_of(rig)
        answer = await put(app, tasks[0], partial(*tasks))
        assert (answer.status, "VENNUE_LEAF_KEY" in answer.json["fix"]) == (403, True)


async def test_a_leaf_asks_for_an_attempt(app, rig):
    _, tasks = await round_of(rig)
    attempt = attempt_of(tasks[0].assignment)
    answer = await ask(app, "GET", f"/v1/attempts/{attempt}", authorization=SHOWN)
    assert msgspec.json.decode(answer.body, type=AttemptView).attempt == attempt
    missing = await ask(app, "GET", "/v1/attempts/none.1.1", authorization=SHOWN)
    assert missing.status == 404
