"""Job files that wait for one another: their order, and what is refused."""

import pytest

from vennue.cli.chain import in_order, with_ids
from vennue.cli.jobfile import JobFile
from vennue.core.errors import InvalidInput
from vennue.core.ids import JobId
from vennue.core.job import After


@pytest.fixture
def file(tmp_path):
    def make(name: str, after: str = "") -> JobFile:
        path = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}.yaml"
        path.write_text(f"name: {name}\ndemand: 1\n" + (f"after: {after}\n" if after else ""))
        return JobFile(path)

    return make


def names(files: list[JobFile]) -> list[str]:
    return [made.spec.name for made in files]


def test_q9_each_job_comes_after_those_that_it_waits_for_and_else_as_given(file):
    files = [file("c", "[b]"), file("x"), file("b", "[{job: a, when: ended}]"), file("a")]
    assert names(in_order(files)) == ["x", "a", "b", "c"]


def test_a_name_of_no_file_is_left_for_the_server_as_an_id(file):
    files = in_order([file("b", "[earlier-1a2b3c]")])
    assert with_ids(files[0].spec, {}).after == (After(job=JobId("earlier-1a2b3c")),)


def test_names_become_the_ids_that_the_server_gave(file):
    spec = file("b", "[a, {job: z, when: ended}]").spec
    assert with_ids(spec, {"a": JobId("a-77")}).after == (
        After(job=JobId("a-77")),
        After(job=JobId("z"), when="ended"),
    )


@pytest.mark.parametrize(
    ("jobs", "circle"),
    [
        ({"a": "[c]", "b": "[a]", "c": "[b]"}, {"a", "b", "c"}),
        ({"a": "[a]"}, {"a"}),
        ({"a": "", "b": "[c, a]", "c": "[b]"}, {"b", "c"}),
    ],
)
def test_jobs_that_would_wait_for_each_other_are_refused_with_the_circle(file, jobs, circle):
    with pytest.raises(InvalidInput, match="in a circle: ") as caught:
        in_order([file(name, after) for name, after in jobs.items()])
    told = caught.value.message.partition("circle: ")[2].split(" → ")
    assert told[0] == told[-1]
    assert set(told) == circle
    assert caught.value.field == "after"
    assert ".yaml, line 3" in caught.value.message


def test_a_name_that_two_jobs_have_cannot_be_waited_for(file):
    with pytest.raises(InvalidInput, match="two of the jobs are named 'a'"):
        in_order([file("a"), file("a"), file("b", "[a]")])
    assert names(in_order([file("a"), file("a")])) == ["a", "a"]
