"""The page about jobs names all that a job can ask for, so that nothing new stays unknown to its readers."""

import pytest

from tests.docs.markdown import REPOSITORY
from vennue.core.job import JobSpec
from vennue.core.requirement import DEFAULT_SCHEMA
from vennue.protocol import Managed
from vennue.tensors.codecs import CODECS
from vennue.updates import strategies

PAGE = (REPOSITORY / "docs" / "jobs.md").read_text()
AGGREGATION = (REPOSITORY / "docs" / "aggregation.md").read_text()


@pytest.mark.parametrize("field", [*JobSpec.__struct_fields__, *Managed.__struct_fields__])
def test_every_field_of_a_job_file_has_a_row(field):
    assert f"\n| `{field}` |" in PAGE


@pytest.mark.parametrize("name", [*DEFAULT_SCHEMA, *strategies.available()])
def test_every_attribute_and_strategy_is_named_in_a_table(name):
    assert any(f"`{name}`" in line for line in PAGE.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_is_in_the_table_of_how_reports_travel(name):
    table = AGGREGATION.split("## How reports travel")[1].split("\n## ")[0]
    assert any(f"`{name}`" in line.split("|")[1] for line in table.splitlines() if line.startswith("| "))
