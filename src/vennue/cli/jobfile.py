"""Job files: a `JobSpec` as YAML. Whatever is wrong with one is reported with the file, the line and the field."""

import difflib
from pathlib import Path
from typing import Any

import msgspec
import yaml

from vennue.core.errors import InvalidInput
from vennue.core.job import JobSpec

_LARGEST_BYTES = 2**20


class JobFile:
    """A job's specification as read from a file.

    Raises:
        InvalidInput: there is no such file, it is no YAML, or a field is unknown, missing or of the wrong kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, int] = {}
        document = self._document(self._text())
        try:
            self.spec = msgspec.convert(document, JobSpec)
        except msgspec.ValidationError as error:
            raise self._misfit(str(error), document) from None

    def locate(self, error: InvalidInput) -> InvalidInput:
        """The same error, its message saying where in the file its field stands."""
        top = (error.field or "").partition(".")[0]
        if top in JobSpec.__struct_fields__:
            error.message = f"{self._where(top)}: {error.message}"
        return error

    def _text(self) -> str:
        try:
            if self.path.stat().st_size > _LARGEST_BYTES:
                raise InvalidInput(
                    f"{self.path} is larger than a job file can be", field="file", limit=_LARGEST_BYTES,
                    fix="give the job's specification, not its model",
                )  # fmt: skip
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InvalidInput(
                f"there is no file {self.path}", field="file", value=str(self.path), fix="check its name"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise InvalidInput(
                f"cannot read {self.path}: {reason}", field="file", value=str(self.path), fix="give a YAML file"
            ) from error

    def _document(self, text: str) -> dict[str, Any]:
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            document = yaml.safe_load(text)
        except RecursionError:
            raise InvalidInput(
                f"{self.path}: brackets within brackets, too deep for a job file", field="file", fix="give plain fields"
            ) from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise InvalidInput(
                f"{self.path}{line}: not YAML: {problem}", field="file", value=str(self.path),
                fix="write one `field: value` per line; put text with `:` or `#` in it between quotes",
            ) from None  # fmt: skip
        if not isinstance(node, yaml.MappingNode) or not isinstance(document, dict):
            raise InvalidInput(
                f"{self.path}: a job file is a list of `field: value` lines", field="file", value=str(self.path),
                fix="begin with `name: my-job` and `demand: 10`",
            )  # fmt: skip
        for key, _ in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in self._lines:
                raise InvalidInput(
                    f"{self.path}, line {line}: {name} stands on line {self._lines[name]} already", field=name,
                    fix="keep one of the two",
                )  # fmt: skip
            self._lines[name] = line
        return document

    def _where(self, field: str) -> str:
        line = self._lines.get(field)
        return f"{self.path}, line {line}" if line else str(self.path)

    def _misfit(self, reason: str, document: dict[str, Any]) -> InvalidInput:
        """What msgspec says ("Expected `int`, got `str` - at `$.demand`"), in our terms."""
        said, _, at = reason.partition(" - at `$")
        field = at.strip("`.").partition(".")[0].partition("[")[0]
        known = JobSpec.__struct_fields__
        unknown = next((str(name) for name in document if name not in known), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, known, n=1)
            return InvalidInput(
                f"{self._where(unknown)}: a job has no field {unknown!r}", field=unknown, limit=list(known),
                fix=f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(known)}",
            )  # fmt: skip
        missing = next((f.name for f in msgspec.structs.fields(JobSpec) if f.required and f.name not in document), None)
        if missing is not None:
            return InvalidInput(
                f"{self.path}: the field {missing} is missing", field=missing, fix=f"add a line `{missing}: …`"
            )
        value = document.get(field)
        return InvalidInput(
            f"{self._where(field)}: {said.replace('`', '')}: {value!r}", field=field or "file", value=value,
            fix="write numbers without quotes, and text as text",
        )  # fmt: skip
