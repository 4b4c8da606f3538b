"""Data sets of Hugging Face's `datasets`: folders by `save_to_disk`, its cache, downloaded repositories.

They are Arrow streams or Parquet files, which pyarrow reads. Beside them JSON files name the files,
the splits and the features: https://huggingface.co/docs/datasets/about_arrow and
https://huggingface.co/docs/datasets/repository_structure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastrecord.errors import Code
from fastrecord.interchange.files.arrow import STRUCTS, ArrowSource, open_files
from fastrecord.interchange.format import Format, Found, Setting
from fastrecord.interchange.paths import only
from fastrecord.interchange.source import Source

_STATE = "state.json"
_DICT = "dataset_dict.json"
_INFO = "dataset_info.json"
# In a folder of a cache or a repository: NAME-train-00000-of-00002.arrow, train-00000-of-00002.parquet,
# train.parquet.
_FILE = re.compile(r"(.+?)(?:-\d{5}-of-\d{5})?\.(arrow|parquet)")


class HuggingFaceFormat(Format):
    """See the module."""

    name = "huggingface"
    title = "Hugging Face datasets"
    settings: Mapping[str, Setting] = {
        "split": Setting("the split to read, such as train, if there are several"),
        "structs": STRUCTS,
    }

    def recognise(self, found: Found) -> str | None:
        """See `Format.recognise`."""
        names = found.names
        if _STATE in names and _INFO in names:
            return f"the folder holds {_STATE} and {_INFO}, as `Dataset.save_to_disk` writes them"
        if _DICT in names:
            return f"the folder holds {_DICT}, as `DatasetDict.save_to_disk` writes it"
        if _INFO in names and any(_FILE.fullmatch(name) for name in names):
            return f"the folder holds {_INFO} and files of Arrow or Parquet"
        if "data" in names and found.is_folder and any(re.search(r"-of-\d{5}\.parquet$", n) for n in _data(found.path)):
            return "the folder holds data/*-of-*.parquet, as repositories of data sets do"
        return None

    def open(self, source: str | Sequence[str], settings: Mapping[str, str]) -> Source:
        """See `Format.open`."""
        folder, split = only(source, "data sets"), settings.get("split")
        if not os.path.isdir(folder):
            raise Code.SOURCE.error(f"{folder}: not the folder of a data set: name the folder itself")
        structs = settings.get("structs") != "json"
        if os.path.exists(os.path.join(folder, _DICT)):
            splits = (_json(folder, _DICT) or {}).get("splits")
            if not isinstance(splits, list) or not all(_is_name(each) for each in splits):
                raise Code.SOURCE.error(f"{folder}/{_DICT}: it does not name its splits: save the data set again")
            return _saved(os.path.join(folder, _chosen(folder, splits, split)), structs=structs)
        if os.path.exists(os.path.join(folder, _STATE)):
            state = _json(folder, _STATE)
            own = state.get("_split") if isinstance(state, dict) else None
            if split not in (None, own):
                raise Code.SOURCE.error(f"{folder}: it is the split {own}, not {split}: leave out --set split")
            return _saved(folder, structs=structs)
        return _loose(folder, split, structs=structs)


def _saved(folder: str, *, structs: bool) -> Source:
    """Open a folder that `Dataset.save_to_disk` wrote."""
    state = _json(folder, _STATE)
    try:
        data = [each["filename"] for each in state["_data_files"]]
    except (KeyError, TypeError, AttributeError):
        raise Code.SOURCE.error(
            f"{folder}/{_STATE}: it does not name the data files: save the data set again"
        ) from None
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise Code.SOURCE.error(
            f"{folder}: it is a selection by an early `datasets`, as numbers of records: load and save it with today's"
        )
    for name in data:
        if not _is_name(name):
            raise Code.SOURCE.error(f"{folder}/{_STATE}: the data file {name!r} is not in this folder: move it there")
    if not data:
        raise Code.SOURCE.error(f"{folder}: the data set has no files: save it again")
    files = open_files([os.path.join(folder, name) for name in data], marked=True)
    return ArrowSource(files, _features(folder), structs=structs)


def _loose(folder: str, split: str | None, *, structs: bool) -> Source:
    """Open the files of a split in a folder of a cache or a repository."""
    places = [folder, os.path.join(folder, "data")] if os.path.isdir(os.path.join(folder, "data")) else [folder]
    splits: dict[str, list[str]] = {}
    for place in places:
        for name in sorted(os.listdir(place)):
            found = _FILE.fullmatch(name)
            if found is not None:
                # A cache puts the data set's name before the split's.
                of = found[1].rpartition("-")[2] if found[2] == "arrow" else found[1]
                splits.setdefault(of, []).append(os.path.join(place, name))
    if not splits:
        raise Code.SOURCE.error(f"{folder}: no files *.arrow or *.parquet of a data set: name the folder that has them")
    files = open_files(splits[_chosen(folder, list(splits), split)], marked=True)
    return ArrowSource(files, _features(folder), structs=structs)


def _features(folder: str) -> dict[str, Any] | None:
    """Return the features that a folder describes; None if only the files do."""
    info = _json(folder, _INFO) if os.path.exists(os.path.join(folder, _INFO)) else None
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict):
        return None
    return {name: feature for name, feature in features.items() if isinstance(feature, dict)}


def _chosen(folder: str, splits: Sequence[str], split: str | None) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        what = "has the splits" if split is None else f"has no split {split!r}, but"
        raise Code.SOURCE.error(
            f"{folder}: the data set {what} {', '.join(splits)}: choose one, as in --set split={splits[0]}"
        )
    return split


def _data(folder: str) -> Sequence[str]:
    inside = os.path.join(folder, "data")
    return Found.at(inside).names if os.path.isdir(inside) else ()


def _is_name(name: object) -> bool:
    """Return whether a text is the name of something in a folder, and leads nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and os.path.basename(name) == name


def _json(folder: str, name: str) -> Any:
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except ValueError as err:
        raise Code.SOURCE.error(f"{path}: not JSON: {err}: save the data set again") from err
