"""Extracting: restores the bytes and writes nothing elsewhere."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

import fastrecord as fr
from fastrecord.files.extraction import extract
from tests.conftest import encode
from tests.support.commands import failed, flip, good


def keyed(path: Path, keys: list[str]) -> Path:
    schema = fr.Schema({"image": fr.image(), "key": fr.string()})
    with fr.Writer(path, schema) as writer:
        for i, key in enumerate(keys):
            writer.append({"image": encode(i), "key": key})
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_extract_gives_back_the_folder_that_was_packed(image_folder: Path, packed: Path, tmp_path: Path) -> None:
    text = good("extract", packed, tmp_path / "out")
    assert files_below(tmp_path / "out") == files_below(image_folder)
    assert text.startswith(f"{tmp_path / 'out'}: 12 records, ")
    summary = json.loads(good("extract", packed, "-o", tmp_path / "again", "--json"))
    size = sum(len(data) for data in files_below(image_folder).values())
    assert summary == {"records": 12, "bytes": size, "folder": str(tmp_path / "again"), "left_out": []}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--records", "0,5, 10-11,5"], ["cat/0.jpg", "dog/0.jpg", "owl/2.jpg", "owl/3.jpg"]),
        (["--class", "dog"], ["dog/0.jpg", "dog/1.jpg", "dog/2.png"]),
        (["--class", "dog", "--class", "cat", "--records", "4-5"], ["cat/4.jpg", "dog/0.jpg"]),
        (["--records", "7,0", "--numbered"], ["00.jpg", "07.png"]),
    ],
)
def test_extract_writes_the_records_asked_for(
    packed: Path, tmp_path: Path, options: list[str], names: list[str]
) -> None:
    good("extract", packed, tmp_path / "out", *options)
    assert sorted(files_below(tmp_path / "out")) == names


def test_extract_numbers_files_that_have_no_keys(tmp_path: Path) -> None:
    kinds = {
        "JPEG": ".jpg",
        "PNG": ".png",
        "GIF": ".gif",
        "BMP": ".bmp",
        "WEBP": ".webp",
        "TIFF": ".tif",
        "PPM": ".ppm",
    }
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"image": fr.bytes_()})) as writer:
        for kind in kinds:
            writer.append({"image": encode(1, kind=kind)})
        writer.append({"image": b"what is this"})
    good("extract", tmp_path / "a.frec", tmp_path / "out")
    expected = {f"{i}{ending}": encode(1, kind=kind) for i, (kind, ending) in enumerate(kinds.items())}
    assert files_below(tmp_path / "out") == expected | {"7.bin": b"what is this"}


def test_extract_replaces_existing_files_only_on_request(image_folder: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "1.jpg").write_text("mine", encoding="utf-8")
    message = failed("extract", packed, tmp_path)
    assert message.startswith(f"error: {tmp_path / 'dog/1.jpg'}: exists already: `--overwrite` replaces it")
    assert (tmp_path / "dog" / "1.jpg").read_text(encoding="utf-8") == "mine"
    good("extract", packed, tmp_path, "--overwrite")
    assert files_below(tmp_path) == files_below(image_folder)


def test_extract_never_writes_through_a_link(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.frec", ["dir/x.jpg", "file.jpg"])
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file.jpg").write_text("mine", encoding="utf-8")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "dir").symlink_to(outside)
    for options in ([], ["--overwrite"]):
        assert failed("extract", path, folder, *options).startswith(
            f"error: {folder / 'dir'}: is a link, or not a folder"
        )
    (folder / "dir").unlink()
    (folder / "file.jpg").symlink_to(outside / "file.jpg")
    assert "exists already" in failed("extract", path, folder)
    good("extract", path, folder, "--overwrite")
    assert files_below(outside) == {"file.jpg": b"mine"}
    assert files_below(folder) == {"dir/x.jpg": encode(0), "file.jpg": encode(1)}
    assert not (folder / "file.jpg").is_symlink()


def test_extract_refuses_two_records_of_one_key(tmp_path: Path) -> None:
    path = keyed(tmp_path / "a.frec", ["a.jpg", "b.jpg", "a.jpg"])
    assert "records 0 and 2 both have the key 'a.jpg'" in failed("extract", path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_extract_names_a_damaged_record_and_leaves_no_part_of_it(packed: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.frec"
    flip(packed, path, record=6)
    message = failed("extract", path, tmp_path / "out", "--records", "6")
    assert message.startswith(f"error: {path}: record 6, field image: stored CRC")
    assert not (tmp_path / "out").exists() or files_below(tmp_path / "out") == {}


def test_an_extraction_that_stops_says_what_it_has_written(packed: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "bad.frec", tmp_path / "out"
    flip(packed, path, record=6)
    assert failed("extract", path, out, "--records", "6-8").endswith(f"\n{out}: nothing is written\n")
    path = keyed(tmp_path / "long.frec", [f"{i}.jpg" for i in range(70)])
    flip(path, path, record=66)
    left = f"{out}: 66 of 70 records are written, each one whole: `--overwrite` writes all of them again\n"
    assert failed("extract", path, out).endswith(f"\n{left}")
    assert len(files_below(out)) == 66


@pytest.mark.parametrize("signalled", [False, True])
def test_ctrl_c_ends_an_extraction_between_two_records_and_says_what_is_written(
    signalled: bool, tmp_path: Path
) -> None:
    path = keyed(tmp_path / "a.frec", [f"{i % 7}/{i}.jpg" for i in range(150)])

    def interrupt(done: int, total: int) -> None:
        assert (done, total) == (64, 150)
        if not signalled:
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="out: 64 of 150 records are written, each one whole"):
        extract(path, tmp_path / "out", progress=interrupt)
    assert files_below(tmp_path / "out") == {f"{i % 7}/{i}.jpg": encode(i) for i in range(64)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--records", "12"], "record 12 is out of range: the file has 12 records"),
        (["--records", "0-99999999999999"], "record 12 is out of range"),
        (["--class", "cot"], "no class 'cot' among its 3; similar ones are 'cat' [FR421]"),
        (["--class", "nope"], "no class 'nope' among its 3; they are 'cat', 'dog', 'owl' [FR421]"),
        (["--field", "label"], "no field 'label' of type image, bytes, string, json or array"),
    ],
)
def test_extract_names_what_the_file_does_not_have(
    packed: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    text = failed("extract", packed, tmp_path / "out", *options)
    assert text.startswith(f"error: {packed}: ")
    assert message in text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("records", ["", "5-3", "-1", "1,,2"])
def test_extract_refuses_malformed_record_numbers(packed: Path, tmp_path: Path, records: str) -> None:
    assert "write them like 0,5,10-20" in failed("extract", packed, tmp_path / "out", f"--records={records}", status=2)


def test_extract_asks_for_the_field_if_there_are_several(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", fr.Schema({"left": fr.image(), "right": fr.image()})) as writer:
        writer.append({"left": encode(1), "right": encode(2)})
    assert "say which field to extract (`--field`): left, right" in failed(
        "extract", tmp_path / "a.frec", tmp_path / "o"
    )
    good("extract", tmp_path / "a.frec", tmp_path / "out", "--field", "right")
    assert files_below(tmp_path / "out") == {"0.jpg": encode(2)}


def test_files_of_a_writers_loop_get_endings_by_their_values(tmp_path: Path) -> None:
    values = {"jpg": encode(0), "png": encode(1, kind="PNG"), "bin": b"anything"}
    schema = {"data": fr.bytes_(), "text": fr.string(), "meta": fr.json(), "array": fr.array("uint8", (None,))}
    for name, keyed in (("numbers", False), ("keys", True)):
        path = tmp_path / f"{name}.frec"
        with fr.Writer(path, schema | ({"key": fr.string()} if keyed else {})) as writer:
            for kind, data in values.items():
                record = {
                    "data": data,
                    "text": f"ä {kind}",
                    "meta": {"kind": kind},
                    "array": np.arange(3, dtype=np.uint8),
                }
                writer.append(record | ({"key": f"folder.v2/{kind}"} if keyed else {}))
        stems = [f"folder.v2/{kind}" for kind in values] if keyed else ["0", "1", "2"]
        out = tmp_path / name
        good("extract", path, out, "--field", "data")
        for field in ("text", "meta", "array"):
            good("extract", path, out, "--field", field)
        expected = {
            f"{stem}.{end}" for stem, kind in zip(stems, values, strict=True) for end in (kind, "txt", "json", "npy")
        }
        assert {str(file.relative_to(out)) for file in out.rglob("*.*") if file.is_file()} == expected
        assert (out / f"{stems[1]}.png").read_bytes() == values["png"]
        assert (out / f"{stems[1]}.txt").read_text(encoding="utf-8") == "ä png"
        assert json.loads((out / f"{stems[2]}.json").read_text()) == {"kind": "bin"}
        assert np.load(out / f"{stems[0]}.npy").tolist() == [0, 1, 2]


def test_an_ending_never_makes_two_records_one_file(tmp_path: Path) -> None:
    with fr.Writer(tmp_path / "a.frec", {"data": fr.bytes_(), "key": fr.string()}) as writer:
        writer.extend({"data": [b"one", b"two", b"three"], "key": ["a", "A.BIN", "x" * 253]})
    good("extract", tmp_path / "a.frec", tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"a", "A.BIN", "x" * 253}
