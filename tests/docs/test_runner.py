"""The runner of documents itself: what authors are promised about blocks, commands, files and failures."""

import pytest

from tests.docs.markdown import anchors, blocks, commands, links
from tests.docs.session import DocumentFailed, run_document


def console(*lines: str, before: str = "") -> str:
    return "\n".join([before, "```console", *lines, "```", ""])


def test_a_blocks_line_is_where_its_content_begins():
    (block,) = blocks("# Title\n\n```python\nprint(1)\n```\n")
    assert (block.line, block.language, block.text) == (4, "python", "print(1)\n")


def test_a_comment_before_a_block_belongs_to_it_and_not_to_the_next():
    first, second = blocks(console("$ a", before="<!-- no-run: needs a network -->") + console("$ b"))
    assert first.directives == {"no-run": "needs a network"}
    assert second.directives == {}


@pytest.mark.parametrize("comment", ["<!-- norun: reason -->", "<!-- no-run -->", "<!-- file: -->"])
def test_a_comment_that_asks_for_nothing_known_is_refused(comment):
    with pytest.raises(ValueError, match="line 1"):
        blocks(comment + console("$ a"))


def test_a_comment_without_a_block_after_it_is_refused():
    with pytest.raises(ValueError, match="no fenced block follows"):
        blocks("<!-- no-run: reason -->\n\nA paragraph.\n")


def test_commands_continue_after_a_backslash_and_the_rest_is_output():
    (block,) = blocks(console("$ echo one \\", "    two", "one two", "$ true"))
    assert [(command.text, command.output) for command in commands(block)] == [
        ("echo one \\\n    two", "one two"),
        ("true", ""),
    ]


def test_output_before_any_command_is_refused():
    (block,) = blocks(console("echo hello"))
    with pytest.raises(ValueError, match=r"commands begin with '\$ '"):
        commands(block)


def test_commands_share_a_shell_and_a_folder_with_programs_and_files(tmp_path):
    text = "<!-- file: greet.py -->\n```python\nimport sys; print('hello', sys.argv[1])\n```\n"
    text += console("$ name=world")
    text += "```python\nfrom pathlib import Path\nPath('made').write_text('by a program')\n```\n"
    text += console("$ python greet.py $name", "hello world", "$ cat made", "by ... program", before="<!-- checked -->")
    assert run_document(blocks(text), tmp_path) == 4


def test_a_failing_command_is_named_with_its_line_and_its_output(tmp_path):
    with pytest.raises(DocumentFailed, match=r"(?s)line 4: `ls missing` exited with .*No such file"):
        run_document(blocks(console("$ echo fine", "$ ls missing", "$ echo never")), tmp_path)


def test_output_that_differs_from_what_a_checked_block_shows_is_a_failure(tmp_path):
    with pytest.raises(DocumentFailed, match=r"(?s)shows\n3\nbut prints\n2"):
        run_document(blocks(console("$ echo 2", "3", before="<!-- checked -->")), tmp_path)


def test_a_server_left_running_is_stopped_after_the_last_command(tmp_path):
    server = "trap 'echo stopped > state; exit' TERM; touch up; while :; do sleep 0.1; done"
    run_document(blocks(console(f"$ {{ {server}; }} &", "$ until test -e up; do sleep 0.1; done")), tmp_path)
    assert (tmp_path / "state").read_text() == "stopped\n"


def test_a_command_that_does_not_end_in_time_is_a_failure(tmp_path):
    with pytest.raises(DocumentFailed, match=r"`sleep 60` did not end in time"):
        run_document(blocks(console("$ sleep 60")), tmp_path, timeout_s=0.2)


def test_blocks_that_are_not_to_run_do_not_run(tmp_path):
    text = console("$ exit 1", before="<!-- no-run: an example -->") + "```yaml\njob: 1\n```\n"
    assert run_document(blocks(text), tmp_path) == 0


def test_a_block_in_the_repository_sees_its_files_and_the_next_one_does_not(tmp_path):
    text = console("$ test -e pyproject.toml", before="<!-- in-repository -->") + console("$ test ! -e pyproject.toml")
    assert run_document(blocks(text), tmp_path) == 2


def test_links_and_images_are_found_with_their_lines():
    text = "A [link](docs/a%20b.md#part).\n\n![image](x.svg)\n\n`[code](not-a-link)`\n"
    assert list(links(text)) == [(1, "docs/a b.md#part"), (3, "x.svg")]


def test_anchors_are_those_that_github_makes():
    assert anchors("# What `vennue` is, in short\n\n## Use\n\n## Use\n") == {"what-vennue-is-in-short", "use", "use-1"}
