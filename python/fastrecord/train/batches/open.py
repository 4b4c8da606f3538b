"""From packed files to batches: opens and checks files, and chooses the source of batches."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from fastrecord import Decoding, FastRecordDataset, FastRecordError
from fastrecord.dataset.shards import at_snapshots
from fastrecord.errors import Code
from fastrecord.names import name_some
from fastrecord.store.store import Store
from fastrecord.train.batches.base import Batches
from fastrecord.train.batches.constant import ConstantBatches
from fastrecord.train.batches.native import NativeBatches
from fastrecord.train.batches.torch import TorchBatches, make_transform
from fastrecord.train.checkpoint import find_snapshots
from fastrecord.train.config import TrainConfig, TrainError
from fastrecord.train.distributed import Ranks
from fastrecord.train.labels import check_labels, class_names


def open_datasets(config: TrainConfig) -> tuple[FastRecordDataset, FastRecordDataset | None]:
    """Open the files for training and evaluation, with the training files' label numbers.

    A resumed run trains on the records that it had at its start, even if its files have grown.

    Raises:
        TrainError: a file cannot be used, the classes of the two differ, or a label has no class;
            the run to resume does not exist, or has other files.
    """
    train = _open(config.train, config, training=True, snapshots=find_snapshots(config.resume, config.folder))
    # Constant data cannot be evaluated.
    if config.val is None or config.data != "real":
        return train, None
    val = _open(config.val, config, training=False)
    if bool(train.classes) != bool(val.classes):
        named, other = (config.train, config.val) if train.classes else (config.val, config.train)
        way_out = "pack the second with --classes-from, or name them by fr.files.set_metadata(path, classes=[...])"
        raise TrainError(Code.NO_CLASSES.text(f"{_name(named)} names classes and {_name(other)} does not: {way_out}"))
    if not train.classes:
        check_labels(val, len(class_names(train)), name=_name(config.val))
        return train, val
    # Classes that only the labels of val name, and no list, may lack some.
    if _lists_classes(val) or not set(val.classes) <= set(train.classes):
        check_classes(train.classes, val.classes, train=_name(config.train), val=_name(config.val))
    if train.classes != val.classes:
        # Other names or another order: classes are matched by name, not by number.
        val = _open(config.val, config, training=False, classes=train.classes)
    return train, val


def open_on_all_ranks(config: TrainConfig, ranks: Ranks) -> tuple[FastRecordDataset, FastRecordDataset | None]:
    """Open rank 0's snapshots of the files on every rank, even if a writer commits meanwhile.

    See `open_datasets`.

    Raises:
        TrainError: a file cannot be used, or a rank finds another file at its path.
    """
    if ranks.world_size == 1:
        return ranks.each(lambda: open_datasets(config))
    # A data set pickles as the snapshots of its files.
    pickled = ranks.first(lambda: pickle.dumps(open_datasets(config)))

    def reopen() -> tuple[FastRecordDataset, FastRecordDataset | None]:
        train, val = pickle.loads(pickled)
        for dataset in filter(None, (train, val)):
            dataset.readers  # noqa: B018 - opens the files now, not when the first record is read
        return train, val

    return ranks.each(reopen)


def open_batches(
    dataset: FastRecordDataset,
    config: TrainConfig,
    ranks: Ranks,
    *,
    training: bool,
) -> Batches:
    """Return the batch source for a configuration.

    Args:
        dataset: From `open_datasets`.
        config: The run.
        ranks: The processes that share each global batch.
        training: True for training, False for evaluation.

    Raises:
        TrainError: the source does not support this configuration.
    """
    try:
        if training and config.data != "real":
            return ConstantBatches(dataset, config, ranks)
        kind = NativeBatches if config.loader == "native" else TorchBatches
        return kind(dataset, config, ranks, training=training)
    except ValueError as error:
        raise TrainError(str(error)) from error


def check_classes(train_classes: Sequence[str], val_classes: Sequence[str], *, train: str, val: str) -> None:
    """Refuse two files whose class names differ.

    Raises:
        TrainError: names the classes missing in `val` and the classes that only `val` has.
    """
    missing = sorted(set(train_classes) - set(val_classes))
    extra = sorted(set(val_classes) - set(train_classes))
    if not missing and not extra:
        return
    said = [f"{val} does not have {name_some(missing)}"] if missing else []
    said += [f"only {val} has {name_some(extra)}"] if extra else []
    raise TrainError(
        f"the classes of {train} and {val} differ: {'; '.join(said)}. "
        f"Pack the second with --classes-from {train}, so that both have the same classes and numbers"
    )


def _lists_classes(dataset: FastRecordDataset) -> bool:
    return None not in dataset.selection.shards.class_lists()


def _name(files: str | Sequence[str]) -> str:
    return files if isinstance(files, str) else ", ".join(files)


def _open(
    files: str | Sequence[str],
    config: TrainConfig,
    *,
    training: bool,
    classes: Sequence[str] | None = None,
    snapshots: Sequence[Mapping[str, Any]] | None = None,
) -> FastRecordDataset:
    # The native loader applies the geometry itself; torch's loader uses the transform.
    made = config.loader == "native" or (training and config.data != "real")
    transform = None if made else make_transform(config, training=training)
    native = Decoding(decoder=config.decoder, sixteen_bit=config.sixteen_bit)
    decode: str | Decoding = native if config.loader == "native" else "pil"
    try:
        paths = files if snapshots is None else at_snapshots(files, snapshots)
        dataset = FastRecordDataset(
            paths,
            transform=transform,
            decode=decode,
            classes=classes,
            allow_incomplete=config.allow_incomplete,
            store=Store(cache=config.cache, cache_size=config.cache_size),
        )
        targets = dataset.targets
    except (FastRecordError, ValueError) as error:
        raise TrainError(str(error)) from error
    except AttributeError as error:
        raise TrainError(f"{_name(files)} has no field 'label', which holds the numbers of the classes") from error
    if not len(dataset):
        raise TrainError(f"{_name(files)} holds no record")
    # In fields mode the attribute does not exist.
    if not hasattr(dataset, "image_field"):
        raise TrainError(f"{_name(files)} has no field of images")
    if targets.ndim != 1 or targets.dtype.kind not in "iub":
        of = f"{targets.dtype}{'' if targets.ndim == 1 else ' arrays'}"
        raise TrainError(Code.UNKNOWN_LABEL.text(f"{_name(files)}: its labels are {of}, not numbers of classes"))
    check_labels(dataset, len(class_names(dataset)), name=_name(files))
    return dataset
