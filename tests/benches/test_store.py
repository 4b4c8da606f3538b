"""The experiment "store": its server is an S3 server, and its contenders read what is in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import obstore
import pytest

import fastrecord as fr
from benches.experiments.store import Alone, Opener, Ours, write_shards
from benches.support.s3 import S3, Asked, options, sent_again


def test_the_server_does_what_clients_of_s3_ask_for(tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "x.bin").write_bytes(content)
    with S3(tmp_path) as server:
        store: Any = obstore.store.from_url("s3://bucket/a%20b", **options(server.endpoint))
        meta = obstore.head(store, "x.bin")
        assert meta["size"] == len(content)
        assert bytes(obstore.get(store, "x.bin").bytes()) == content
        ranges: tuple[tuple[Any, bytes], ...] = (
            ((5, 1000), content[5:1000]),
            ({"suffix": 10}, content[-10:]),
            ({"offset": 1_000_000}, content[1_000_000:]),
        )
        for asked, part in ranges:
            wanted: Any = {"range": asked, "if_match": meta["e_tag"]}
            found = obstore.get(store, "x.bin", options=wanted)
            assert bytes(found.bytes()) == part
        with pytest.raises(obstore.exceptions.PreconditionError):
            obstore.get(store, "x.bin", options={"if_match": '"another"'})
        with pytest.raises(FileNotFoundError):
            obstore.get(store, "y.bin")
        assert [entry["path"] for entry in obstore.list_with_delimiter(store)["objects"]] == ["x.bin"]
        assert server.take()[2] == Asked("GET", "a b/x.bin", 5, 995)
        server.slow(0.01, 1e9)
        assert len(obstore.get(store, "x.bin").bytes()) == len(content)
        assert len(server.take()) == 1


def test_bytes_that_are_sent_again_are_counted() -> None:
    asked = [Asked("GET", "a.frec", start, length) for start, length in ((0, 10), (5, 10), (5, 2), (30, 5))]
    assert sent_again([*asked, Asked("GET", "b.frec", 0, 10), Asked("GET", "dataset.json", 0, 9)], ".frec") == 7


def test_contenders_read_the_data_set_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # put back at the end
    for number in range(60):
        path = tmp_path / "data" / "images" / f"{number % 3}" / f"{number:02}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(110_000))
    folder = tmp_path / "data" / "store"
    write_shards(folder, 60, 2_200_000)
    assert len(list(folder.glob("*.frec"))) == 3
    payload = 60 * 110_000
    with S3(tmp_path) as server:
        url = "s3://bucket/data/store"
        settings: dict[str, Any] = {"data": url, "records": 60, "endpoint": server.endpoint}
        ours = Ours(**settings, cache=str(tmp_path / "cache"))
        ours.clear(0)
        assert ours.epoch(0) == payload
        parts = [one for one in server.take() if one.name.endswith(".frec")]
        assert sum(one.length for one in parts) > payload
        assert ours.epoch(1) == payload
        assert server.take() == []
        asked = tmp_path / "asked.json"
        asked.write_text(str([[Path(one.name).name, one.start, one.length] for one in parts]).replace("'", '"'))
        alone = Alone(url=url, endpoint=server.endpoint, asked=str(asked))
        alone.clear(0)
        assert alone.epoch(0) == sum(one.length for one in parts)
        quarter = Ours(**settings, cache=str(tmp_path / "cache"), size=7_000_000, window=1)
        quarter.clear(1)
        assert quarter.planned()["bytes"][0] > payload * 0.99
        rank = Opener(url=url, endpoint=server.endpoint, cache=str(tmp_path / "opened"), fields=("label",))
        assert rank.open(0) == 60
    assert Ours(data=str(folder), records=60).epoch(0) == payload
    assert len(fr.FastRecordDataset(folder, fields=("label",))) == 60
