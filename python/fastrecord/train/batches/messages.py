"""`Request`: the messages between a trainer and a producer of batches (docs/zmq.md).

Knows neither sockets nor torch, so that a producer starts quickly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastrecord.errors import Code
from fastrecord.train.config import TrainError

VERSION = 1

# A longer header is not one.
_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A trainer's request for one batch: the images of one rank in one optimizer step.

    Attributes:
        epoch: From 0.
        batch: Position in the epoch of this rank, in [0, batches).
        batches: Batches of an epoch for this rank.
        rank: The rank that asks.
        world_size: The ranks that share an epoch.
        records: Records of the trainer's data set.
        classes: Classes of the trainer's data set; labels are below.
        seed, shuffle, augment: As in TrainConfig.
        size: Images in the batch.
        image_size: Their height and width, in pixels.
    """

    epoch: int
    batch: int
    batches: int
    rank: int
    world_size: int
    records: int
    classes: int
    seed: int
    shuffle: str
    augment: str
    size: int
    image_size: int

    @property
    def _tensors(self) -> dict[str, dict[str, Any]]:
        images = {"shape": [self.size, self.image_size, self.image_size, 3], "dtype": "uint8"}
        return {"images": images, "labels": {"shape": [self.size], "dtype": "int64"}}

    def encode(self) -> bytes:
        """Return the message."""
        values = asdict(self)
        del values["size"], values["image_size"]
        return json.dumps({"version": VERSION, **values, **self._tensors}).encode()

    @classmethod
    def decode(cls, message: bytes) -> Request:
        """Return the request of a message.

        Raises:
            ValueError: it is not a request of this version; the text names the field.
        """
        header = decode_header(message)
        _expect(header, "version", VERSION)
        images = _member(header, "images")
        shape = images.get("shape")
        whole = isinstance(shape, list) and len(shape) == 4 and all(type(number) is int for number in shape)
        if not whole or not isinstance(shape, list) or min(shape) < 1:
            raise ValueError(f"images.shape is {shape!r:.100}, not four positive numbers")
        values: dict[str, Any] = {"size": shape[0], "image_size": shape[1]}
        for name, kind in cls.__annotations__.items():
            if name in values:
                continue
            value = header.get(name)
            if (kind == "int" and (type(value) is not int or value < 0)) or (kind == "str" and type(value) is not str):
                raise ValueError(f"{name} is {value!r:.100}, not {'a number' if kind == 'int' else 'a text'}")
            values[name] = value
        request = cls(**values)
        if request.rank >= request.world_size:
            raise ValueError(f"rank is {request.rank}, not below the world_size of {request.world_size}")
        for part, expected in request._tensors.items():
            for name, value in expected.items():
                _expect(_member(header, part), name, value, of=f"{part}.")
        return request

    def answer(self) -> bytes:
        """Return the header of the answer to this request."""
        values = {name: getattr(self, name) for name in _REPEATED}
        return json.dumps({"version": VERSION, **values, **self._tensors}).encode()

    def check_answer(self, parts: Sequence[memoryview | bytes]) -> None:
        """Check the parts of an answer against this request.

        Raises:
            ValueError: they do not fit; the text names the field.
            ProducerError: the producer answers that it cannot serve the batch.
        """
        if not parts:
            raise ValueError("an answer without any part")
        header = decode_header(bytes(parts[0]) if len(parts[0]) <= _LONGEST else b"")
        _expect(header, "version", VERSION)
        if "error" in header:
            raise ProducerError(str(header["error"]))
        for name in _REPEATED:
            _expect(header, name, getattr(self, name))
        for part, expected in self._tensors.items():
            for name, value in expected.items():
                _expect(_member(header, part), name, value, of=f"{part}.")
        if len(parts) != 3:
            raise ValueError(f"{len(parts)} parts, not 3: header, images, labels")
        for number, (part, width) in enumerate({"images": 1, "labels": 8}.items(), start=1):
            wanted = width * math.prod(self._tensors[part]["shape"])
            if len(parts[number]) != wanted:
                raise ValueError(f"{part} are {len(parts[number])} bytes, not the {wanted} of their shape")


# What an answer repeats of its request.
_REPEATED = ("epoch", "batch", "batches")


class ProducerError(Exception):
    """The producer answers that it cannot serve a batch; the text is its own."""


def encode_error(text: str) -> bytes:
    """Return the answer of a producer that cannot serve a batch."""
    return json.dumps({"version": VERSION, "error": text}).encode()


def decode_header(message: bytes) -> Mapping[str, Any]:
    """Return the object of a header.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        header = json.loads(message)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    return header


def producer_error(address: str, text: str) -> TrainError:
    """Return the trainer's error about a producer."""
    return TrainError(Code.PRODUCER.text(f"{address}: {text}"))


def _member(header: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    member = header.get(name)
    if not isinstance(member, dict):
        raise ValueError(f"{name} is {member!r:.100}, not an object with shape and dtype")
    return member


def _expect(values: Mapping[str, Any], name: str, wanted: Any, *, of: str = "") -> None:
    if values.get(name) != wanted:
        raise ValueError(f"{of}{name} is {values.get(name)!r:.100}, not {wanted!r}")


def is_ipv6(address: str) -> bool:
    """Return whether an address of ZeroMQ has brackets, such as tcp://[::1]:5557; a name may be either."""
    return "[" in address
