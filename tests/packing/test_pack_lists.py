"""Packing the files of a CSV list."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import fastrecord as fr
from tests.conftest import encode
from tests.support.commands import failed, good
from tests.support.packing import keys, metadata, pack_with


@pytest.mark.parametrize(
    ("text", "labels", "classes"),
    [
        ("bee/1.jpg,7\nant/0.jpg,-1\n", [7, -1], None),
        ("path,label\nbee/1.jpg,7\nant/0.jpg,3\n", [7, 3], None),
        ("bee/1.jpg,wasp\nant/0.jpg,ant\n", [1, 0], ["ant", "wasp"]),
        ("path,class\nbee/1.jpg,10\nant/0.jpg,9\n", [0, 1], ["10", "9"]),
        (",class,path\nx,wasp,bee/1.jpg\ny,ant,ant/0.jpg\n", [1, 0], ["ant", "wasp"]),
        ("bee/1.jpg\n\nant/0.jpg\n", None, None),
        ("\ufeffpath\r\nbee/1.jpg\r\n./ant/../ant/0.jpg\r\n", None, None),
        ('"bee/1.jpg","a, b"\nant/0.jpg,"c ""d"""\n', [0, 1], ["a, b", 'c "d"']),
    ],
)
def test_a_list_gives_files_labels_and_order(
    small: Path, tmp_path: Path, text: str, labels: list[int] | None, classes: list[str] | None
) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8", newline="")
    pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv")
    assert keys(tmp_path / "out.frec") == ["bee/1.jpg", "ant/0.jpg"]
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert list(reader.schema) == (["image", "key"] if labels is None else ["image", "label", "key"])
        assert labels is None or reader.column("label").tolist() == labels
    assert metadata(tmp_path / "out.frec").get("classes") == classes


def test_an_absolute_path_in_a_list_is_made_relative(small: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(f"{small / 'bee' / '1.jpg'},1\n", encoding="utf-8")
    pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv")
    assert keys(tmp_path / "out.frec") == ["bee/1.jpg"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the list is empty"),
        ("path,label\n", "the list is empty"),
        ("a.jpg,1\nb.jpg\n", r"line 2: 1 column where 2 should be"),
        ("a.jpg\nb.jpg,1\n", r"line 2: 2 columns where 1 should be"),
        ("a.jpg,1,2\n", r"line 1: 3 columns: write path"),
        ("a.jpg,1\nb.jpg,x\n", r"line 2: the label 'x' is not a whole number: begin the list with the row"),
        ("a.jpg,x\nb.jpg,1\n", r"line 2: the label '1' is a number, but the first one is a name"),
        ("path,label\na.jpg,x\n", r"line 2: the label 'x' is not a whole number \[FR704\]$"),
        ("a.jpg,1\nb.jpg,\n", r"line 2: the label is empty"),
        ("path,label\na.jpg,9223372036854775808\n", r"line 2: the label 9223372036854775808 does not fit"),
        ("path,label,class\na.jpg,1,x\n", r"line 1: the header has the columns"),
        ("path,path\n", r"line 1: the header names the column 'path' twice"),
        (" ,1\n", r"line 1: the path is empty"),
        ("a.jpg\n../b.jpg\n", r"line 2: '../b\.jpg' is not in"),
        ("/etc/passwd\n", r"line 1: '/etc/passwd' is not in"),
        ("a.jpg,1\n./a.jpg,2\n", r"line 2: 'a\.jpg' is already in line 1"),
        ('a.jpg,1\n"b.jpg,2\n', r"line 2: not valid CSV"),
    ],
)
def test_a_wrong_list_is_refused_with_the_line(small: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text, encoding="utf-8")
    with pytest.raises(fr.FastRecordError, match=rf"list\.csv[:,] .*{message}|list\.csv: {message}"):
        pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv")
    assert not (tmp_path / "out.frec").exists()


def test_a_list_that_is_not_utf8_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_bytes(b"bee/\xff.jpg,1\n")
    with pytest.raises(fr.FastRecordError, match=r"list\.csv: the list is not valid UTF-8"):
        pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv")


@pytest.mark.parametrize(
    ("name", "reason"), [("gone.jpg", "No such file"), ("bee", "[Dd]irectory"), ("pipe", "not a reg")]
)
def test_a_listed_file_that_cannot_be_read_is_named_with_its_line_and_not_called_a_bad_image(
    small: Path, tmp_path: Path, name: str, reason: str
) -> None:
    os.mkfifo(small / "pipe")
    (tmp_path / "list.csv").write_text(f"bee/1.jpg\n{name}\n", encoding="utf-8")
    with pytest.raises(fr.FastRecordError, match=rf"list\.csv, line 2: .*small/{name}: .*{reason}") as caught:
        pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv")
    assert "not an image" not in str(caught.value)
    assert "`--bad-files skip` [FR" in str(caught.value)
    summary = pack_with(small, tmp_path / "out.frec", list=tmp_path / "list.csv", bad_files="skip")
    ((key, why),) = summary.skipped
    assert key == name
    assert "not an image" not in why


def test_label_numbers_of_a_list_must_have_a_class_in_the_file_that_names_them(small: Path, tmp_path: Path) -> None:
    pack_with(small, tmp_path / "train.frec")
    (tmp_path / "list.csv").write_text("bee/1.jpg,1\nant/0.jpg,2\n", encoding="utf-8")
    options: dict[str, Any] = {"list": tmp_path / "list.csv", "classes_from": tmp_path / "train.frec"}
    with pytest.raises(fr.errors.SchemaError, match=r"list\.csv, line 2: .*no class has the label 2"):
        pack_with(small, tmp_path / "out.frec", **options)
    (tmp_path / "list.csv").write_text("bee/1.jpg\n", encoding="utf-8")
    with pytest.raises(fr.errors.SchemaError, match=r"small: has no labels"):
        pack_with(small, tmp_path / "out.frec", **options)


def test_a_path_of_a_list_goes_up_as_the_system_does(tmp_path: Path) -> None:
    src = tmp_path / "src"
    for name in ("a.jpg", "deep/a.jpg", "deep/er/b.jpg"):
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_bytes(encode(len(name)))
    (src / "link").symlink_to(Path("deep", "er"))
    (src / "out").symlink_to(tmp_path)
    (tmp_path / "list.csv").write_text("path\nlink/../a.jpg\ndeep/../a.jpg\ndeep/./er/b.jpg\n")
    pack_with(src, tmp_path / "a.frec", list=tmp_path / "list.csv")
    with fr.Reader(tmp_path / "a.frec") as reader:
        assert reader.read_batch(range(3), ["key"])["key"] == ["deep/a.jpg", "a.jpg", "deep/er/b.jpg"]
        assert bytes(reader[0]["image"]) == (src / "deep/a.jpg").read_bytes()
    for path in ("out/../a.jpg", "../a.jpg", f"{src}/out/../x.jpg"):
        (tmp_path / "list.csv").write_text(f"path\n{path}\n")
        with pytest.raises(fr.FastRecordError, match=r"line 2: .* is not in .*\[FR704\]"):
            pack_with(src, tmp_path / "b.frec", list=tmp_path / "list.csv")


COLUMNS = """path,class,score,tags,boxes,caption,blind
bee/1.jpg,wasp,0.5,"[1, 2]","[[1, 2, 3, 4]]",a wasp,true
ant/0.jpg,ant,2,[],[],,false
bee/0.jpg,bee,-1e3,[7],"[[5, 6, 7, 8], [9, 9, 9, 9]]","a ""bee"", two",false
"""


def test_the_other_columns_of_a_list_are_fields(small: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(COLUMNS)
    command = ["pack", small, "--set", f"list={tmp_path}/list.csv", "--type", "boxes=array(float32, (None, 4))"]
    good(*command, tmp_path / "out.frec")
    assert "complete already" in good(*command, tmp_path / "out.frec", "--resume")
    with fr.Reader(tmp_path / "out.frec") as reader:
        assert {name: str(kind) for name, kind in reader.schema.items()} == {
            "image": "image",
            "label": "int64",
            "score": "float64",
            "tags": "list(int64)",
            "boxes": "array(float32, (None, 4))",
            "caption": "string",
            "blind": "bool",
            "key": "string",
        }
        assert reader.metadata["classes"] == ["ant", "bee", "wasp"]
        assert reader.column("label").tolist() == [2, 0, 1]
        assert reader.column("score").tolist() == [0.5, 2, -1000]
        assert [list(reader[i]["tags"]) for i in range(3)] == [[1, 2], [], [7]]
        assert [reader[i]["boxes"].shape for i in range(3)] == [(1, 4), (0, 4), (2, 4)]
        assert [reader[i]["caption"] for i in range(3)] == ["a wasp", "", 'a "bee", two']
        assert reader.column("blind").tolist() == [True, False, False]
        assert bytes(reader[1]["image"]) == (small / "ant/0.jpg").read_bytes()
    good("pack", small, "--set", f"list={tmp_path}/list.csv", "--map", "image=image,rank=score", tmp_path / "b.frec")
    with fr.Reader(tmp_path / "b.frec") as reader:
        assert list(reader.schema) == ["image", "rank"]
    good(*command, tmp_path / "s.frec", "--shards", 2)


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["00501", "10001", "1"], "string", ["00501", "10001", "1"]),
        (["10001", "1", "-007"], "string", ["10001", "1", "-007"]),
        (["0", "10", "-1"], "int64", [0, 10, -1]),
        (["0", "0.5", "-0.5"], "float64", [0, 0.5, -0.5]),
        (["1e400", "-1e400", "1e999"], "string", ["1e400", "-1e400", "1e999"]),
    ],
)
def test_a_column_whose_numbers_would_not_keep_its_cells_is_text(
    small: Path, tmp_path: Path, cells: list[str], kind: str, values: list[Any]
) -> None:
    names = ("bee/1.jpg", "ant/0.jpg", "bee/0.jpg")
    rows = "".join(f"{name},{cell}\n" for name, cell in zip(names, cells, strict=True))
    (tmp_path / "list.csv").write_text(f"path,code\n{rows}")
    good("pack", small, "--set", f"list={tmp_path}/list.csv", tmp_path / "a.frec")
    with fr.Reader(tmp_path / "a.frec") as reader:
        assert str(reader.schema["code"]) == kind
        assert [record["code"] for record in reader] == values


def test_a_number_too_large_for_a_float_is_named_with_its_line(small: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path,far\nbee/1.jpg,0.5\nant/0.jpg,1e400\nbee/0.jpg,2\n")
    told = failed("pack", small, "--set", f"list={tmp_path}/list.csv", tmp_path / "a.frec")
    assert "line 3: " in told
    assert "field far: a float is wanted, not str '1e400'" in told


def test_cells_that_do_not_fit_are_named_with_their_line(small: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(
        "path,age\nbee/1.jpg,3\nant/0.jpg,old\nbee/0.jpg,\nant/1.jpg,4\nant/none.jpg,5\n"
    )
    command = ["pack", small, "--set", f"list={tmp_path}/list.csv"]
    told = failed(*command, tmp_path / "a.frec")
    assert (
        f"{tmp_path}/list.csv, line 3: {small}/ant/0.jpg: field age: an integer of 64 bits is wanted, not str 'old'"
        in told
    )
    shown = good(*command, tmp_path / "b.frec", "--bad-files", "skip")
    assert "bee/0.jpg: line 4, column 'age': the cell is empty" in shown
    assert "cannot be read: No such file" in shown
    good(*command, tmp_path / "c.frec", "--bad-files", "skip", "--fill", "age=-1")
    with fr.Reader(tmp_path / "c.frec") as reader:
        assert reader.column("age").tolist() == [3, -1, 4]
    good(*command, tmp_path / "d.frec", "--bad-files", "skip", "--type", "age=string")
    with fr.Reader(tmp_path / "d.frec") as reader:
        assert [record["age"] for record in reader] == ["3", "old", "", "4"]
    assert "no field to store is called 'a'" in failed("pack", small, tmp_path / "e.frec", "--type", "a=int32")
    (tmp_path / "list.csv").write_text("path,image\nbee/1.jpg,3\n")
    assert "rename it" in failed(*command, tmp_path / "e.frec")
