"""An S3 server on loopback that serves a folder: what reading from a store costs without the store.

The server of the tests (moto) takes milliseconds of Python for a request and copies each answer
several times, so a benchmark would measure it. This one understands a request in some microseconds
and has the kernel send the file (`sendfile`), so that it needs little of the CPUs that it shares with
its clients. It knows what readers ask for: HEAD and GET of objects, with ranges and `If-Match`, and
ListObjectsV2. It checks no signature and writes nothing.

It can wait before each answer and limit the bandwidth of all answers together, and it keeps a list
of what it was asked for.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[2]
BUCKET = "bucket"
# Requests for this bucket are for the server itself.
_CONTROL = "-"
# Bytes that are sent at a time if the bandwidth is limited.
_PIECE = 64 << 10
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        method: "GET" or "HEAD".
        name: The object.
        start, length: The bytes of the answer.
    """

    method: str
    name: str
    start: int
    length: int


class S3:
    """The server, in a process that ends with this one; use it in a `with` block.

    Args:
        folder: Its files are the objects of the bucket.

    Attributes:
        endpoint: Its URL.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.endpoint = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benches.support.s3", str(self._folder)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        if self._process.stdout is not None:
            self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # its standard input ends, and so does it

    def take(self) -> list[Asked]:
        """Return the requests since the last call."""
        return [Asked(*row) for row in self._ask("take")]

    def slow(self, latency: float, bandwidth: float) -> None:
        """Wait some seconds before each answer, and send so many bytes a second; 0: without limit."""
        self._ask(f"slow?latency={latency}&bandwidth={bandwidth}")

    def _ask(self, what: str) -> Any:
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"))
        connection.request("GET", f"/{_CONTROL}/{what}")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer


def options(endpoint: str) -> dict[str, Any]:
    """Return what obstore needs to find the server."""
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "test",
        "client_options": {"allow_http": True},
    }


def variables(endpoint: str) -> dict[str, str]:
    """Return the environment in which boto3 and obstore find the server."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "S3_ENDPOINT_URL": endpoint,
    }


class Server:
    """The server's side.

    Args:
        folder: The objects.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._latency = self._bandwidth = self._free = 0.0
        self._lock = threading.Lock()
        self._asked: list[Asked] = []

    def serve(self, listening: socket.socket) -> None:
        """Answer all connections, each by a thread of its own."""
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def _connection(self, connection: socket.socket) -> None:
        heard = b""
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                while True:
                    while b"\r\n\r\n" not in heard:
                        more = connection.recv(1 << 16)
                        if not more:
                            return
                        heard += more
                    head, _, heard = heard.partition(b"\r\n\r\n")
                    first, *lines = head.decode("latin-1").split("\r\n")
                    method, target, _ = first.split(" ")
                    pairs = (line.partition(":") for line in lines)
                    self._answer(connection, method, target, {name.lower(): value.strip() for name, _, value in pairs})
            except OSError:
                pass  # a client that has gone

    def _answer(self, connection: socket.socket, method: str, target: str, headers: Mapping[str, str]) -> None:
        path, _, query = target.partition("?")
        bucket, _, name = unquote(path).lstrip("/").partition("/")
        if bucket == _CONTROL:
            self._send(connection, "200 OK", {}, json.dumps(self._controlled(name, parse_qs(query))).encode())
            return
        time.sleep(self._latency)
        if method not in ("GET", "HEAD") or bucket != BUCKET:
            self._refuse(connection, method, "501 Not Implemented", "NotImplemented")
        elif not name:
            self._note(Asked(method, "", 0, 0))
            self._send(connection, "200 OK", {"content-type": "application/xml"}, self._listed(parse_qs(query)))
        else:
            self._object(connection, method, name, headers)

    def _object(self, connection: socket.socket, method: str, name: str, headers: Mapping[str, str]) -> None:
        try:
            file = os.open(self._folder / os.path.normpath(f"/{name}").lstrip("/"), os.O_RDONLY)
        except OSError:
            self._note(Asked(method, name, 0, 0))
            self._refuse(connection, method, "404 Not Found", "NoSuchKey")
            return
        try:
            stat = os.fstat(file)
            etag = f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'
            start, end = _range(headers.get("range", ""), stat.st_size)
            self._note(Asked(method, name, start, end - start if method == "GET" else 0))
            if headers.get("if-match", etag) not in (etag, "*"):
                self._refuse(connection, method, "412 Precondition Failed", "PreconditionFailed")
                return
            if "range" in headers and start >= end:
                self._refuse(connection, method, "416 Range Not Satisfiable", "InvalidRange")
                return
            about = {
                "accept-ranges": "bytes",
                "content-type": "application/octet-stream",
                "etag": etag,
                "last-modified": formatdate(stat.st_mtime, usegmt=True),
            }
            status = "200 OK"
            if "range" in headers:
                status = "206 Partial Content"
                about["content-range"] = f"bytes {start}-{end - 1}/{stat.st_size}"
            self._send(connection, status, about, length=end - start, more=method == "GET" and end > start)
            while method == "GET" and start < end:
                piece = min(end - start, _PIECE if self._bandwidth else 1 << 30)
                self._pace(piece)
                stop = start + piece
                while start < stop:
                    start += os.sendfile(connection.fileno(), file, start, stop - start)
        finally:
            os.close(file)

    def _refuse(self, connection: socket.socket, method: str, status: str, code: str) -> None:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
        self._send(connection, status, {"content-type": "application/xml"}, b"" if method == "HEAD" else body)

    @staticmethod
    def _send(
        connection: socket.socket,
        status: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        *,
        length: int | None = None,
        more: bool = False,
    ) -> None:
        """Send the head of an answer, and its body; `more`: the body follows."""
        size = len(body) if length is None else length
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items())]
        head = "\r\n".join([*lines, f"content-length: {size}", "", ""]).encode()
        connection.sendall(head + body, socket.MSG_MORE if more else 0)

    def _listed(self, query: Mapping[str, list[str]]) -> bytes:
        """Return all objects below a prefix, on one page."""
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        names = sorted(path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file())
        found: dict[str, str] = {}
        for name in names:
            if name.startswith(prefix):
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    folder = escape(prefix + rest.partition(delimiter)[0] + delimiter)
                    found[folder] = f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
                    continue
                stat = (self._folder / name).stat()
                day = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
                found[name] = (
                    f"<Contents><Key>{escape(name)}</Key><LastModified>{day}</LastModified><ETag>&quot;"
                    f"{stat.st_size:x}-{stat.st_mtime_ns:x}&quot;</ETag><Size>{stat.st_size}</Size>"
                    "<StorageClass>STANDARD</StorageClass></Contents>"
                )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
            f"<MaxKeys>{len(found)}</MaxKeys><IsTruncated>false</IsTruncated>{''.join(found.values())}</ListBucketResult>"
        ).encode()

    def _controlled(self, what: str, query: Mapping[str, list[str]]) -> Any:
        if what == "slow":
            self._latency, self._bandwidth = (float(query[name][0]) for name in ("latency", "bandwidth"))
            return None
        with self._lock:
            asked, self._asked = self._asked, []
        return [list(asdict(one).values()) for one in asked]

    def _note(self, asked: Asked) -> None:
        with self._lock:
            self._asked.append(asked)

    def _pace(self, size: int) -> None:
        """Wait until it is the turn of some bytes."""
        if self._bandwidth:
            with self._lock:
                self._free = max(self._free, time.monotonic()) + size / self._bandwidth
                wait = self._free - time.monotonic()
            time.sleep(max(0.0, wait))


def _range(asked: str, size: int) -> tuple[int, int]:
    """Return the first byte and the end of what a range means."""
    found = _RANGE.fullmatch(asked)
    if found is None or not any(found.groups()):
        return 0, size
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def sent_again(asked: Iterable[Asked], suffix: str) -> int:
    """Return how many bytes of the objects with a suffix were sent more than once."""
    changes: dict[str, dict[int, int]] = {}
    for one in asked:
        if one.length and one.name.endswith(suffix):
            of = changes.setdefault(one.name, {})
            of[one.start] = of.get(one.start, 0) + 1
            of[one.start + one.length] = of.get(one.start + one.length, 0) - 1
    again = 0
    for of in changes.values():
        depth = before = 0
        for at in sorted(of):
            again += max(0, depth - 1) * (at - before)
            depth, before = depth + of[at], at
    return again


def main() -> None:
    """Serve a folder until standard input ends; print the port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listening.getsockname()[1], flush=True)
    threading.Thread(target=Server(Path(sys.argv[1]).resolve()).serve, args=(listening,), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
