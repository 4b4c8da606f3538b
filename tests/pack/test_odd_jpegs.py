"""JPEGs with headers that no modern encoder writes: packed, and decoded to Pillow's pixels."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import fastrecord as fr
from fastrecord import _core
from fastrecord.pack.images import pack_folder
from fastrecord.transforms import CenterCrop
from tests.support.loading import make, write_payloads
from tests.support.packing import records, write
from tests.support.pictures import SOI, exif, frame, jpeg, reference, with_segment

# Through libjpeg, Pillow warns about some of them.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data")

PLAIN = jpeg()
EOI = b"\xff\xd9"


def segment(marker: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload


def segments(data: bytes) -> list[bytes]:
    """Return the start, each segment, and everything from the first scan on."""
    parts, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        parts.append(data[at:end])
        at = end
    return [*parts, data[at:]]


def between(junk: bytes, data: bytes = PLAIN, *, first: int = 1) -> bytes:
    """Return a JPEG with bytes before each of its segments from `first` on."""
    parts = segments(data)
    return b"".join([*parts[: first + 1], *(junk + part for part in parts[first + 1 :])])


def before_jfif(extra: bytes) -> bytes:
    return SOI + extra + PLAIN[2:]


def without(marker: int, data: bytes = PLAIN) -> bytes:
    return b"".join(part for part in segments(data) if part[1] != marker)


def replaced(data: bytes, old: int, new: bytes) -> bytes:
    return b"".join(new if part[1] == old and part[:1] == b"\xff" and part != SOI else part for part in segments(data))


ADOBE = segment(0xEE, b"Adobe\0d\0\0\0\0\1")

ODD: dict[str, Callable[[], bytes]] = {
    "junk between its segments": lambda: between(b"\0\x01\x02junk"),
    "zeros between its segments": lambda: between(bytes(7)),
    "an escaped 0xFF between its segments": lambda: between(b"\xff\0"),
    "fill bytes between its segments": lambda: between(b"\xff\xff\xff"),
    "many fill bytes": lambda: between(b"\xff" * 5000),
    "junk before its scan alone": lambda: between(b"junk", first=len(segments(PLAIN)) - 2),
    "a truncated APP14": lambda: before_jfif(segment(0xEE, b"Adobe\0d\0")),
    "an APP14 of the name alone": lambda: before_jfif(segment(0xEE, b"Adob")),
    "an empty APP14": lambda: before_jfif(segment(0xEE, b"")),
    "an APP14 that is too long": lambda: before_jfif(segment(0xEE, b"Adobe\0d\0\0\0\0\1" + bytes(30))),
    "an APP14 before JFIF": lambda: before_jfif(ADOBE),
    "EXIF before JFIF": lambda: before_jfif(segment(0xE1, exif(1))),
    "garbage in EXIF before JFIF": lambda: before_jfif(segment(0xE1, b"Exif\0\0" + b"\xff" * 40)),
    "a comment before JFIF": lambda: before_jfif(segment(0xFE, b"\xff\xd9\xff\xc0\xff\xda")),
    "an APP0 that is not JFIF": lambda: before_jfif(segment(0xE0, b"AVI1\0\0\0\0")),
    "an empty APP0": lambda: before_jfif(segment(0xE0, b"")),
    "two JFIFs": lambda: before_jfif(segments(PLAIN)[1]),
    "a large APP2 before JFIF": lambda: before_jfif(segment(0xE2, b"\xff\xd8\xff" * 21_000)),
    "every APP before JFIF": lambda: before_jfif(b"".join(segment(0xE0 + n, b"odd" * n) for n in range(2, 16))),
    "no JFIF": lambda: without(0xE0),
    "no JFIF, with APP14": lambda: before_jfif(ADOBE)[:2] + ADOBE + without(0xE0)[2:],
    "a restart interval of none": lambda: before_jfif(segment(0xDD, b"\0\0")),
    "restart markers": lambda: jpeg(restart_marker_blocks=1),
    "its tables twice": lambda: SOI + b"".join(p for p in segments(PLAIN) if p[1] in (0xDB, 0xC4)) + PLAIN[2:],
    "bytes after its end": lambda: PLAIN + b"\0" * 3000 + b"\xff\xd8\xff",
    "another JPEG after its end": lambda: PLAIN + PLAIN,
    "no end marker": lambda: PLAIN[:-2],
    "half an end marker": lambda: PLAIN[:-1],
    "no end marker, progressive": lambda: jpeg(progressive=True)[:-2],
    "no end marker, grey": lambda: jpeg(mode="L")[:-2],
    "no end marker, CMYK": lambda: jpeg(mode="CMYK")[:-2],
    "no end marker, restart markers": lambda: jpeg(restart_marker_blocks=1)[:-2],
    "progressive, with junk": lambda: between(b"junk", jpeg(progressive=True)),
    "a thumbnail in EXIF": lambda: with_segment(PLAIN, 0xE1, exif(1) + jpeg(16, 12)),
    "a frame header of SOF1": lambda: PLAIN[: frame(PLAIN) + 1] + b"\xc1" + PLAIN[frame(PLAIN) + 2 :],
    # Pillow opens it but cannot decode it.
    "two frame headers": lambda: (
        PLAIN[: frame(PLAIN)] + PLAIN[frame(PLAIN) : frame(PLAIN) + 19] + PLAIN[frame(PLAIN) :]
    ),
    "a frame header of lossless JPEG": lambda: PLAIN[: frame(PLAIN) + 1] + b"\xc3" + PLAIN[frame(PLAIN) + 2 :],
    "two starts": lambda: SOI + PLAIN,
    "a height of none": lambda: PLAIN[: frame(PLAIN) + 5] + b"\0\0" + PLAIN[frame(PLAIN) + 7 :],
    "12 bits": lambda: PLAIN[: frame(PLAIN) + 4] + b"\x0c" + PLAIN[frame(PLAIN) + 5 :],
    "no scan": lambda: b"".join(segments(PLAIN)[:-1]) + EOI,
    "nothing but its start": lambda: SOI + b"\xff",
}
UNREADABLE = list(ODD)[list(ODD).index("two frame headers") :]


def pillow(data: bytes) -> NDArray[np.uint8] | None:
    """Return Pillow's pixels; without an end marker it depends on its version and the file size."""
    try:
        return reference(data if EOI in data[-4000:] else data + EOI)
    except (OSError, SyntaxError):
        return None


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind not in UNREADABLE])
def test_what_pillow_reads_is_taken_and_decoded_to_the_same_pixels(tmp_path: Path, kind: str) -> None:
    data = ODD[kind]()
    wanted = pillow(data)
    assert wanted is not None
    np.testing.assert_array_equal(fr.decode_image(data), wanted)
    assert _core.image_size(data) == (wanted.shape[1], wanted.shape[0])
    path = tmp_path / "train.frec"
    pack_folder(write(tmp_path / "src", {"a/odd.jpg": data}), path)
    assert [image for image, *_ in records(path)] == [data]
    path = write_payloads(tmp_path / "appended.frec", [data])
    ((images, _),) = make(path, 1, image=CenterCrop((20, 30)), flip=False)
    y, x = (wanted.shape[0] - 20 + 1) // 2, (wanted.shape[1] - 30 + 1) // 2
    found = images[0].permute(1, 2, 0).numpy()
    near = [wanted[y - dy :, x - dx :][:20, :30] for dy in (0, 1) for dx in (0, 1)]
    assert any(np.array_equal(found, part) for part in near)


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_pillow_opens_and_does_not_decode_is_refused_by_the_name_of_its_file_or_record(
    tmp_path: Path, kind: str
) -> None:
    data, path = ODD[kind](), tmp_path / "train.frec"
    assert pillow(data) is None
    with pytest.raises(fr.DecodeError, match="JPEG"):
        fr.decode_image(data)
    source = write(tmp_path / "src", {"a/odd.jpg": data})
    if _core.image_size(data) is not None:
        pack_folder(source, path)
        with pytest.raises(fr.DecodeError, match=r"train\.frec: record 0, field image: .*JPEG"):
            list(make(path, 1))
        return
    with pytest.raises(fr.FastRecordError, match=r"a/odd\.jpg: not an image: .*JPEG"):
        pack_folder(source, path)
    schema = fr.Schema({"image": fr.image()})
    refused = pytest.raises(fr.SchemaError, match=r"record 0, field image: not an image: .*JPEG")
    with fr.Writer(path, schema) as writer, refused:
        writer.append({"image": data})


def test_a_progressive_jpeg_that_lacks_whole_scans_is_refused_without_its_end_marker() -> None:
    data = jpeg(64, 48, progressive=True)
    at = 0
    cuts: list[int] = []
    while (at := data.find(b"\xff\xda", at + 1)) > 0:
        tables = data.rfind(b"\xff\xc4", 0, at)
        cuts.append(min(at, tables if tables > (cuts[-1] if cuts else 0) else at))
    assert len(cuts) == 10
    for cut in cuts[1:]:
        with pytest.raises(fr.DecodeError, match="the JPEG is truncated"):
            fr.decode_image(data[:cut])
        assert fr.decode_image(data[:cut], truncated="accept").shape == (48, 64, 3)


def scans(data: bytes, count: int) -> bytes:
    """Return a progressive JPEG that repeats its last scan up to this count."""
    starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    return data[:-2] + data[starts[-1] : -2] * (count - len(starts)) + EOI


def test_a_jpeg_of_more_scans_than_any_encoder_writes_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    data = jpeg(64, 48, progressive=True)
    limit = _core.all_limits()["max_jpeg_scans"]
    allowed = scans(data, limit)
    assert fr.decode_image(allowed).shape == (48, 64, 3)
    path = write_payloads(tmp_path / "train.frec", [data, scans(data, limit + 1)])
    for decoder in ("auto", "native"):
        with pytest.raises(
            fr.DecodeError, match=rf"record 1, field image: the JPEG has more than {limit} scans.*FR516"
        ):
            list(make(path, 2, decoder=decoder))
