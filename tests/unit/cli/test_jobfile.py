"""Job files: what is wrong with one is told with the file, the line, the field and the fix."""

import pytest

from vennue.cli.jobfile import JobFile
from vennue.core.errors import InvalidInput
from vennue.core.job import JobSpec
from vennue.protocol import Managed, Target


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"

    def write(text):
        path.write_text(text)
        return path

    return write


def refusal(path):
    with pytest.raises(InvalidInput) as caught:
        JobFile(path)
    return caught.value


def test_a_job_file_is_the_job_specification_it_spells(job_file):
    path = job_file("name: next-word\ndemand: 20\nrequirement: device.ram_gb >= 4\ndeadline_s: 60\n")

    assert JobFile(path).spec == JobSpec(name="next-word", demand=20, requirement="device.ram_gb >= 4", deadline_s=60.0)


def test_a_misspelt_field_is_told_with_its_line_and_the_nearest_field(job_file):
    error = refusal(job_file("name: a\n\ndemandd: 20\n"))

    assert "line 3" in error.message
    assert error.field == "demandd"
    assert error.fix == "did you mean 'demand'?"


def test_a_value_of_the_wrong_kind_is_told_with_its_line_and_field(job_file):
    error = refusal(job_file("name: a\ndemand: twenty\n"))

    assert "job.yaml, line 2: Expected int, got str: 'twenty'" in error.message
    assert error.field == "demand"


def test_text_where_a_list_belongs_is_told_with_the_list_to_write(job_file):
    error = refusal(job_file("name: a\ndemand: 20\ncodecs: int8\n"))

    assert (error.field, error.fix) == ("codecs", 'write ["int8"]')


def test_a_missing_field_is_named(job_file):
    error = refusal(job_file("name: a\n"))

    assert error.field == "demand"
    assert "is missing" in error.message


def test_text_that_is_no_yaml_is_told_with_line_and_column(job_file):
    error = refusal(job_file("name: a\nrequirement: device.data: x\n"))

    assert "line 2, column 25: not YAML" in error.message


def test_a_requirement_that_begins_with_a_quote_is_told_to_be_quoted(job_file):
    error = refusal(job_file('name: a\nrequirement: "maps" in device.data\n'))

    assert "line 2" in error.message
    assert "between single quotes" in str(error.fix)


def test_a_field_given_twice_is_refused_with_both_lines(job_file):
    error = refusal(job_file("name: a\ndemand: 1\nname: b\n"))

    assert error.field == "name"
    assert "line 3: name stands on line 1 already" in error.message


@pytest.mark.parametrize("text", ["", "- name: a\n", "just text\n", "[" * 5000])
def test_a_file_without_fields_is_refused(job_file, text):
    assert refusal(job_file(text)).field == "file"


def test_a_file_that_is_not_there_is_named(tmp_path):
    error = refusal(tmp_path / "absent.yaml")

    assert "there is no file" in error.message
    assert error.value.endswith("absent.yaml")


def test_a_folder_or_a_binary_file_cannot_be_read(tmp_path):
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00")

    assert "cannot read" in refusal(tmp_path).message
    assert "not UTF-8" in refusal(binary).message


def test_what_the_server_refuses_is_located_in_the_file(job_file):
    submitted = JobFile(job_file("name: a\ndemand: 20\nrequirement: device.rm >= 4\n"))
    from_server = InvalidInput("unknown attribute", field="requirement")

    assert "line 3: unknown attribute" in submitted.locate(from_server).message


def test_an_error_about_no_field_of_the_file_is_left_alone(job_file):
    submitted = JobFile(job_file("name: a\ndemand: 20\n"))

    assert submitted.locate(InvalidInput("too many jobs", field="jobs")).message == "too many jobs"


def test_a_file_with_a_model_is_a_managed_job_and_the_model_stands_beside_it(job_file):
    path = job_file("name: a\ndemand: 2\nrounds: 3\nmodel: start.safetensors\ntarget: {metric: loss, at_most: 0.5}\n")
    path.with_name("start.safetensors").write_bytes(b"")

    read = JobFile(path)

    assert read.managed == Managed(model="start.safetensors", target=Target(metric="loss", at_most=0.5))
    assert read.model == path.with_name("start.safetensors")
    assert read.spec == JobSpec(name="a", demand=2, rounds=3)


def test_a_model_that_is_a_digest_needs_no_file(job_file):
    read = JobFile(job_file(f"name: a\ndemand: 2\nmodel: {'0a' * 32}\n"))

    assert read.managed == Managed(model="0a" * 32)
    assert read.model is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("model: gone.safetensors\n", "model"),
        ("evaluate_every: 2\n", "evaluate_every"),
        ("model: x\ntarget: {metric: loss, most: 1}\n", "target"),
        ("modell: x\n", "modell"),
    ],
)
def test_what_is_wrong_with_a_managed_job_is_told_with_its_line(job_file, text, field):
    error = refusal(job_file("name: a\ndemand: 2\n" + text))

    assert error.field == field
    assert "line 3" in error.message or "line 4" in error.message
