"""Types of the compiled module. Private: import these names from `fastrecord`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, SupportsIndex, TypeAlias, final, overload

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Buffer

from fastrecord.dataset.decoding import Decoding
from fastrecord.errors import (
    CorruptFileError,
    DecodeError,
    FastRecordError,
    LockedError,
    NoCommitError,
    SchemaError,
    UnsupportedVersionError,
)
from fastrecord.recode import Recode
from fastrecord.schema import Schema

__all__ = [
    "FORMAT_VERSION",
    "Arrays",
    "Batch",
    "BlockOrder",
    "Contents",
    "Copier",
    "CorruptFileError",
    "DecodeError",
    "FastRecordError",
    "Load",
    "LoadPlan",
    "Loading",
    "LockedError",
    "Mixing",
    "NewFieldWriter",
    "NoCommitError",
    "Payloads",
    "Reader",
    "Recipe",
    "Salvage",
    "SchemaError",
    "UnsupportedVersionError",
    "Writer",
    "__version__",
    "add_crop_index",
    "all_limits",
    "allocate",
    "check_field",
    "codecs",
    "commit_parts",
    "count_chunks",
    "crc32c",
    "crop_image",
    "damaged_payloads",
    "decode_image",
    "decode_records",
    "default_threads",
    "deliver_events",
    "draw_balanced",
    "draw_crops",
    "draw_mixed",
    "draw_weighted",
    "example_names",
    "field_parts",
    "find_tfrecords",
    "foreign_kind",
    "image_size",
    "instructions",
    "libraries",
    "open_shard",
    "open_snapshot",
    "pack_jpeg",
    "payload_fields",
    "payload_parts",
    "permute",
    "punch_hole",
    "read_examples",
    "resident_bytes",
    "set_place",
    "side_kinds",
    "stored_bytes",
    "supply_of",
    "uniform",
    "value_bytes",
]

__version__: str
FORMAT_VERSION: int

def deliver_events(*, last: bool = False) -> None: ...

_Verify: TypeAlias = Literal["once"] | bool
_Indices: TypeAlias = Sequence[SupportsIndex] | NDArray[np.integer[Any]] | torch.Tensor

def default_threads() -> int: ...
def permute(n: int, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]: ...
def supply_of(reader: Reader) -> tuple[Any, bool]: ...
def uniform(seed: int, epoch: int, stream: int, positions: NDArray[np.int64], draws: int) -> NDArray[np.float64]: ...
def draw_balanced(
    ends: NDArray[np.uint64], seed: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def draw_mixed(
    ends: NDArray[np.uint64],
    shares: NDArray[np.uint64],
    seed: int,
    epoch: int,
    positions: NDArray[np.int64],
) -> NDArray[np.int64]: ...
def draw_weighted(
    cumulative: NDArray[np.float64], seed: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def crc32c(data: Buffer, start: int = 0) -> int: ...
def find_tfrecords(
    data: Buffer, *, check: bool = True
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int], int, int | None, bool]: ...
def example_names(data: Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[list[str], list[int]]: ...
def read_examples(
    data: Buffer, starts: NDArray[np.int64], ends: NDArray[np.int64], names: list[str]
) -> tuple[
    list[
        tuple[
            NDArray[np.uint8],
            NDArray[np.int64],
            tuple[NDArray[np.int64], NDArray[np.int64]],
            NDArray[np.float32],
            NDArray[np.int64],
        ]
    ],
    list[int],
]: ...
def image_size(data: Buffer) -> tuple[int, int] | None: ...
def decode_image(
    data: Buffer,
    *,
    truncated: str = "reject",
    sixteen_bit: str = "reject",
    exif_orientation: bool = False,
    max_pixels: int | None = None,
) -> NDArray[np.uint8]: ...
def decode_records(
    reader: Reader,
    records: _Indices,
    field: str,
    *,
    verify: _Verify = ...,
    decoding: Decoding | None = None,
    threads: int | None = None,
) -> list[NDArray[np.uint8]]: ...
def foreign_kind(data: Buffer) -> str | None: ...
def pack_jpeg(data: Buffer) -> bytes | None: ...
def crop_image(
    data: Buffer,
    part: tuple[float, float, float, float],
    bounds: tuple[int, int, int, int],
    size: tuple[int, int],
) -> NDArray[np.uint8]: ...
def draw_crops(
    image: tuple[int, int], n: int, seed: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> NDArray[np.int64]: ...

@final
class Recipe:
    def __new__(cls, operations: str, stream: str = "", view: int = 0) -> Self: ...
    def draw(self, seed: int, epoch: int, position: int, size: tuple[int, int]) -> str: ...
    @staticmethod
    def apply(image: NDArray[np.uint8], drawn: str) -> NDArray[np.uint8]: ...
    def convert(self, image: NDArray[np.uint8], drawn: str) -> NDArray[np.uint8]: ...

@final
class Mixing:
    def __new__(cls, operations: str) -> Self: ...
    def draw(self, seed: int, epoch: int, position: int, size: tuple[int, int]) -> str: ...
    @staticmethod
    def apply(
        blend: str,
        dtype: str,
        planar: bool,
        size: tuple[int, int],
        first: NDArray[np.uint8],
        second: NDArray[np.uint8],
    ) -> None: ...

@final
class Contents:
    def __new__(cls, schema: Mapping[str, Any], classes: Sequence[str] | None) -> Self: ...

def open_shard(
    path: str | PathLike[str],
    access: str,
    verify: _Verify,
    about: tuple[str, int, int, int, int],
    supply: Any = None,
    contents: Contents | None = None,
) -> Reader: ...
def commit_parts(
    path: str | PathLike[str], first: bytes, footer: bytes, offset: int
) -> tuple[str, int, int, tuple[int, int], tuple[int, int]]: ...
def field_parts(reader: Reader, field: str) -> list[tuple[int, int]]: ...
def check_field(reader: Reader, field: str) -> None: ...
def payload_fields(reader: Reader) -> list[str]: ...
def allocate(descriptor: int, offset: int, length: int) -> None: ...
def punch_hole(descriptor: int, offset: int, length: int) -> None: ...
def payload_parts(reader: Reader, field: str, records: _Indices) -> NDArray[np.int64]: ...
def damaged_payloads(reader: Reader, field: str, records: _Indices) -> NDArray[np.int64]: ...
def open_snapshot(
    path: str | PathLike[str],
    access: str,
    threads: int | None,
    file_id: str,
    commit: int,
    footer: int,
    footer_crc: int | None,
    verify: _Verify,
) -> Reader: ...

@final
class BlockOrder:
    def __new__(cls, n: int, block_records: int, window_blocks: int, seed: int, epoch: int) -> Self: ...
    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]: ...
    def window(self, position: int) -> tuple[int, int]: ...

@final
class Writer:
    def __new__(
        cls,
        path: str | PathLike[str],
        schema: Schema | Mapping[str, Any] | None = None,
        mode: str = "x",
        metadata: Mapping[str, Any] | None = None,
        *,
        complete: bool | None = None,
        commit_bytes: int = 1 << 30,
    ) -> Self: ...
    @classmethod
    def from_sample(
        cls, path: str | PathLike[str], sample: Mapping[str, Any], mode: str = "x", **options: Any
    ) -> Self: ...
    def append(self, record: Mapping[str, Any]) -> int: ...
    def extend(self, columns: Mapping[str, Sequence[Any] | NDArray[Any] | torch.Tensor]) -> int: ...
    def append_files(
        self,
        field: str,
        paths: Sequence[str | PathLike[str]],
        values: Mapping[str, Sequence[Any] | NDArray[Any] | torch.Tensor],
        *,
        on_error: str = "raise",
        recode: Recode | None = None,
    ) -> list[tuple[int, Exception]]: ...
    def append_images(
        self,
        field: str,
        images: Sequence[Buffer] | NDArray[np.uint8],
        values: Mapping[str, Sequence[Any] | NDArray[Any] | torch.Tensor],
        *,
        on_error: str = "raise",
        recode: Recode | None = None,
    ) -> list[tuple[int, Exception]]: ...
    def add_field(self, name: str, type: Any) -> NewFieldWriter: ...  # noqa: A002
    def drop_field(self, name: str) -> None: ...
    def commit(self) -> int: ...
    def _finish(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    path: Final[str]
    schema: Final[Schema]
    bytes_written: Final[int]
    recoded: Final[dict[str, int]]
    foreign: Final[dict[str, int]]
    def compression(self) -> dict[str, dict[str, Any]]: ...
    committed: Final[int]
    @property
    def metadata(self) -> dict[str, Any]: ...
    @metadata.setter
    def metadata(self, value: Mapping[str, Any]) -> None: ...
    @property
    def complete(self) -> bool: ...
    @complete.setter
    def complete(self, value: bool) -> None: ...

@final
class NewFieldWriter:
    def append(self, value: Any) -> int: ...
    def extend(self, values: Iterable[Any]) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    name: Final[str]

@final
class Copier:
    def __new__(
        cls,
        path: str | PathLike[str],
        like: Reader,
        records: int,
        *,
        overwrite: bool = False,
        verify: bool = False,
        packed: bool | None = None,
    ) -> Self: ...
    def copy_run(
        self,
        reader: Reader,
        first: int,
        count: int,
        *,
        renumber: tuple[str, NDArray[np.int64]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None: ...
    def copy_rows(
        self,
        reader: Reader,
        rows: NDArray[np.int64],
        *,
        renumber: tuple[str, NDArray[np.int64]] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None: ...
    def settle(self) -> None: ...
    def commit(self, metadata: Mapping[str, Any], *, complete: bool = True) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    path: Final[str]
    bytes_written: Final[int]
    converted: Final[tuple[int, int]]

@final
class Salvage:
    def __new__(cls, path: str | PathLike[str], *, progress: Callable[[int, int], object] | None = None) -> Self: ...
    def reader(self) -> Reader: ...
    def saved(self, first: int, end: int) -> NDArray[np.int64]: ...
    saved_records: Final[int]
    losses: Final[list[tuple[int, int, str | None, str]]]
    notes: Final[list[str]]
    damaged: Final[bool]
    records: Final[int]
    lost_unknown: Final[bool]

def stored_bytes(reader: Reader, first: int, count: int) -> NDArray[np.int64]: ...
def add_crop_index(
    path: str | PathLike[str],
    field: str,
    *,
    rebuild: bool = False,
    commit_records: int = 1 << 20,
    progress: Callable[[int], object] | None = None,
) -> dict[str, int]: ...
def all_limits() -> dict[str, int]: ...
def libraries() -> dict[str, str]: ...
def instructions() -> dict[str, str]: ...
def resident_bytes(path: str | PathLike[str]) -> tuple[int, int]: ...
def count_chunks(reader: Reader) -> int: ...
def set_place(reader: Reader, place: str | PathLike[str]) -> None: ...
def side_kinds(reader: Reader, field: str, records: Sequence[int]) -> NDArray[np.int64]: ...
def codecs(reader: Reader, field: str, records: Sequence[int]) -> NDArray[np.int64]: ...
def value_bytes(reader: Reader, field: str) -> tuple[int, int]: ...

@final
class Reader:
    def __new__(
        cls, path: str | PathLike[str], access: str = "mmap", *, threads: int | None = None, verify: _Verify = "once"
    ) -> Self: ...
    def __len__(self) -> int: ...
    def __getitem__(self, record: SupportsIndex, /) -> dict[str, Any]: ...
    def __iter__(self) -> Iterator[dict[str, Any]]: ...
    def get(self, record: SupportsIndex, field: str, *, verify: _Verify | None = None, copy: bool = False) -> Any: ...
    def column(self, name: str, *, copy: bool = False) -> NDArray[Any]: ...
    def compression(self) -> dict[str, dict[str, Any]]: ...
    def lengths(self, field: str, indices: _Indices | None = None) -> NDArray[np.int64]: ...
    def checksums(self, field: str, indices: _Indices | None = None) -> NDArray[np.uint32]: ...
    def read_batch(
        self,
        indices: _Indices,
        fields: Sequence[str] | None = None,
        *,
        verify: _Verify | None = None,
        copy: bool = False,
    ) -> Batch: ...
    def read_batch_into(
        self,
        indices: _Indices,
        field: str,
        out: Buffer | NDArray[Any] | torch.Tensor,
        *,
        verify: _Verify | None = None,
    ) -> NDArray[np.int64]: ...
    def prefetch(self, indices: _Indices, field: str) -> int: ...
    def refresh(self) -> bool: ...
    def verify(self, *, progress: Callable[[int, int], object] | None = None, deep: bool = False) -> dict[str, Any]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __reduce__(self) -> tuple[Any, ...]: ...
    def _repr_html_(self) -> str | None: ...
    path: Final[str]
    access: Final[str]
    closed: Final[bool]
    schema: Final[Schema]
    metadata: Final[dict[str, Any]]
    complete: Final[bool]
    file_id: Final[str]
    footer_crc: Final[int]
    covers_content: Final[bool]
    commit: Final[int]
    version: Final[int]
    nbytes: Final[int]
    tail_bytes: Final[int]

@final
class Batch:
    def __len__(self) -> int: ...
    def __getitem__(self, field: str, /) -> Any: ...
    def __contains__(self, field: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def keys(self) -> list[str]: ...

@final
class Payloads:
    """The payloads of one field of a batch: N read-only memoryviews, created on access."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, position: SupportsIndex, /) -> memoryview: ...
    @overload
    def __getitem__(self, position: slice, /) -> list[memoryview]: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    def tolist(self) -> list[memoryview]: ...
    lengths: Final[NDArray[np.int64]]

@final
class Arrays:
    """The arrays of varying shape of one field of a batch: N read-only arrays, made on access."""

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, position: SupportsIndex, /) -> NDArray[Any]: ...
    @overload
    def __getitem__(self, position: slice, /) -> list[NDArray[Any]]: ...
    def __iter__(self) -> Iterator[NDArray[Any]]: ...
    def tolist(self) -> list[NDArray[Any]]: ...
    def padded(self, value: complex | None = None) -> NDArray[Any]: ...
    def packed(self) -> tuple[NDArray[Any], NDArray[np.int64]]: ...
    shapes: Final[NDArray[np.int64]]

@final
class LoadPlan:
    def __new__(
        cls,
        files: Sequence[tuple[Reader, Sequence[str]]],
        outputs: Sequence[str | None],
        *,
        decoding: Decoding | None = None,
        mixing: Mixing | None = None,
        verify: _Verify = ...,
        spares: int = 4,
    ) -> Self: ...
    def start(self, threads: int) -> Loading: ...
    def counters(self) -> list[int]: ...

@final
class Loading:
    def submit(
        self,
        seed: int,
        epoch: int,
        rows: NDArray[np.int64],
        positions: NDArray[np.int64] | None = None,
        memory: Sequence[Buffer | NDArray[Any]] | None = None,
        ahead: NDArray[np.int64] | None = None,
    ) -> Load: ...
    def close(self) -> None: ...
    threads: Final[int]

@final
class Load:
    def wait(self) -> tuple[list[Buffer], list[tuple[int, Exception]]]: ...
    def make_of(self, slot: int, images: Sequence[tuple[int, bytes, str | None]]) -> list[NDArray[np.uint8]]: ...
    def views(self) -> list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]: ...
    def is_ready(self) -> bool: ...
