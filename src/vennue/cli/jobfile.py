"""Job files: a `JobSpec` as YAML, and with a ``model`` a `Managed` job, whose rounds the platform runs.

Whatever is wrong with one is reported with the file, the line and the field.
"""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from vennue.core.errors import InvalidInput, did_you_mean
from vennue.core.job import JobSpec
from vennue.protocol import Managed

_LARGEST_BYTES = 2**20
_MANAGED = Managed.__struct_fields__
_KNOWN = (*JobSpec.__struct_fields__, *_MANAGED)
_DIGEST = re.compile(r"[0-9a-f]{64}")


T = TypeVar("T", bound=msgspec.Struct)


class JobFile:
    """A job's specification as read from a file.

    Raises:
        InvalidInput: there is no such file, it is no YAML, or a field is unknown, missing or of the wrong kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, int] = {}
        document = self._document(self._text())
        managed = {name: document.pop(name) for name in _MANAGED if name in document}
        self.spec = self._convert(document, JobSpec)
        self.managed: Managed | None = None
        """With which the platform runs the job's rounds; its model is a digest, unless ``model`` has a file's path."""
        self.model: Path | None = None
        if managed:
            if "model" not in managed:
                other = next(iter(managed))
                raise InvalidInput(
                    f"{self._where(other)}: {other} is for jobs that the platform runs, which begin with a model",
                    field=other, fix="add a line `model: start.safetensors`, or leave it out",
                )  # fmt: skip
            self.managed = self._convert(managed, Managed)
            if not _DIGEST.fullmatch(self.managed.model):
                self.model = path.parent / self.managed.model
                if not self.model.is_file():
                    raise InvalidInput(
                        f"{self._where('model')}: there is no file {self.model}", field="model",
                        value=self.managed.model, fix="name a .safetensors file, or the digest of a stored model",
                    )  # fmt: skip

    def locate(self, error: InvalidInput) -> InvalidInput:
        """The same error, its message saying where in the file its field stands."""
        top = (error.field or "").removeprefix("managed.").partition(".")[0]
        if top in _KNOWN:
            error.message = f"{self._where(top)}: {error.message}"
        return error

    def _convert(self, document: dict[str, Any], kind: type[T]) -> T:
        try:
            return msgspec.convert(document, kind)
        except msgspec.ValidationError as error:
            raise self._misfit(str(error), document, kind) from None

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
                fix="write one `field: value` per line; put a value that begins with a quote, or has `: ` or ` #` in "
                "it, between single quotes",
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

    def _misfit(self, reason: str, document: dict[str, Any], kind: type[msgspec.Struct]) -> InvalidInput:
        """What msgspec says ("Expected `int`, got `str` - at `$.demand`"), in our terms."""
        said, _, at = reason.partition(" - at `$")
        field = at.strip("`.").partition(".")[0].partition("[")[0]
        unknown = next((str(name) for name in document if name not in _KNOWN), None)
        if unknown is not None:
            return InvalidInput(
                f"{self._where(unknown)}: a job has no field {unknown!r}", field=unknown, limit=list(_KNOWN),
                fix=did_you_mean(unknown, _KNOWN, f"the fields are {', '.join(_KNOWN)}"),
            )  # fmt: skip
        missing = next((f.name for f in msgspec.structs.fields(kind) if f.required and f.name not in document), None)
        if missing is not None:
            return InvalidInput(
                f"{self.path}: the field {missing} is missing", field=missing, fix=f"add a line `{missing}: …`"
            )
        value = document.get(field)
        listed = said.startswith("Expected `array`") and isinstance(value, str)
        return InvalidInput(
            f"{self._where(field)}: {said.replace('`', '')}: {value!r}", field=field or "file", value=value,
            fix=f'write ["{value}"]' if listed else "write numbers without quotes, and text as text",
        )  # fmt: skip
