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
from fastrecord.transforms import CenterCrop, Resize
from tests.support.loading import make, write_payloads
from tests.support.packing import pack_with, records, write
from tests.support.pictures import SOI, exif, frame, jpeg, pixels, reference, with_segment

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
    "a comment whose length is 0": lambda: before_jfif(b"\xff\xfe\0\0"),
    "a comment whose length is 1": lambda: before_jfif(b"\xff\xfe\0\x01"),
    "an APP0 whose length is 0": lambda: before_jfif(b"\xff\xe0\0\0"),
    "an APP1 whose length is 1": lambda: between(b"\xff\xe1\0\x01"),
    "an APP14 whose length is 0": lambda: between(b"\xff\xee\0\0"),
    "zeros in place of the end marker": lambda: PLAIN[:-2] + bytes(2),
    "many zeros in place of the end marker": lambda: PLAIN[:-2] + bytes(3000),
    "zeros before the end marker": lambda: PLAIN[:-2] + bytes(9) + EOI,
    "zeros for an end marker, restart markers": lambda: jpeg(restart_marker_blocks=1)[:-2] + bytes(200),
    "zeros for an end marker, CMYK": lambda: jpeg(mode="CMYK")[:-2] + bytes(200),
    "a text in place of the end marker": lambda: PLAIN[:-2] + b"text" * 300,
    "a quantisation table that is cut off after its scan": lambda: PLAIN[:-2] + segment(0xDB, b"\x02" + bytes(9)) + EOI,
    "a quantisation table of index 15 after its scan": lambda: PLAIN[:-2] + segment(0xDB, b"\x0f" + b"\1" * 64) + EOI,
    "a Huffman table of index 15 after its scan": lambda: PLAIN[:-2] + segment(0xC4, b"\x0f" + bytes(16)) + EOI,
    "a comment that ends after the file": lambda: PLAIN[:-2] + b"\xff\xfe\xff\0text" + EOI,
    "a restart interval of wrong length after its scan": lambda: PLAIN[:-2] + segment(0xDD, b"\0") + EOI,
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
    """Return Pillow's pixels; what follows the image data has none, and its version and size decide about it."""
    scan = data.rfind(b"\xff\xda")
    following = [data.find(bytes([0xFF, marker]), scan + 2) for marker in (0xDB, 0xC4, 0xFE, 0xDD) if scan > 0]
    end = min([at for at in following if at > 0], default=len(data))
    try:
        return reference(data if EOI in data[-4000:end] else data[:end] + EOI)
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
    pack_with(write(tmp_path / "src", {"a/odd.jpg": data}), path)
    assert [image for image, *_ in records(path)] == [data]
    path = write_payloads(tmp_path / "appended.frec", [data])
    ((images, _),) = make(path, 1, sample=[CenterCrop((20, 30))])
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
    with pytest.raises(fr.errors.DecodeError, match="JPEG"):
        fr.decode_image(data)
    source = write(tmp_path / "src", {"a/odd.jpg": data})
    if _core.image_size(data) is not None:
        pack_with(source, path)
        with pytest.raises(fr.errors.DecodeError, match=r"train\.frec: record 0, .*field image: .*JPEG"):
            list(make(path, 1))
        return
    with pytest.raises(fr.FastRecordError, match=r"a/odd\.jpg: not an image: .*JPEG"):
        pack_with(source, path)
    schema = fr.Schema({"image": fr.image()})
    refused = pytest.raises(fr.errors.SchemaError, match=r"record 0, field image: not an image: .*JPEG")
    with fr.Writer(path, schema) as writer, refused:
        writer.append({"image": data})


def lossless(values: NDArray[np.uint8]) -> bytes:
    """Return a lossless JPEG of (H, W, C), each value predicted by the one before it."""
    height, width, channels = values.shape
    before = np.concatenate([np.vstack([np.full((1, 1, channels), 128), values[:-1, :1]]), values[:, :-1]], 1)
    bits = ""
    for step in (values.astype(int) - before).ravel().tolist():
        size = abs(step).bit_length()
        bits += f"{size:04b}" + (f"{step if step > 0 else step + (1 << size) - 1:0{size}b}" if size else "")
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    ids = range(1, channels + 1)
    head = struct.pack(">BHHB", 8, height, width, channels) + b"".join(bytes([n, 0x11, 0]) for n in ids)
    table = bytes([0, 0, 0, 0, 9, *[0] * 12, *range(9)])
    scan = bytes([channels, *(byte for n in ids for byte in (n, 0)), 1, 0, 0])
    return SOI + segment(0xC3, head) + segment(0xC4, table) + segment(0xDA, scan) + coded + EOI


@pytest.mark.parametrize("channels", [1, 3])
def test_a_lossless_jpeg_of_8_bits_is_counted_by_pack_and_left_to_pillow(tmp_path: Path, channels: int) -> None:
    values = pixels(70, 80, channels)
    data = lossless(values)
    wanted = np.broadcast_to(values, (80, 70, 3))
    np.testing.assert_array_equal(reference(data), wanted)
    summary = pack_with(write(tmp_path / "src", {"a/odd.jpg": data}), tmp_path / "train.frec")
    assert summary.foreign == {"lossless JPEG of 8 bits": 1}
    for size, part in (((80, 70), wanted), ((20, 30), wanted[30:50, 20:50])):
        with pytest.warns(UserWarning, match="1 of kind lossless JPEG of 8 bits"):
            ((images, _),) = make(tmp_path / "train.frec", 1, sample=[CenterCrop(size)])
        np.testing.assert_array_equal(images[0].permute(1, 2, 0), part)
    with pytest.warns(UserWarning, match="Pillow decodes"):
        list(make(tmp_path / "train.frec", 1, sample=[Resize(6), CenterCrop(4)]))
    with pytest.raises(
        fr.errors.DecodeError, match=r"this kind of image is not supported: lossless JPEG of 8 bits.*FR504"
    ):
        list(make(tmp_path / "train.frec", 1, decoder="native"))


def test_a_jpeg_that_lacks_image_data_is_truncated_whatever_follows_it() -> None:
    rows = fr.decode_image(PLAIN)
    for data in (PLAIN, jpeg(restart_marker_blocks=1), jpeg(mode="CMYK")):
        for tail in (b"", b"\xff\xfe\xff\0text", segment(0xDB, b"\x0f" + b"\1" * 64)):
            with pytest.raises(fr.errors.DecodeError, match=r"the JPEG is truncated.*FR502"):
                fr.decode_image(data[: len(data) * 2 // 3] + tail)
            cut = fr.decode_image(data[: len(data) * 2 // 3] + tail, truncated="accept")
            assert cut.shape == rows.shape


def test_a_progressive_jpeg_that_lacks_whole_scans_is_refused_without_its_end_marker() -> None:
    data = jpeg(64, 48, progressive=True)
    at = 0
    cuts: list[int] = []
    while (at := data.find(b"\xff\xda", at + 1)) > 0:
        tables = data.rfind(b"\xff\xc4", 0, at)
        cuts.append(min(at, tables if tables > (cuts[-1] if cuts else 0) else at))
    assert len(cuts) == 10
    for cut in cuts[1:]:
        with pytest.raises(fr.errors.DecodeError, match="the JPEG is truncated"):
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
            fr.errors.DecodeError, match=rf"record 1, .*field image: the JPEG has more than {limit} scans.*FR516"
        ):
            list(make(path, 2, decoder=decoder))
