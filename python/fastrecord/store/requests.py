"""`RemoteFolder`: the requests that a folder of an object store answers, retried and checked.

Everything that talks to the network is in this module. It uses obstore, whose threads do not survive
a fork: in a forked child, requests are made by a helper process (`helper`).
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import logging
import math
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import unquote_to_bytes

from fastrecord._core import CorruptFileError, FastRecordError, allocate
from fastrecord.errors import Code
from fastrecord.names import as_name
from fastrecord.store import AZURE, BUCKETS
from fastrecord.store.address import Url
from fastrecord.store.answer import Answer
from fastrecord.store.credentials import way_to_credentials, with_credentials
from fastrecord.store.failures import (
    NO_STORE,
    NOWHERE,
    ShortError,
    is_missing,
    is_unconnected,
    refusal,
    said,
    status_of,
)
from fastrecord.store.store import Store, refuse_other
from fastrecord.store.threads import Threads

_T = TypeVar("_T")

# Bytes of a page of a .frec file.
PAGE = 4096
# Requests in flight at once, for all stores of a process.
PARALLEL = 16
# Bytes of one request, at most. Large enough that latency costs little, small enough that many run
# side by side.
PART = 8 << 20
# Options of a store that are not obstore's: for how long a request that fails is made again, and for how long
# no byte may come.
_SETTINGS = {"retry_seconds": 180.0, "silence_seconds": 60.0}
_ENDPOINTS = ("endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url")
# Options of obstore's client, which stand beside those of the store.
_CLIENT = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "root_certificate", "user_agent")
# What differs from its checksum is asked for so many times.
ATTEMPTS = 3
# The longest pause between two attempts, in seconds.
_LONGEST_PAUSE = 15.0
# For how long a connection that cannot be made is tried again to a store that has never answered: perhaps there is
# none at this address.
_NEVER_ANSWERED_SECONDS = 4.0
# Nothing limits how long a whole answer takes.
_NO_LIMIT = timedelta(days=365)

_log = logging.getLogger(__name__)


_P = ParamSpec("_P")


def _request(method: Callable[Concatenate[RemoteFolder, _P], _T]) -> Callable[Concatenate[RemoteFolder, _P], _T]:
    """Have a method run where Ctrl-C can end the wait, or in the helper process of a forked child."""

    @wraps(method)
    def run(folder: RemoteFolder, /, *args: _P.args, **options: _P.kwargs) -> _T:
        if is_forked():
            from fastrecord.store.helper import helper

            answer: _T = helper().call(_made, folder in _answered, folder, method.__name__, args, options)
            _answered.add(folder)
            return answer
        if threading.current_thread() is threading.main_thread():
            # obstore looks for no signals.
            return _threads(os.getpid(), 1).submit(partial(method, folder, *args, **options)).result()
        return method(folder, *args, **options)

    return run


def _made(has_answered: bool, folder: RemoteFolder, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Make a request in a process that may not know whether the store has answered another one."""
    if has_answered:
        _answered.add(folder)
    return getattr(RemoteFolder, name).__wrapped__(folder, *args, **options)


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store.

    Attributes:
        url: Its URL.
        options: Arguments of `obstore.store.from_url`, such as `region`, `endpoint` or `skip_signature`;
            and `retry_seconds` and `silence_seconds`.
        file: The URL of the only file that it stands for, on the web: it is asked for as it is given.
    """

    url: Url
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    file: Url | None = None

    @classmethod
    def of(cls, url: str, store: Store | None = None) -> RemoteFolder:
        """Return the folder of a URL.

        Raises:
            FastRecordError: a store would make something else of the URL. TypeError: `store` is not a `Store`.
        """
        folder = Url(url).refuse_wrong()
        return cls(folder, _options(folder, store))

    @classmethod
    def of_file(cls, url: str, store: Store | None = None) -> tuple[RemoteFolder, str]:
        """Return the folder of a file's URL, and the file's name in it; errors as in `of`."""
        file = Url(url).refuse_wrong()
        return cls(file.folder, _options(file, store), file if file.is_web else None), file.name

    def __hash__(self) -> int:
        return hash(self.url)

    @_request
    def get(self, name: str, start: int = 0, length: int | None = None, *, etag: str | None = None) -> Answer:
        """Return bytes of an object.

        Args:
            name: Its name in the folder.
            start: The first byte; below 0 it counts from the end.
            length: Bytes; None: to the end.
            etag: Raise an error if the object has another one.

        Raises:
            FileNotFoundError: the object does not exist.
            FastRecordError: it has been replaced, or the store does not answer.
        """
        wanted: dict[str, Any] = {}
        if start < 0:
            wanted["range"] = {"suffix": -start}
        elif length is not None:
            wanted["range"] = (start, start + length)
        elif start:
            wanted["range"] = {"offset": start}
        if etag is not None and not etag.startswith("W/"):
            wanted["if_match"] = etag  # a weak one never matches

        def ask() -> Answer:
            obstore = _obstore()
            try:
                result = obstore.get(*_at(self, name), options=wanted)
            except (obstore.exceptions.NotSupportedError, obstore.exceptions.GenericError) as err:
                # Azure is not asked for last bytes. Other servers refuse to send more of them than there are.
                if start >= 0 or status_of(err) not in (None, 416, 500):
                    raise
                size = obstore.head(*_at(self, name))["size"]
                if not size:
                    return Answer(b"", 0, None)
                result = obstore.get(*_at(self, name), options=wanted | {"range": (max(0, size + start), size)})
            answer = self._answer(name, result, start)
            if etag is not None and answer.etag is not None and answer.etag != etag:
                raise _replaced(self, name)
            return answer

        return _asked(self, name, ask)

    def _answer(self, name: str, result: Any, start: int = 0) -> Answer:
        data, (first, end) = result.bytes(), result.range
        if len(data) != end - first or (start >= 0 and first != start):
            raise ShortError(f"{len(data):,} bytes came of {end - first:,}")
        if not start and "text/html" in result.attributes.get("Content-Type", "") and bytes(data[:1]) == b"<":
            raise Code.STORE.error(f"{self.where(name)}: {NO_STORE.format('a web page')}")
        return Answer(data, result.meta["size"], result.meta.get("e_tag"))

    @_request
    def get_changed(self, name: str, etag: str | None) -> Answer | None:
        """Return an object, or None if it still has an ETag.

        Raises:
            FileNotFoundError, FastRecordError: as in `get`.
        """

        def ask() -> Answer | None:
            obstore = _obstore()
            try:
                known = {} if etag is None else {"if_none_match": etag}
                return self._answer(name, obstore.get(*_at(self, name), options=known))
            except obstore.exceptions.NotModifiedError:
                return None

        return _asked(self, name, ask)

    @_request
    def download(
        self,
        name: str,
        ranges: Sequence[tuple[int, int]],
        place: str,
        etag: str | None,
        *,
        gap: int = 0,
        parallel: bool = True,
    ) -> int:
        """Copy bytes of an object to the same places of a file; nothing else is written to it.

        Args:
            name: The object.
            ranges: (offset, length) of each run of bytes.
            place: The file.
            etag: As in `get`.
            gap: One request brings ranges that are at most so many bytes apart.
            parallel: Make requests side by side, if there are several.

        Returns:
            The bytes that came, those between ranges too.

        Raises:
            FileNotFoundError, FastRecordError: as in `get`. OSError: the file cannot be written.
        """
        copies = [partial(_copy, self, name, part, place, etag) for part in _parts(ranges, gap)]
        return sum(at_once(*copies) if parallel and len(copies) > 1 else (copy() for copy in copies))

    @_request
    def put(
        self,
        name: str,
        content: Any,
        *,
        mode: str | Mapping[str, str | None] = "overwrite",
        parallel: int = PARALLEL,
    ) -> None:
        """Write an object: it is there as a whole, or not at all.

        Args:
            name: The object.
            content: Its bytes, or a `pathlib.Path`, which is sent in parts.
            mode: "overwrite", "create", or {"e_tag": ...} of the object that it replaces.
            parallel: Parts that are on their way at once, at most.

        Raises:
            FileExistsError: it exists, or has been replaced by another, against `mode`.
            FastRecordError: the store does not answer.
        """
        obstore, in_parts = _obstore(), isinstance(content, Path) and not self.url.is_web
        if self.url.is_local:
            os.makedirs(self.url.path, exist_ok=True)

        def ask() -> None:
            try:
                with _local_condition(self, name, mode) as kind:
                    at = _at(self, name, sending=in_parts)
                    obstore.put(*at, content, mode=kind, chunk_size=PART, max_concurrency=parallel)
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                raise FileExistsError(f"{self.where(name)}: another process has written it meanwhile") from None
            except NotImplementedError:
                raise Code.STORE.error(f"{self.where(name)}: this kind of store is only read") from None

        _asked(self, name, ask)

    def is_copy(self, name: str, path: str, known: str | None = None) -> bool:
        """Return whether an object has the bytes of a file on this machine.

        An ETag that is a sum of them, as of S3 and its like, proves it. Else they are read back and compared,
        except where an ETag can be no such sum and the connection has checksums of its own (TLS): there the
        size and the last page must do.

        Args:
            name: The object.
            path: The file.
            known: The file's `md5_etag`, if it is known.
        """
        size = os.path.getsize(path)
        try:
            last = self.get(name, -PAGE)
        except FileNotFoundError:
            return False
        with open(path, "rb") as file:
            descriptor = file.fileno()
            if last.size != size or os.pread(descriptor, PAGE, max(0, size - PAGE)) != bytes(last.data):
                return False
            found = (last.etag or "").strip('"')
            if found == (md5_etag(path) if known is None else known):
                return True
            is_sum = re.fullmatch(r"[0-9a-f]{32}(-\d+)?", found)
            if not is_sum and not (self.url.is_local or self.url.scheme == "http" or self._is_plain):
                return True

            def is_same(start: int) -> bool:
                return bytes(self.get(name, start, PART).data) == os.pread(descriptor, PART, start)

            return all(at_once(*(partial(is_same, start) for start in range(0, size, PART))))

    @property
    def _is_plain(self) -> bool:
        return _endpoint(self.options).startswith("http:")

    def exists(self, name: str) -> bool:
        """Return whether there is such an object."""
        try:
            self.get(name, 0, 1)
        except FileNotFoundError:
            return False
        return True

    @_request
    def tree(self) -> tuple[list[str], list[tuple[str, int]]]:
        """Return the names of the folders in it, and the path and bytes of each object, those in folders below too.

        Raises:
            FastRecordError: there is no such bucket; the store does not answer.
        """

        def ask() -> tuple[list[str], list[tuple[str, int]]]:
            prefix = _prefix(self)
            folders = _obstore().list_with_delimiter(_opened(self), prefix)["common_prefixes"]
            pages = _obstore().list(_opened(self), prefix, chunk_size=1000)
            start = len(f"{prefix}/") if prefix else 0
            return sorted(folder[start:] for folder in folders), [
                found for page in pages for found in _inside(self, page)
            ]

        return _listed(self, ask)

    @_request
    def list(self) -> list[tuple[str, int]]:
        """Return the name and bytes of each object in the folder, without those in folders below."""

        def ask() -> list[tuple[str, int]]:
            found = _obstore().list_with_delimiter(_opened(self), _prefix(self))
            return sorted((as_name(name), size) for name, size in _inside(self, found["objects"]))

        return _listed(self, ask)

    @_request
    def delete(self, names: Sequence[str]) -> None:
        """Delete objects.

        Raises:
            FastRecordError: the store does not answer; a note names the objects that are left.
        """
        for number, name in enumerate(names):
            try:
                with suppress(FileNotFoundError):
                    _asked(self, name, partial(_obstore().delete, *_at(self, name)))
            except FastRecordError as error:
                error.add_note(f"not deleted: {', '.join(map(self.where, names[number:]))}")
                raise

    def file_url(self, name: str) -> Url:
        """Return the URL of a file in the folder, with all that opening it takes."""
        return self.url.file(name).given(self.options)

    def where(self, name: str) -> str:
        """Return the URL of an object."""
        return str(self.file or self.url.at(name))


def _options(url: Url, store: Store | None) -> dict[str, Any]:
    refuse_other(store)
    return {**url.options, **(store.options if store else {})}


# The process whose obstore has threads.
_process: int | None = None


def is_forked() -> bool:
    """Return whether this process is the fork of one that has made requests: a helper makes those of this one."""
    global _process
    if _process is None:
        _process = os.getpid()
    return _process != os.getpid()


def _obstore() -> Any:
    try:
        import obstore
    except ImportError as err:
        raise Code.NO_LIBRARY.error(
            f"object stores need the package obstore: {err}: `pip install 'fastrecord[cloud]'`"
        ) from err
    return obstore


@cache
def _opened(store: RemoteFolder, sending: bool = False) -> Any:
    """Return obstore's own store, of files that are sent in parts, or of everything else.

    `_asked` makes requests again. Only parts that are sent are left to obstore: else all others would be sent again.
    """
    obstore = _obstore()
    options = {name: value for name, value in store.options.items() if name not in (*_SETTINGS, *_CLIENT)}
    if why := _wrong(options):
        raise _cannot_open(store, why)
    retry_seconds, silence_seconds = setting(store, "retry_seconds"), setting(store, "silence_seconds")
    url = store.file or store.url
    if url.is_local:
        if not os.path.isdir(url.path):
            raise FileNotFoundError(errno.ENOENT, "does not exist", url.path)
    else:
        options["retry_config"] = {
            "max_retries": 1000 if sending else 0,
            "retry_timeout": timedelta(seconds=retry_seconds),
            "backoff": {"max_backoff": timedelta(seconds=_LONGEST_PAUSE)},
        }
        # A part that is sent shows no progress, and so many share a line.
        silence = timedelta(seconds=silence_seconds * (PARALLEL if sending else 1))
        limits = {"timeout": _NO_LIMIT, "read_timeout": silence}
        client = {name: store.options[name] for name in _CLIENT if name in store.options}
        options["client_options"] = limits | client | dict(options.get("client_options") or {})
        if url.user:
            password = base64.b64encode(unquote_to_bytes(url.user if ":" in url.user else f"{url.user}:")).decode()
            options["client_options"].setdefault("default_headers", {"authorization": f"Basic {password}"})
        options = with_credentials(url, options)
        if url.scheme == "http" or _endpoint(options).startswith("http:"):
            options["client_options"].setdefault("allow_http", True)
        elif url.scheme == "s3" and not any("unsigned_payload" in name.lower() for name in [*options, *os.environ]):
            # As the AWS tools have it: TLS has checksums, and a second one takes a fifth of the time of sending.
            options["unsigned_payload"] = True
    try:
        if url.is_local:
            return obstore.store.LocalStore(url.path)
        if url.is_web:
            return obstore.store.HTTPStore.from_url(f"{url}?{url.query}" if url.query else url, **options)
        return obstore.store.from_url(url.root, **options)
    except (ValueError, TypeError, obstore.exceptions.BaseError) as err:
        # A value may be secret.
        what = said(err) if "parse" not in str(err) else "a value of an option is wrong"
        if url.scheme in AZURE:
            what = f"{what}: {way_to_credentials(url)}"
        raise _cannot_open(store, what) from None


def _cannot_open(store: RemoteFolder, why: str) -> Exception:
    return Code.STORE.error(f"{store.url}: no store can be opened: {why}: check the URL and the options")


def _wrong(options: Mapping[str, Any]) -> str | None:
    """Return why obstore cannot take these options, if it would panic; their values may be secret."""
    if "retry_config" in options:
        return "options has retry_config: retry_seconds says for how long requests are made again"
    if not isinstance(options.get("client_options") or {}, Mapping):
        return "client_options is a dict"
    for name, value in options.items():
        if isinstance(value, str) and not value.isprintable() and "service_account" not in name:
            return f"{name} has a control character"
        if name in _ENDPOINTS and not re.match("https?://[^/]", str(value)):
            return f"{name} begins with http:// or https://"
    return None


def setting(store: RemoteFolder, name: str) -> float:
    """Return one of `_SETTINGS` of a store.

    Raises:
        FastRecordError: it is not a number above 0.
    """
    value = store.options.get(name, _SETTINGS[name])
    with suppress(TypeError, ValueError):
        if 0 < (seconds := float(value)) < math.inf:
            return seconds
    raise _cannot_open(store, f"{name} is a number of seconds above 0")


def _at(store: RemoteFolder, name: str, *, sending: bool = False) -> tuple[Any, str]:
    """Return obstore's own store, and how it calls an object."""
    path = "" if store.file else store.url.object(name)
    return _opened(store, sending), path


def _endpoint(options: Mapping[str, Any]) -> str:
    found = [options.get(name) for name in _ENDPOINTS]
    found += [value for value in options.values() if isinstance(value, str) and value.startswith("http:")]
    found += [os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")]
    return str(next(filter(None, found), ""))


@cache
def _threads(process: int, count: int) -> Threads:
    """Return the threads that make requests; with a count of 1, the one that works for the main thread."""
    del process  # a forked child has threads of its own
    return Threads(count, "fastrecord-store")


def at_once(*calls: Callable[[], _T]) -> list[_T]:
    """Return what several calls return, made side by side.

    This thread makes those that no other one has begun: the others may all wait for what it does.
    """
    futures = [submit(call) for call in calls]
    try:
        own = {at: calls[at]() for at in reversed(range(len(calls))) if futures[at].cancel()}
        return [own[at] if at in own else future.result() for at, future in enumerate(futures)]
    finally:
        for future in futures:  # after an error
            future.cancel()


def md5_etag(path: str) -> str:
    """Return the ETag that S3 and its like give a file that is sent in parts of `PART`."""
    sums: list[bytes] = []
    with open(path, "rb") as file:
        while part := file.read(PART):
            sums.append(hashlib.md5(part, usedforsecurity=False).digest())
    if len(sums) == 1:
        return sums[0].hex()
    return f"{hashlib.md5(b''.join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"


def asked_until_good(ask: Callable[[], _T]) -> _T:
    """Return what a call asks for and checks; it is made again if the bytes differ from their checksum.

    Raises:
        CorruptFileError: they differ each time.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(CorruptFileError):
            return ask()
    return ask()


def submit(function: Callable[..., _T], *arguments: Any) -> Future[_T]:
    """Call a function on one of the threads for requests."""
    return _threads(os.getpid(), PARALLEL).submit(function, *arguments)


# Stores that have answered a request.
_answered: set[RemoteFolder] = set()


def _asked(store: RemoteFolder, name: str, ask: Callable[[], _T]) -> _T:
    """Make a request, again while that can help and there is time; translate its errors."""
    errors = _obstore().exceptions
    where, attempt = store.where(name), 0
    seconds, end = setting(store, "retry_seconds"), math.inf
    while True:
        try:
            answer = ask()
        except (errors.PreconditionError, errors.NotModifiedError):
            raise _replaced(store, name) from None
        except (ShortError, FileNotFoundError, errors.BaseError) as err:
            if is_missing(err):
                raise FileNotFoundError(errno.ENOENT, "does not exist in the store", where) from None
            refused = refusal(err, where, has_answered=store in _answered)
            is_passing = isinstance(err, (ShortError, errors.GenericError)) and not store.url.is_local
            if refused is not None or not (is_passing or status_of(err)):
                raise refused or Code.STORE.error(f"{where}: {said(err)}") from None
            attempt, now = attempt + 1, time.monotonic()
            never = is_unconnected(err) and store not in _answered
            end = min(end, now + (min(seconds, _NEVER_ANSWERED_SECONDS) if never else seconds))
            # Exponential back-off with full jitter, so that many clients do not return at once; the last attempt
            # is made when the time is over. Parts that are sent have been sent again by obstore, for as long.
            if now >= end or "retries, max_retries" in str(err):
                if never:
                    raise Code.STORE.error(f"{where}: {NOWHERE.format(said(err))}") from None
                raise Code.STORE.error(f"{where}: the store does not answer: {said(err)}") from None
            pause = min(random.uniform(0, min(_LONGEST_PAUSE, 0.1 * 2**attempt)), end - now)
            _log.info("%s: %s: attempt %d in %.1f s", where, said(err), attempt + 1, pause)
            time.sleep(pause)
        else:
            _answered.add(store)
            return answer


def _parts(ranges: Sequence[tuple[int, int]], gap: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the ranges that each request brings."""
    part: list[tuple[int, int]] = []
    first = end = 0
    for start, length in sorted(ranges):
        stop = start + length
        while start < stop:
            if part and (start > end + gap or start >= first + PART):
                yield part
                part = []
            first = first if part else start
            end = min(stop, first + PART)
            part.append((start, end - start))
            start = end
    if part:
        yield part


def _copy(folder: RemoteFolder, name: str, part: Sequence[tuple[int, int]], place: str, etag: str | None) -> int:
    first, length = part[0][0], sum(part[-1]) - part[0][0]
    # Opened before the request: a copy that is late must not write to what a name stands for by then.
    descriptor = os.open(place, os.O_WRONLY | os.O_CLOEXEC)
    try:
        answer = folder.get(name, first, length, etag=etag)
        if len(answer.data) != length:
            raise Code.STORE.error(f"{folder.where(name)}: has only {answer.size:,} bytes: it has been cut short")
        view = memoryview(answer.data)
        for start, size in part:
            # Large writes take a file system several times as long without it.
            allocate(descriptor, start, size)
            write_at(descriptor, view[start - first : start - first + size], start)
        return length
    finally:
        os.close(descriptor)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write bytes to a place of a file."""
    view = memoryview(data)
    while len(view):
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


@contextmanager
def _local_condition(store: RemoteFolder, name: str, mode: str | Mapping[str, str | None]) -> Iterator[Any]:
    """Yield the mode of a put; of files, obstore does not replace one on the condition that it is the one expected."""
    if not store.url.is_local or isinstance(mode, str):
        yield mode if isinstance(mode, str) else dict(mode)
        return
    descriptor = os.open(store.url.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _obstore().head(*_at(store, name)).get("e_tag") != mode["e_tag"]:
            raise _obstore().exceptions.PreconditionError(name)
        yield "overwrite"
    finally:
        os.close(descriptor)


def _prefix(store: RemoteFolder) -> str | None:
    """Return what the paths of all objects of a folder begin with, as the store's client has it."""
    return store.url.key if store.url.scheme in BUCKETS and store.url.key else None


def _inside(store: RemoteFolder, entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, int]]:
    """Yield the path in the folder, and the bytes, of what was listed; not of the folder's own empty object."""
    start = f"{prefix}/" if (prefix := _prefix(store)) else ""
    for entry in entries:
        if entry["path"].startswith(start):
            yield entry["path"].removeprefix(start), entry["size"]


def _listed(store: RemoteFolder, ask: Callable[[], _T]) -> _T:
    try:
        return _asked(store, "", ask)
    except FastRecordError as error:
        if not store.url.is_web:
            raise
        raise Code.STORE.error(
            f"{store.url}: a web server does not list its files: make the manifest where they are"
        ) from error


def _replaced(store: RemoteFolder, name: str) -> Exception:
    return Code.REPLACED.error(
        f"{store.where(name)}: has been replaced since this process began to read it: start again, and it reads the "
        "new one"
    )
