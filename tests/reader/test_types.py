"""Field types, numbers, and arrays of fixed shape."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastrecord as fr
from tests.support.arrays import ACCESS, COMPLEX, FLOATS, NUMPY, arrays_of, same, write

# --- types ---


@pytest.mark.parametrize("name", [*NUMPY, "bfloat16"])
def test_a_scalar_type_knows_its_dtype_and_its_bytes(name: str) -> None:
    kind = fr.FieldType.of(name)
    size = 2 if name == "bfloat16" else np.dtype(name).itemsize
    assert (kind.name, kind.dtype, kind.shape, kind.nbytes) == (name, name, (), size)
    assert fr.array(name, (2, 3)).nbytes == 6 * size
    assert fr.array(name, (2, None)).nbytes is None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (np.float32, "float32"),
        (">i4", "int32"),
        (np.dtype("<u2"), "uint16"),
        (float, "float64"),
        ("B", "uint8"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
        ("bfloat16", "bfloat16"),
        (torch.bool, "bool"),
        (np.longlong, "int64"),
        (np.complex64, "complex64"),
    ],
)
def test_a_dtype_is_what_numpy_or_torch_call_one(given: Any, name: str) -> None:
    dims: Any = [np.int64(3)]
    assert fr.array(given, (3,)) == fr.array(name, dims)


@pytest.mark.parametrize("dtype", [object, str, "U5", "S3", "M8[s]", "m8[s]", [("a", "i4")], "f4,f4", np.void, "V3"])
def test_a_dtype_that_is_no_number_is_refused(dtype: Any) -> None:
    with pytest.raises(TypeError, match="where numbers are bool, int8"):
        fr.array(dtype, (3,))


def test_a_shape_is_a_sequence_of_dimensions() -> None:
    for shape in (3, "33", {3}):
        with pytest.raises(TypeError, match="shape is a sequence of integers"):
            fr.array("int8", shape)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="integer"):
        fr.array("int8", (1.5,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a dimension is not negative"):
        fr.array("int8", (3, -1))


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1,) * 33, "33 dimensions"), ((2**40, 2**40), "2\\^63 bytes"), ((None, 0), "a dimension of 0 beside one")],
)
def test_a_shape_that_no_file_can_have_is_refused(tmp_path: Path, shape: Any, message: str) -> None:
    with pytest.raises(fr.errors.SchemaError, match=f'field "x" is of .*{message}'):
        fr.Writer(tmp_path / "a.frec", {"x": fr.array("int8", shape)})
    assert list(tmp_path.iterdir()) == []


def test_a_type_reads_as_one_would_write_it() -> None:
    array = fr.array("float32", (None, 80), compression=fr.Compression("zstd", level=3))
    assert repr(array) == 'array("float32", (None, 80), compression=Compression("zstd", level=3))'
    assert str(array) == "array(float32, (None, 80))"
    assert repr(fr.list_("bool")) == "list_('bool')"
    assert str(fr.list_(fr.array("int8", (3,)))) == "list(array(int8, (3,)))"
    for kind in (array, fr.json(), fr.list_(fr.string()), fr.FieldType("complex64")):
        assert fr.FieldType.of(eval(repr(kind), vars(fr))) == kind
        assert pickle.loads(pickle.dumps(kind)) == copy.deepcopy(kind) == kind
        assert len({kind, copy.deepcopy(kind)}) == 1


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (fr.FieldType("image", compression=fr.Compression("lz4")), "images are compressed already"),
        (fr.FieldType("int64", compression=fr.Compression("lz4")), "which is not compressed"),
        (fr.array("int8", (64,), compression="zstd"), "which is not compressed"),
    ],
)
def test_compression_where_there_is_none_is_refused(tmp_path: Path, kind: fr.FieldType, message: str) -> None:
    with pytest.raises(fr.errors.SchemaError, match=f'field "x".*{message}'):
        fr.Writer(tmp_path / "a.frec", {"x": kind})


# --- scalars ---


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("name", NUMPY)
def test_scalars_come_back_alone_in_batches_and_as_columns(tmp_path: Path, name: str, access: str) -> None:
    values = np.random.default_rng(1).integers(0, 256, (1000, 16), np.uint8)
    column = (values[:, 0] % 2 == 1) if name == "bool" else values[:, : np.dtype(name).itemsize].copy().view(name)[:, 0]
    if name in FLOATS + COMPLEX:
        column = np.where(np.isfinite(column), column, column.dtype.type(1))
    path = tmp_path / "a.frec"
    write(path, {"x": fr.FieldType(name)}, *({"x": value} for value in column[:500]))
    with fr.Writer(path, None, "a") as writer:
        for value in column[500:].tolist():  # as Python numbers
            writer.append({"x": value})
    reader = fr.Reader(path, access)
    assert reader.column("x").dtype == name
    assert reader.column("x").tobytes() == column.tobytes()
    numbers = np.random.default_rng(2).integers(0, 1000, 300)
    batch = reader.read_batch(numbers)["x"]
    assert batch.dtype == name
    assert batch.tobytes() == column[numbers].tobytes()
    assert batch.flags.writeable
    found = reader[7]["x"]
    assert type(found) is type(column[7].item())
    assert found == column[7].item()


@pytest.mark.parametrize(("dtype", "powers"), [("float16", (-16, 0, 12)), ("bfloat16", (-130, -20, 0, 20, 120))])
def test_short_floats_are_rounded_as_numpy_and_torch_do(tmp_path: Path, dtype: str, powers: tuple[int, ...]) -> None:
    values = torch.cat([torch.randn(500) * 2.0**power for power in powers] + [torch.tensor([0.0, -0.0, 1.5])])
    reader = write(tmp_path / "a.frec", {"x": fr.FieldType(dtype)}, *({"x": value} for value in values.tolist()))
    wanted = values.to(getattr(torch, dtype))
    # numpy has no bfloat16: a column has its bits.
    assert reader.column("x").dtype == {"float16": np.float16, "bfloat16": np.uint16}[dtype]
    assert torch.equal(torch.from_numpy(reader.column("x").copy()).view(wanted.dtype), wanted)
    assert [reader[i]["x"] for i in range(100)] == wanted[:100].tolist()


@pytest.mark.parametrize(("kind", "fraction"), [(fr.FieldType("float16"), 10), (fr.FieldType("bfloat16"), 7)])
def test_a_number_beside_the_middle_of_two_is_rounded_to_the_nearer_one(
    tmp_path: Path, kind: fr.FieldType, fraction: int
) -> None:
    step, middle = 2.0**-fraction, 1 + 2.0 ** -(fraction + 1)
    aside = [2.0**-bits for bits in range(fraction + 2, 53)]
    values = [sign * (middle + way) for sign in (1, -1) for way in [*aside, *(-small for small in aside), 0.0]]
    wanted = [math.copysign(1 + step if abs(value) > middle else 1.0, value) for value in values]
    reader = write(tmp_path / "a.frec", {"x": kind}, *({"x": value} for value in values))
    assert [reader[i]["x"] for i in range(len(values))] == wanted


def test_nan_and_infinities_come_back(tmp_path: Path) -> None:
    for name in [*FLOATS, "bfloat16"]:
        reader = write(tmp_path / "a.frec", {"x": fr.FieldType(name)}, *({"x": x} for x in (np.nan, np.inf, -np.inf)))
        found = [reader[i]["x"] for i in range(3)]
        assert np.isnan(found[0])
        assert found[1:] == [np.inf, -np.inf]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("int8", 128, "128 does not fit int8"),
        ("uint8", -1, "-1 does not fit uint8"),
        ("uint64", -1, r"an integer of 0 to 2\^64 - 1 is wanted"),
        ("uint64", 2**64, r"an integer of 0 to 2\^64 - 1 is wanted"),
        ("int32", 2**70, "an integer for int32 is wanted"),
        ("int16", 1.0, "an integer for int16 is wanted, not float"),
        ("uint16", "1", "an integer for uint16 is wanted, not str"),
        ("int16", np.float32(1), "an integer for int16 is wanted, not float32"),
        ("int32", np.array([1, 2]), "an integer for int32 is wanted, not ndarray"),
        ("bool", 1, "a bool is wanted, not int"),
        ("bool", None, "a bool is wanted, not NoneType"),
        ("float16", 65520, "65520 does not fit float16"),
        ("float32", 1e39, r"1e\+39 does not fit float32"),
        ("bfloat16", 3.4e38, "does not fit bfloat16"),
        ("float32", "x", "a float is wanted, not str"),
        ("float32", 1j, "a float is wanted, not complex"),
        ("complex64", "1j", "a complex number is wanted, not str"),
        ("complex64", 1e39j, "does not fit complex64"),
    ],
)
def test_a_number_that_does_not_fit_is_refused_and_the_file_stays_good(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    path = tmp_path / "a.frec"
    with fr.Writer(path, {"a": fr.FieldType("int64"), "x": fr.FieldType(name)}) as writer:
        writer.append({"a": 1, "x": name == "bool"})
        with pytest.raises(fr.errors.SchemaError, match=rf"a\.frec: record 1, field x: .*{message}"):
            writer.append({"a": 2, "x": value})
        writer.append({"a": 3, "x": name == "bool"})
    assert fr.Reader(path).column("a").tolist() == [1, 3]


# --- arrays of a fixed shape ---


@pytest.mark.parametrize("access", ACCESS)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7), (4, 4, 4, 3), (0, 3), (0,), (1,) * 32])
@pytest.mark.parametrize("name", ["bool", "bfloat16", "complex128"])
def test_fixed_arrays_are_views_and_stacked_in_batches(
    tmp_path: Path, name: str, shape: tuple[int, ...], access: str
) -> None:
    kind = fr.array(name, shape)
    values = arrays_of(name, shape, 300)
    write(
        tmp_path / "a.frec", {"x": kind, "n": fr.FieldType("int64")}, *({"x": v, "n": i} for i, v in enumerate(values))
    )
    reader = fr.Reader(tmp_path / "a.frec", access)
    for number in (0, 7, 299):
        found = reader[number]["x"]
        assert same(found, values[number])
        assert not found.flags.writeable
    numbers = np.random.default_rng(1).integers(0, 300, 200)
    batch = reader.read_batch(numbers, verify=True)["x"]
    assert same(batch, values[numbers])
    assert batch.flags.writeable
    assert batch.flags.c_contiguous
    out = np.zeros((200, *shape), values.dtype)
    offsets = reader.read_batch_into(numbers, "x", out)
    assert same(out, values[numbers])
    assert offsets.tolist() == [i * (kind.nbytes or 0) for i in range(201)]
    assert reader.read_batch([])["x"].shape == (0, *shape)
    assert reader.lengths("x").tolist() == [kind.nbytes] * 300
    if 0 < (kind.nbytes or 0) <= 64:
        assert same(reader.column("x"), values)
    else:
        with pytest.raises(TypeError, match="only scalars and small arrays are columns"):
            reader.column("x")
    assert reader.verify()["ok"]


def test_a_large_array_is_a_view_of_the_mapping_at_a_multiple_of_64(tmp_path: Path) -> None:
    schema = {"a": fr.bytes_(), "x": fr.array("float64", (100,))}
    reader = write(tmp_path / "a.frec", schema, *({"a": b"abc", "x": np.full(100, i, float)} for i in range(9)))
    first = reader[0]["x"]
    for number in range(9):
        view = reader[number]["x"]
        assert (view.ctypes.data - first.ctypes.data) % 64 == 0
        assert view.flags.aligned
        assert np.shares_memory(view, reader[number]["x"])
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_arrays_are_taken_in_any_byte_order_and_layout(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    given = [
        base,
        base.astype(">f4"),
        np.asfortranarray(base),
        np.repeat(base, 2, axis=1)[:, ::2],
        base[::-1][::-1],
        np.ascontiguousarray(base.T).T,
        torch.from_numpy(base),
        torch.from_numpy(np.ascontiguousarray(base.T)).t(),
        torch.nn.Parameter(torch.from_numpy(base)),
        np.lib.stride_tricks.as_strided(base, base.shape, base.strides),
    ]
    schema = {"x": fr.array("float32", (4, 6))}
    reader = write(tmp_path / "a.frec", schema, *({"x": value} for value in given))
    for number in range(len(given)):
        assert same(reader[number]["x"], base)


def test_torch_tensors_of_every_dtype_are_taken(tmp_path: Path) -> None:
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.complex64):
        tensor = (torch.randn(7, 5) * 10).to(dtype)
        reader = write(
            tmp_path / "a.frec", {"x": fr.array(dtype, (7, 5))}, {"x": tensor}, {"x": tensor.t().contiguous().t()}
        )
        for number in range(2):
            assert torch.equal(torch.from_numpy(reader[number]["x"].copy()).view(dtype), tensor)
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    reader = write(tmp_path / "a.frec", {"x": fr.array("complex64", (3,))}, {"x": conjugate})
    assert reader[0]["x"].tolist() == conjugate.tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((3, 4)), "float32 values are wanted, not float64"),
        (np.zeros((3, 4), np.int32), "float32 values are wanted, not int32"),
        (np.zeros((4, 3), np.float32), r"an array of shape \(4, 3\), where the field is array\(float32, \(3, 4\)\)"),
        (np.zeros(12, np.float32), r"an array of shape \(12,\)"),
        (np.zeros((3, 4, 1), np.float32), r"an array of shape \(3, 4, 1\)"),
        (np.float32(3), r"an array of shape \(\)"),
        (np.full((3, 4), None), "not Python objects"),
        (np.zeros((3, 4), "f4,f4"), "not records of several fields"),
        (np.zeros((3, 4), "M8[s]"), r"not datetime64\[s\]"),
        (np.zeros((3, 4), "U3"), "not <U3"),
        (np.ma.masked_array(np.zeros((3, 4), np.float32), np.ones((3, 4), bool)), "not a masked one"),
        ([[0.0] * 4] * 3, "a numpy array or a torch tensor is wanted, not list"),
        (b"\0" * 48, "a numpy array or a torch tensor is wanted, not bytes"),
        (3.0, "a numpy array or a torch tensor is wanted, not float"),
        (None, "a numpy array or a torch tensor is wanted, not NoneType"),
        (torch.zeros(3, 4, dtype=torch.bfloat16), "float32 values are wanted, not bfloat16"),
        (torch.zeros(3, 4, device="meta"), "it is on the device 'meta'|it is on the device \"meta\""),
        (torch.zeros(3, 4).to_sparse(), "a dense tensor on the CPU"),
    ],
)
def test_an_array_that_does_not_fit_is_refused_and_the_file_stays_good(
    tmp_path: Path, value: Any, message: str
) -> None:
    good = np.ones((3, 4), np.float32)
    with fr.Writer(tmp_path / "a.frec", {"x": fr.array("float32", (3, 4)), "n": fr.FieldType("int64")}) as writer:
        writer.append({"x": good, "n": 0})
        with pytest.raises(fr.errors.SchemaError, match=rf"a\.frec: record 1, field x: .*({message})"):
            writer.append({"x": value, "n": 1})
        writer.append({"x": good, "n": 2})
    reader = fr.Reader(tmp_path / "a.frec")
    assert reader.column("n").tolist() == [0, 2]
    assert same(reader[1]["x"], good)


def test_a_buffer_that_does_not_fit_a_batch_of_arrays_is_refused(tmp_path: Path) -> None:
    schema = {"x": fr.array("float32", (3, 40))}
    reader = write(tmp_path / "a.frec", schema, *({"x": np.full((3, 40), i, np.float32)} for i in range(4)))
    small = np.zeros(479 * 4, np.uint8)
    with pytest.raises(ValueError, match="the batch needs 1920 bytes, the buffer has 1916: nothing was written"):
        reader.read_batch_into(range(4), "x", small)
    assert not small.any()
    shapes: list[tuple[int, ...]] = [(3, 3, 40), (4, 40, 3), (4, 120)]
    wrong: list[Any] = [np.zeros((4, 3, 40)), np.zeros((4, 120), np.int32)]
    for out in wrong + [np.zeros(shape, np.float32) for shape in shapes]:
        with pytest.raises(ValueError, match=r"an array of float32 of shape \(4, 3, 40\) is wanted"):
            reader.read_batch_into(range(4), "x", out)
    tensor = torch.zeros(4, 3, 40)
    reader.read_batch_into([3, 2, 1, 0], "x", tensor)
    assert tensor[:, 0, 0].tolist() == [3, 2, 1, 0]
    flat = bytearray(4 * 480)
    reader.read_batch_into(range(4), "x", flat)
    assert np.frombuffer(flat, np.float32)[::120].tolist() == [0, 1, 2, 3]


# --- extremes ---


def test_many_records_of_empty_arrays_are_written_and_read(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", {"x": fr.array("float32", (0, 3)), "s": fr.string()}) as writer:
        writer.extend({"x": np.zeros((100_000, 0, 3), np.float32), "s": [""] * 100_000})
    reader = fr.Reader(tmp_path / "a.frec")
    assert len(reader) == 100_000
    assert reader[99_999]["x"].shape == (0, 3)
    assert reader.read_batch(np.arange(0, 100_000, 1000))["x"].shape == (100, 0, 3)
    assert reader.verify()["ok"]


def test_field_names_may_be_very_long_and_of_any_script(tmp_path: Path) -> None:
    names = ["n" * 1024, "имя", "名前" * 100, "a\tb", "'\"\\"]
    value = np.arange(40, dtype=np.int16)
    reader = write(tmp_path / "a.frec", {name: fr.array("int16", (40,)) for name in names}, dict.fromkeys(names, value))
    assert list(reader.schema) == names
    for name in names:
        assert same(reader[0][name], value)
        assert same(reader.read_batch([0, 0])[name], np.stack([value, value]))
    with fr.Writer(tmp_path / "a.frec", mode="a") as writer, pytest.raises(fr.errors.SchemaError, match="field имя: "):
        writer.append(dict.fromkeys(names, value) | {"имя": value[:3]})


def test_a_stack_that_no_memory_holds_is_an_error(tmp_path: Path) -> None:
    schema = {"x": fr.array("uint8", (1 << 24,)), "y": fr.array("uint8", (None, None))}
    wide, high = np.zeros((1, 1 << 20), np.uint8), np.zeros((1 << 20, 1), np.uint8)
    x = np.zeros(1 << 24, np.uint8)
    reader = write(tmp_path / "a.frec", schema, {"x": x, "y": wide}, {"x": x, "y": high})
    arrays = reader.read_batch([0, 1] * 200, ["y"])["y"]
    with pytest.raises(MemoryError):
        arrays.padded()
    # Needs more than 47 bits of addresses.
    with pytest.raises(MemoryError, match="no memory for a batch of"):
        reader.read_batch(np.zeros(1 << 23, np.int64), ["x"])
