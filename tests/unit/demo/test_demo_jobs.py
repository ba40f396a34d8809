"""The demo's jobs, as files spell them."""

import pytest

from vennue.core.errors import InvalidInput, NotFound
from vennue.core.requirement import DEFAULT_SCHEMA, AttributeSchema, Requirement
from vennue.demo.jobs import SHIPPED, load
from vennue.simulation.traces import phone_population


def test_the_shipped_jobs_make_sense_to_a_pool():
    for job in load():
        job.job.check(DEFAULT_SCHEMA)


def test_the_shipped_jobs_want_overlapping_parts_of_the_pool_as_their_comments_say():
    population = phone_population()
    shares = {}
    for job in load():
        requirement = Requirement.parse(job.job.requirement)
        met = [requirement.matches(profile) for profile in population.table.profiles]
        shares[job.job.name] = round(100 * float(population.shares @ met))

    assert shares == {
        "keyboard": 100, "keyboard-trial": 100, "wardrobe": 56, "cheques": 52, "wardrobe-trial": 43, "proof-reader": 43,
    }  # fmt: skip


def test_one_shipped_job_asks_for_what_only_the_phones_know():
    asked = [job.job.private_requirement for job in load() if job.job.private_requirement]

    assert len(asked) == 1
    assert Requirement.parse(asked[0], AttributeSchema.open()).attributes == {"missing_letter_samples"}


@pytest.fixture
def jobs_file(tmp_path):
    path = tmp_path / "jobs.yaml"

    def write(text):
        path.write_text(text)
        return path

    return write


ONE = "- task: digits\n  job: {name: a, demand: 2, rounds: 1}\n"


def test_a_file_of_other_jobs_can_be_read(jobs_file):
    (job,) = load(jobs_file(ONE))

    assert (job.task, job.job.name, job.arrives_s) == ("digits", "a", 0.0)


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("", "jobs", "Expected `array`, got `null`"),
        ("[]", "jobs", "holds no job"),
        ("- task: digits\n", "jobs", "missing required field `job`"),
        ("{", "jobs", "expected"),
        (ONE + ONE, "name", "two jobs are called a"),
        ("- task: digits\n  job: {name: a, demand: 2}\n", "rounds", "has no end"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_reason(jobs_file, text, field, said):
    with pytest.raises(InvalidInput) as caught:
        load(jobs_file(text))
    assert caught.value.field == field
    assert said in caught.value.message


def test_a_task_that_is_not_there_is_named(jobs_file):
    with pytest.raises(NotFound, match="no task 'digit'"):
        load(jobs_file(ONE.replace("digits", "digit")))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="No such file"):
        load(tmp_path / "absent.yaml")
    assert SHIPPED.exists()
