"""Models and their numbers: saved, loaded, mapped from a file block by block, checked, widened and narrowed.

Whatever the size of a model, work on it goes through blocks that stay in the processor's cache. Bytes are believed
only behind a checked ``ModelLayout``. Half-precision formats are stored as they are, and computed with as float32.
"""

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vennue._files import storage_errors
from vennue.core.errors import FileDamaged, InvalidInput, InvalidModel
from vennue.tensors.layout import LENGTH_BYTES, STORED, HeaderReader, ModelLayout, Tensor

Array = npt.NDArray[Any]

BLOCK_BYTES: Final = 256 * 1024
"""The size of a block: two or three fit the second-level cache. Measured best among 16 KiB to 1 MiB."""

_RESIDENT_BYTES: Final = 8 * 2**20

_NAMES: Final = {dtype: name for name, dtype in STORED.items() if name != "BF16"}
_EMPTY: Final = {name: np.empty(0, dtype) for name, dtype in STORED.items()}
# By width: unsigned and signed integers, and the sign bit of the former.
_INTEGERS: Final = {size: (np.dtype(f"<u{size}"), np.dtype(f"<i{size}"), 1 << (8 * size - 1)) for size in (2, 4, 8)}
# The bits of infinity, without the sign: from here on, a number is not finite.
_INFINITY: Final = {"F64": 0x7FF << 52, "F32": 0xFF << 23, "F16": 0x1F << 10, "BF16": 0xFF << 7}


class MappedModel:
    """A model read from its file through a memory map, of which no more than some 8 MiB are in this process's memory.

    Args:
        path: a file that begins with a model.
        size_bytes: the model's size, where more follows it in the file.
        known: a layout whose header needs no second check when the file repeats it byte by byte.
        error: what to raise when the file is not a well-formed model.

    Raises:
        InvalidInput: as the given ``error`` class.
        StorageError: the file cannot be read.
    """

    def __init__(
        self,
        path: Path,
        *,
        size_bytes: int | None = None,
        known: ModelLayout | None = None,
        error: type[InvalidInput] = InvalidModel,
    ) -> None:
        with storage_errors("read the model", path), path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            size_bytes = file_bytes if size_bytes is None else size_bytes
            if file_bytes < size_bytes:
                raise _cut_off(path, file_bytes, size_bytes)
            reader = HeaderReader(error=error, known=known)
            prefix = file.read(LENGTH_BYTES)
            layout = reader.feed(prefix)  # refuses a length that is not worth reading
            if len(prefix) == LENGTH_BYTES:
                layout = layout or reader.feed(file.read(int.from_bytes(prefix, "little")))
            self.layout = _of_size(layout, size_bytes, error)
            self._map: mmap.mmap | memoryview = mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ)
        self._path = path
        self._resident_bytes = 0

    def read(self, tensor: Tensor, start: int = 0, stop: int | None = None) -> Array:
        """Elements ``start`` to ``stop`` of a tensor, flat, as stored, read-only and without a copy."""
        stop = tensor.elements if stop is None else stop
        if stop <= start:
            return _EMPTY[tensor.dtype]
        if self._resident_bytes > _RESIDENT_BYTES:
            self.release()
        self._resident_bytes += (stop - start) * tensor.stored.itemsize
        offset = len(self.layout.header) + tensor.start + start * tensor.stored.itemsize
        return np.frombuffer(self._map, tensor.stored, stop - start, offset)

    def blocks(self, tensor: Tensor, elements: int | None = None) -> Iterator[tuple[int, int]]:
        """Walk a tensor: (start, stop) of one block after the other."""
        step = elements or BLOCK_BYTES // tensor.stored.itemsize
        return ((start, min(start + step, tensor.elements)) for start in range(0, tensor.elements, step))

    def peak(self, tensor: Tensor, *, error: type[InvalidInput] = InvalidModel) -> float:
        """The largest magnitude in a floating tensor, exactly; the ``error`` class when a number is not finite."""
        largest = 0
        for start, stop in self.blocks(tensor):
            block = self.read(tensor, start, stop)
            bits = _peak_bits(block)
            if bits >= _INFINITY[tensor.dtype]:
                at = _first_not_finite(block, tensor.dtype)
                bad = block[at : at + 1]
                value = float((widened(bad, "BF16") if tensor.dtype == "BF16" else bad)[0])
                raise error(
                    f"element {start + at} is {value}",
                    field=tensor.name,
                    value=str(value),
                    limit="finite numbers",
                    fix="leave out what diverged; a smaller learning rate may keep training from it",
                )
            largest = max(largest, bits)
        return _from_bits(largest, tensor.dtype)

    def check_whole(self) -> None:
        """Make sure that the file was not cut off since: to touch what is gone would end the process (SIGBUS).

        Nobody of ours changes spooled updates and blobs in place. This is looked at every few megabytes, since reading
        blocks instead of mapping them would cost a fold a fifth of its speed.

        Raises:
            FileDamaged: it was.
        """
        if isinstance(self._map, mmap.mmap) and self._map.size() < len(self._map):
            raise _cut_off(self._path, self._map.size(), len(self._map))

    def release(self) -> None:
        """Let go of what was read: it stays in the page cache, and comes back from there when it is touched.

        Raises:
            FileDamaged: as ``check_whole``.
        """
        self.check_whole()
        if isinstance(self._map, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        self._resident_bytes = 0


class HeldModel(MappedModel):
    """A model that is in memory already, read in the same way.

    Args:
        file: the whole file.
        known: a layout whose header needs no second check when the file repeats it byte by byte.
        error: what to raise when it is not a well-formed model.
    """

    def __init__(
        self,
        file: bytes | bytearray | memoryview,
        *,
        known: ModelLayout | None = None,
        error: type[InvalidInput] = InvalidModel,
    ) -> None:
        view = memoryview(file).cast("B")
        self.layout = _of_size(HeaderReader(error=error, known=known).feed(view), len(view), error)
        self._map = view
        self._resident_bytes = 0


def save(model: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """A model as the bytes of a safetensors file; equal models give equal bytes.

    The safetensors library writes the same, except that it puts metadata in random order, which would give one model
    many digests.

    Raises:
        InvalidModel: no tensor, an unprintable name, or a dtype that safetensors does not have.
    """
    return assemble(layout_of(model, metadata), model)


def assemble(layout: ModelLayout, stored: Mapping[str, Array]) -> bytes:
    """The bytes of a file of that layout, whose tensors have those numbers, in the dtypes in which they are stored."""
    parts = [
        np.asarray(stored[tensor.name], dtype=tensor.stored, order="C").reshape(-1).view(np.uint8).data
        for tensor in layout.tensors
    ]
    return b"".join([layout.header, *parts])


def load(
    source: bytes | bytearray | memoryview | Path, *, error: type[InvalidInput] = InvalidModel
) -> dict[str, Array]:
    """The tensors of a safetensors file, each a writable array of its own; BF16 comes as float32.

    Raises:
        InvalidInput: as the given ``error`` class, when the file is not well-formed. Values are not checked.
        StorageError: the file cannot be read.
    """
    if isinstance(source, Path):
        with storage_errors("read the model", source):
            source = source.read_bytes()
    data = memoryview(source).cast("B")
    layout = _of_size(HeaderReader(error=error).feed(data), len(data), error)
    data = data[len(layout.header) :]
    model: dict[str, Array] = {}
    for tensor in layout.tensors:
        values = np.frombuffer(data[tensor.start : tensor.stop], tensor.stored)
        values = widened(values, tensor.dtype) if tensor.dtype == "BF16" else values.copy()
        model[tensor.name] = values.reshape(tensor.shape)
    return model


def layout_of(model: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> ModelLayout:
    """The layout in which ``save`` writes a model."""
    specs = []
    for name, array in model.items():
        dtype = _NAMES.get(array.dtype.newbyteorder("<"))
        if dtype is None:
            raise InvalidModel(
                f"a model cannot hold {array.dtype}", field=name, value=str(array.dtype), fix="convert it to float32"
            )
        specs.append((name, dtype, array.shape))
    return ModelLayout.of(specs, metadata)


def check_model(path: Path) -> ModelLayout:
    """Check a whole model file: well-formed, and every floating number finite. Takes the memory of a block.

    Raises:
        InvalidModel: with the tensor and the element at fault.
        StorageError: the file cannot be read.
    """
    model = MappedModel(path)
    for tensor in model.layout.floating:
        model.peak(tensor)
    return model.layout


def widened(values: Array, dtype: str, out: Array | None = None) -> Array:
    """Stored finite numbers as numbers to compute with, exactly.

    ``out`` (float32 or float64, of the same length) receives them; without it, a new array of float32, or of float64
    for F64.
    """
    if out is None:
        out = np.empty(len(values), np.float64 if dtype == "F64" else np.float32)
    if dtype not in {"F16", "BF16"}:
        out[...] = values
        return out
    if out.dtype != np.float32:
        out[...] = widened(values, dtype)
        return out
    # numpy widens half precision one number at a time; shifted integers do it three times as fast.
    bits = out.view(np.int32)
    bits[...] = values.view(np.int16)
    if dtype == "BF16":
        np.left_shift(bits, 16, out=bits)
        return out
    # The sign was extended, so the shift leaves copies of it in the exponent's upper bits: clear those. The exponent's
    # bias is 15 in F16 and 127 in F32: scaling by 2^112 corrects it, in subnormal numbers too.
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, np.int32(-0x70002000), out=bits)
    return np.multiply(out, np.float32(2.0**112), out=out)


def narrowed(values: Array, dtype: str) -> Array:
    """Finite numbers in the form in which ``dtype`` is stored, rounded to nearest even; too large becomes infinite."""
    with np.errstate(over="ignore"):
        if dtype == "BF16":
            bits = np.asarray(values, np.float32).view(np.uint32)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return values.astype(STORED[dtype], copy=False)


def peak(block: Array, dtype: str) -> float:
    """The largest magnitude among stored floating numbers; infinite where one is infinite or not a number."""
    bits = _peak_bits(block) if len(block) else 0
    return math.inf if bits >= _INFINITY[dtype] else _from_bits(bits, dtype)


def _peak_bits(block: Array) -> int:
    """The bits of the largest magnitude among stored floating numbers; no less than infinity's where one is not finite.

    Numbers of one sign are ordered as their bits are, and the sign bit makes the largest unsigned integers. So two
    integer maxima, which run at the speed of memory in every width, find the largest of either sign, NaNs included.
    """
    unsigned, signed, sign = _INTEGERS[block.itemsize]
    negative = int(np.maximum.reduce(block.view(unsigned))) - sign
    positive = int(np.maximum.reduce(block.view(signed)))
    return max(negative, positive, 0)


def _from_bits(bits: int, dtype: str) -> float:
    stored = STORED[dtype]
    return float(widened(np.array([bits], f"<u{stored.itemsize}").view(stored), dtype)[0])


def _first_not_finite(block: Array, dtype: str) -> int:
    magnitude_bits = (1 << (8 * block.itemsize - 1)) - 1
    return int(np.argmax((block.view(f"<u{block.itemsize}") & magnitude_bits) >= _INFINITY[dtype]))


def _cut_off(path: Path, file_bytes: int, size_bytes: int) -> FileDamaged:
    return FileDamaged(
        f"the file {path.name} was cut off by somebody: it has {file_bytes} bytes, of {size_bytes}",
        field="path",
        value=str(path),
        limit=size_bytes,
        fix="keep other programs out of the data directory",
    )


def _of_size(layout: ModelLayout | None, size: int, error: type[InvalidInput]) -> ModelLayout:
    """The layout of a whole file of ``size`` bytes, whose header may have been cut off."""
    if layout is None or size < layout.total_bytes:
        whole = "" if layout is None else f" of {layout.total_bytes}"
        raise error(
            f"it is cut off after {size}{whole} bytes",
            field="body",
            value=size,
            limit=None if layout is None else layout.total_bytes,
            fix="send the whole file",
        )
    if size > layout.total_bytes:
        extra = size - layout.total_bytes
        raise error(f"{extra} bytes follow the last tensor", field="body", value=size, limit=layout.total_bytes)
    return layout
