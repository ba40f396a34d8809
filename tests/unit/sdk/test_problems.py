"""Answers that are errors: each becomes the error that the server meant."""

import httpx
import pytest

from tests.unit.sdk.fake import SERVER, problem
from vennue.core import errors
from vennue.sdk.problems import error_of


def error_from(response):
    response.request = httpx.Request("POST", f"{SERVER}/v1/jobs")
    return error_of(response)


def test_a_problem_document_becomes_the_error_that_it_was_made_from():
    error = error_from(
        problem(422, "unknown-attribute", "no attribute ram", field="requirement", value="ram", limit="x", fix="ram_gb")
    )
    assert type(error) is errors.UnknownAttribute
    assert (error.message, error.field, error.value, error.limit, error.fix) == (
        "no attribute ram", "requirement", "ram", "x", "ram_gb",
    )  # fmt: skip
    assert error.__notes__ == ["in answer to POST http://pool.test/v1/jobs"]


def test_the_story_of_an_illegal_transition_crosses_the_wire():
    error = error_from(problem(409, "illegal-transition", "no", story=["submitted", "opened"]))
    assert isinstance(error, errors.IllegalTransition)
    assert error.story == ("submitted", "opened")


def every_code():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return {kind.code for kind in kinds if issubclass(kind, errors.VennueError)}


@pytest.mark.parametrize("code", sorted(every_code()))
def test_every_code_of_the_tree_comes_back_as_its_class(code):
    assert error_from(problem(409, code)).code == code


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidInput),
        (401, errors.Forbidden),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (413, errors.TooLarge),
        (429, errors.Overloaded),
        (500, errors.Unavailable),
        (504, errors.Unavailable),
        (304, errors.Unavailable),
    ],
)
def test_an_answer_without_a_problem_document_is_classed_by_its_status(status, kind):
    error = error_from(httpx.Response(status, headers={"content-type": "text/html"}, content=b"<html>\xff"))
    assert type(error) is kind
    assert error.message.startswith(f"the server answered {status} ")
