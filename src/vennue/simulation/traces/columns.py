"""Tables on disk, as columns of text or numbers: CSV, gzipped CSV and Parquet, told apart by the file's name.

A value that does not fit is reported with its file, row and column. Writing goes to a temporary file beside the target
and replaces it at the end, so an interrupted command leaves no half a table. Parquet needs the ``sim`` extra.
"""

import contextlib
import csv
import gzip
import io
import itertools
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np
import numpy.typing as npt

from vennue.core.errors import InvalidInput, StorageError
from vennue.simulation.traces.model import FloatArray

Progress = Callable[[float], None]
"""Told the fraction of the work done, from 0 to 1, now and then."""

_CHUNK_ROWS = 100_000
_SUFFIXES = (".csv", ".csv.gz", ".parquet")


class Table:
    """Columns of one file, and where each row stands in it.

    Attributes:
        path: the file.
        columns: name → values: numpy arrays, or lists of text.
        first: number of the first row here among the file's rows of data.
    """

    def __init__(self, path: Path, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]], *, first: int = 0) -> None:
        self.path = path
        self.columns = columns
        self.first = first

    def __len__(self) -> int:
        return max((len(column) for column in self.columns.values()), default=0)

    def where(self, index: int) -> str:
        """Names a row of data in an error: the file and, for text, the line."""
        index += self.first
        if table_suffix(self.path) == ".parquet":
            return f"{self.path.name}, row {index + 1}"
        with _open_text(self.path) as (file, _):
            reader = csv.reader(file)
            for _ in itertools.islice((row for row in reader if row), index + 2):
                pass
            return f"{self.path.name}, line {reader.line_num}"

    def numbers(self, name: str) -> FloatArray:
        """A column as numbers.

        Raises:
            InvalidInput: a value is text or missing; the error names its row.
        """
        column = self.columns[name]
        try:
            return np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            index, value = next((i, value) for i, value in enumerate(column) if not _is_number(value))
            raise self._not_a_number(index, name, value) from None

    def whole_numbers(self, name: str) -> npt.NDArray[np.int64]:
        """A column as whole numbers.

        Raises:
            InvalidInput: a value is not one; the error names its row.
        """
        numbers = self.numbers(name)
        bad = np.flatnonzero(~(np.abs(numbers) < 2**53) | (numbers != np.floor(numbers)))
        if len(bad):
            value = float(numbers[bad[0]])
            raise InvalidInput(
                f"{self.where(int(bad[0]))}: {name} is {value:.15g}, not a whole number",
                field=name, value=value, fix="number the devices 0, 1, 2, …",
            )  # fmt: skip
        return numbers.astype(np.int64)

    def values(self, name: str, *, numeric: bool = False) -> list[Any]:
        """A column as Python values: numbers or truth values if all of it is, else text. Empty cells are None.

        Raises:
            InvalidInput: ``numeric`` and there is text in it; the error names its row.
        """
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            column = column.tolist()
        column = [None if cell == "" else cell for cell in column]
        filled = [index for index, cell in enumerate(column) if cell is not None]
        bad = next((index for index in filled if not _is_number(column[index])), None)
        if bad is None:
            return [None if cell is None else float(cell) for cell in column]
        if numeric:
            raise self._not_a_number(bad, name, column[bad])
        truth = {"true": True, "false": False}
        if all(str(column[index]).lower() in truth for index in filled):
            return [None if cell is None else truth[str(cell).lower()] for cell in column]
        return column

    def _not_a_number(self, index: int, name: str, value: object) -> InvalidInput:
        return InvalidInput(
            f"{self.where(index)}: {name} is {value!r}, not a number",
            field=name, value=value, fix="correct the value or delete the row",
        )  # fmt: skip


def is_table(path: Path) -> bool:
    """Whether the name's ending is one of a table's."""
    return path.name.lower().endswith(_SUFFIXES)


def read_header(path: Path) -> list[str]:
    """The names of a file's columns.

    Raises:
        InvalidInput: as `read_table`.
    """
    return list(_read(path, None, None, header_only=True).columns)


def read_table(path: Path, wanted: Sequence[str] | None = None, *, progress: Progress | None = None) -> Table:
    """The columns of a file: the ``wanted`` ones, as numbers, or all, as they are.

    Raises:
        InvalidInput: no such file, an unknown kind of file, a broken one, a missing column, a ragged row, or text in
            a wanted column.
    """
    return _read(path, wanted, progress)


def write_table(path: Path, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> None:
    """Write the columns, all at once or not at all.

    Raises:
        InvalidInput: the name's ending says no kind of table.
        StorageError: the file cannot be written.
    """
    suffix = table_suffix(path)
    with replacing(path) as file:
        if suffix == ".parquet":
            pa, parquet = _pyarrow()
            parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), file)
        elif suffix == ".csv.gz":
            with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                _write_csv(cast(BinaryIO, packed), columns)
        else:
            _write_csv(file, columns)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` when the block ends well, and vanishes when it does not.

    Raises:
        StorageError: the file cannot be written.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        Path(temporary).unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot write {path}: {error.strerror}", field="path", value=str(path), fix="choose another place"
    )


def table_suffix(path: Path) -> str:
    """Which kind of table a file's name says it is.

    Raises:
        InvalidInput: none.
    """
    for suffix in _SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise InvalidInput(
        f"{path.name} is not a table", field="path", value=str(path), limit=_SUFFIXES,
        fix=f"name it *{', *'.join(_SUFFIXES)}",
    )  # fmt: skip


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[tuple[TextIO, BinaryIO]]:
    """The text of a file, unpacked, and the file on disk, whose position tells how much has been read."""
    with path.open("rb") as raw:
        packed = path.name.lower().endswith(".gz")
        content = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        yield io.TextIOWrapper(content, encoding="utf-8-sig", newline=""), raw


def _read(path: Path, wanted: Sequence[str] | None, progress: Progress | None, *, header_only: bool = False) -> Table:
    suffix = table_suffix(path)
    if not path.is_file():
        raise InvalidInput(f"no such file: {path}", field="path", value=str(path), fix="check the name")
    try:
        if suffix == ".parquet":
            return _read_parquet(path, wanted, header_only=header_only)
        return _read_csv(path, wanted, progress, header_only=header_only)
    except (UnicodeDecodeError, csv.Error, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(
            f"{path.name} is not a readable {suffix} file: {error}", field="path", value=str(path),
            fix="check that the file is whole and of the kind that its name says",
        ) from error  # fmt: skip


def _read_csv(path: Path, wanted: Sequence[str] | None, progress: Progress | None, *, header_only: bool) -> Table:
    size = path.stat().st_size
    with _open_text(path) as (file, raw):
        reader = csv.reader(file)
        header = [name.strip() for name in next((row for row in reader if row), [])]
        names = _present(path, header, wanted)
        if header_only:
            return Table(path, {name: [] for name in names})
        indices = [header.index(name) for name in names]
        parts: list[Any] = [[] for _ in names]
        rows = (row for row in reader if row)
        read = 0
        while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
            ragged = next((i for i, row in enumerate(chunk) if len(row) != len(header)), None)
            if ragged is not None:
                raise InvalidInput(
                    f"{Table(path, {}, first=read).where(ragged)}: "
                    f"{len(chunk[ragged])} values for {len(header)} columns",
                    field="path", value=str(path), fix="correct the row",
                )  # fmt: skip
            part = Table(
                path, {name: [row[i] for row in chunk] for name, i in zip(names, indices, strict=True)}, first=read
            )
            for name, column in zip(names, parts, strict=True):
                if wanted is None:
                    column.extend(part.columns[name])
                else:
                    column.append(part.numbers(name))
            read += len(chunk)
            if progress is not None and size:
                progress(raw.tell() / size)
    if wanted is not None:
        parts = [np.concatenate(column) if column else np.empty(0) for column in parts]
    return Table(path, dict(zip(names, parts, strict=True)))


def _read_parquet(path: Path, wanted: Sequence[str] | None, *, header_only: bool) -> Table:
    pa, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            names = _present(path, file.schema_arrow.names, wanted)
            if header_only:
                return Table(path, {name: [] for name in names})
            table = file.read(columns=names)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(
            f"{path.name} is not a readable Parquet file: {error}", field="path", value=str(path),
            fix="check that the file is whole",
        ) from error  # fmt: skip
    return Table(path, {name: table.column(name).to_numpy() for name in names})


def _present(path: Path, header: Sequence[str], wanted: Sequence[str] | None) -> list[str]:
    if wanted is None:
        return list(header)
    missing = [name for name in wanted if name not in header]
    if missing:
        raise InvalidInput(
            f"{path.name} has no column {', '.join(missing)}; it has {', '.join(header) or 'none'}",
            field=missing[0], value=list(header), limit=list(wanted), fix=f"name its columns {', '.join(wanted)}",
        )  # fmt: skip
    return list(wanted)


def _write_csv(file: BinaryIO, columns: Mapping[str, Sequence[Any] | npt.NDArray[Any]]) -> None:
    text = _Encoder(file)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    values = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()]
    writer.writerows(zip(*values, strict=True))


class _Encoder:
    """Text in, UTF-8 out, into a file that stays open (`io.TextIOWrapper` would close it)."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode())


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidInput(
            "Parquet files need pyarrow, which is not installed", field="path",
            fix="pip install 'vennue[sim]', or use .csv.gz",
        ) from error  # fmt: skip
    return pa, parquet
