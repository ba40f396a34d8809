"""How a trained model travels: in a codec that the job takes, as a change where that is asked for or loses less."""

import numpy as np
import pytest

from tests.unit.sdk.fake import SERVER, FakeServer, FakeTime, offer
from vennue.core.errors import InvalidInput, InvalidUpdate
from vennue.core.ids import AssignmentId
from vennue.protocol import CheckInAnswer, ReportReceipt
from vennue.sdk import Device
from vennue.sdk.fedprox import gradient, penalty
from vennue.sdk.models import encode, encode_update, parse
from vennue.tensors import ModelLayout, load
from vennue.tensors.layout import HeaderReader

REPORT = "PUT /v1/assignments/j1.1.1.1/report"
BASE = {"w": np.array([100.0, 200.0, 300.0], np.float32), "steps": np.array([7], np.int64)}
TRAINED = {"w": np.array([101.0, 198.0, 300.0], np.float32), "steps": np.array([8], np.int64)}


@pytest.fixture
def server():
    fake = FakeServer()
    fake.on(REPORT, ReportReceipt(assignment=AssignmentId("j1.1.1.1")))
    return fake


def reported(server, *, codec=None, **task):
    """The body and the headers of a report on a task with these fields."""
    server.on("POST /v1/check-ins", CheckInAnswer(task=offer(server.holds(BASE), **task)))
    device = Device(SERVER, device_id="d1", transport=server, timing=FakeTime().timing)
    for each in device.tasks(max_tasks=1):
        assert each.report(TRAINED, examples=1, codec=codec)
    (request,) = server.sent(REPORT)
    return request.content, request.headers


def layout_of(body: bytes) -> ModelLayout:
    layout = HeaderReader().feed(body)
    assert layout is not None
    return layout


def test_a_plain_model_travels_as_it_is(server):
    body, headers = reported(server)
    assert layout_of(body).metadata == {}
    assert load(body)["w"].tolist() == [101, 198, 300]
    assert headers["vennue-model"] == server.holds(BASE)


def test_the_job_s_first_codec_is_the_default(server):
    body, _ = reported(server, codecs=("float16", "plain"))
    assert layout_of(body).metadata == {"vennue.codec": "float16"}
    assert load(body)["w"].dtype == np.float16


def test_int8_sends_the_change_of_floating_tensors_and_integers_as_they_are(server):
    body, _ = reported(server, codec="int8", codecs=("plain", "int8"))
    assert layout_of(body).metadata == {"vennue.codec": "int8", "vennue.content": "change"}
    stored = load(body)
    assert (stored["w"] * stored["w:scales"]).tolist() == pytest.approx([1, -2, 0], abs=2 / 254)
    assert stored["steps"].tolist() == [8]


def test_top_k_sends_the_largest_changes(server):
    body, _ = reported(server, codec="top-k", codecs=("top-k",))
    assert (load(body)["w:indices"].tolist(), load(body)["w:values"].tolist()) == ([1], [-2.0])


def test_an_asynchronous_job_is_sent_changes_in_any_codec(server):
    body, _ = reported(server, changes=True)
    assert layout_of(body).metadata == {"vennue.content": "change"}
    assert load(body)["w"].tolist() == [1, -2, 0]


@pytest.mark.parametrize("codec", ["int8", "int9"])
def test_a_codec_that_the_job_does_not_take_is_refused_on_the_device(server, codec):
    with pytest.raises(InvalidInput) as refusal:
        reported(server, codec=codec)
    assert (refusal.value.field, refusal.value.limit) == ("codec", "plain")
    assert not server.sent(REPORT)


def test_codecs_that_this_version_does_not_know_are_passed_over(server):
    body, _ = reported(server, codecs=("zip-9", "float32"))
    assert layout_of(body).metadata == {"vennue.codec": "float32"}


@pytest.mark.parametrize("codec", ["float16", "int8", "top-k"])
def test_a_number_that_is_not_finite_is_refused_before_rounding_hides_it(codec):
    base = {"w": np.zeros(2, np.float32)}
    with pytest.raises(InvalidUpdate, match="w: a number is not finite"):
        encode_update({"w": np.array([1, np.nan])}, parse(encode(base)), codec=codec)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_a_change_is_taken_before_anything_is_rounded(dtype):
    base = {"w": np.array([1.0], dtype)}
    body = encode_update({"w": np.array([1 + 2.0**-14])}, parse(encode(base)), codec="float32", as_change=True)
    assert load(body)["w"].tolist() == [2.0**-14]


def test_gradient_descent_with_the_proximal_term_ends_where_the_closed_form_says():
    """The minimum of a/2·(w − c)² + μ/2·(w − x)² is (a·c + μ·x) / (a + μ)."""
    base = {"w": np.array([1.0, -1.0])}
    weights, a, c, mu = {"w": np.zeros(2)}, 2.0, np.array([3.0, 5.0]), 0.5
    for _ in range(200):
        step = a * (weights["w"] - c) + gradient(weights, base, mu)["w"]
        weights["w"] = weights["w"] - 0.1 * step
    assert weights["w"] == pytest.approx((a * c + mu * base["w"]) / (a + mu))


def test_the_penalty_is_half_mu_times_the_squared_distance():
    weights = {"w": np.array([3.0, 4.0]), "b": np.array(1.0)}
    assert penalty(weights, {"w": np.zeros(2), "b": np.zeros(()), "frozen": np.ones(9)}, 0.5) == 0.25 * 26
