"""An S3 server on loopback, and a proxy before it that counts requests and adds faults."""

from __future__ import annotations

import http.client
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
import obstore

# Longer than clients in tests wait for an answer.
_SILENCE = 10
_SKIPPED = {"transfer-encoding", "connection", "content-length", "date", "server"}


@dataclass(frozen=True)
class Request:
    """A request that reached the proxy."""

    method: str
    path: str
    range: str | None

    @property
    def stretch(self) -> tuple[int, int] | None:
        """First byte and end of a range; None for a whole object or its last bytes."""
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.range or "")
        return (int(found[1]), int(found[2]) + 1) if found else None


@dataclass
class Fault:
    """What happens to the next requests that it is for.

    Attributes:
        kind: a status such as "503", "cut" (the connection ends amid the body), "short" (the body is
            shorter than the range, and says so), "etag" (another one), "no etag", "flip" (a bit of what is
            sent, or of the answer), "lost" (it is done, and the connection ends), "silent" (nothing is done,
            and nothing comes).
        times: How often.
        match: For which requests.
    """

    kind: str
    times: int = 1
    match: Callable[[Request], bool] = lambda request: request.method == "GET"


@dataclass
class Server:
    """The server, behind its proxy.

    Attributes:
        port: Of the proxy.
        latency: Seconds before each answer.
        bandwidth: Bytes a second of all answers together; None: as many as there are.
        secret: The secret access key.
        etag: What the fault "etag" answers.
        faults: What happens to requests.
        requests: What has come.
    """

    backend: int
    port: int = 0
    latency: float = 0.0
    bandwidth: float | None = None
    secret: str = "test"
    etag: str = '"0123456789abcdef0123456789abcdef"'
    faults: deque[Fault] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The options of a store behind the proxy."""
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": "test",
            "secret_access_key": self.secret,
        }

    def reset(self) -> None:
        """Forget requests and faults."""
        self.latency, self.bandwidth = 0.0, None
        self.faults.clear()
        self.requests.clear()

    def put(self, name: str, content: bytes | Path) -> str:
        """Write an object past the proxy; return its URL."""
        obstore.put(self._backend(), name, content)
        return f"s3://bucket/{name}"

    def put_folder(self, name: str, folder: Path) -> str:
        """Write a folder's files; return its URL."""
        for path in sorted(folder.iterdir()):
            if path.is_file():
                self.put(f"{name}/{path.name}", path)
        return f"s3://bucket/{name}"

    def objects(self, name: str) -> dict[str, bytes]:
        """Return the objects of a folder, read past the proxy."""
        store = self._backend()
        found = obstore.list(store, f"{name}/").collect()
        return {
            entry["path"].removeprefix(f"{name}/"): bytes(obstore.get(store, entry["path"]).bytes()) for entry in found
        }

    def keys(self) -> dict[str, str]:
        """Return the key and ETag of every object, as another client lists them past the proxy."""
        options = self.options
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.backend}",
            region_name=options["region"],
            aws_access_key_id=options["access_key_id"],
            aws_secret_access_key=options["secret_access_key"],
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
        return {found["Key"]: found["ETag"] for page in pages for found in page.get("Contents", ())}

    def delete(self, name: str) -> None:
        """Delete a folder past the proxy."""
        store = self._backend()
        for entry in obstore.list(store, f"{name}/").collect():
            obstore.delete(store, entry["path"])

    def _backend(self) -> Any:
        options = {**self.options, "endpoint": f"http://127.0.0.1:{self.backend}"}
        return obstore.store.from_url("s3://bucket", client_options={"allow_http": True}, **options)

    def stretches(self, name: str) -> list[tuple[int, int]]:
        """Return the ranges of an object that were asked for."""
        found = [request.stretch for request in self.requests if request.path.endswith(name)]
        return [stretch for stretch in found if stretch is not None]

    def fault_for(self, request: Request) -> str | None:
        """Note a request; return the kind of its fault, if it has one."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times > 0 and fault.match(request):
                    fault.times -= 1
                    return fault.kind
        return None

    def pace(self, size: int) -> None:
        """Wait as long as some bytes take."""
        if self.bandwidth is not None:
            with self._lock:
                self._free = max(self._free, time.monotonic()) + size / self.bandwidth
                wait = self._free - time.monotonic()
            time.sleep(max(0.0, wait))


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    connections = threading.local()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body follows its headers without 40 ms between them

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = Request(self.command, self.path.partition("?")[0], self.headers.get("range"))
            kind = server.fault_for(request)
            time.sleep(server.latency)
            if kind == "silent":
                time.sleep(_SILENCE)
                self.close_connection = True
                return
            if kind is not None and kind.isdigit():
                self.send_response(int(kind))
                self.send_header("content-length", "0")
                self.end_headers()
                return
            if kind == "flip" and self.command == "PUT" and body:
                body = body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 16]) + body[len(body) // 2 + 1 :]
            status, headers, content = self.forward(body)
            if kind == "lost":
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if kind == "short":
                content = content[: len(content) // 2]
            if kind == "flip" and content:
                at = len(content) // 2
                content = content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]
            self.send_response(status)
            for name, value in headers:
                if name.lower() == "etag" and kind == "etag":
                    value = server.etag
                if name.lower() not in _SKIPPED and not (name.lower() == "etag" and kind == "no etag"):
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length")
            self.send_header("content-length", str(len(content)) if self.command != "HEAD" else str(length or 0))
            self.end_headers()
            if kind == "cut":
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
                return
            if self.command != "HEAD":
                for at in range(0, len(content), 1 << 16):
                    piece = content[at : at + (1 << 16)]
                    server.pace(len(piece))
                    self.wfile.write(piece)

        def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            for attempt in range(2):
                connection = getattr(connections, "it", None)
                if connection is None:
                    connection = connections.it = http.client.HTTPConnection("127.0.0.1", server.backend)
                try:
                    connection.request(self.command, self.path, body, dict(self.headers.items()))
                    response = connection.getresponse()
                    return response.status, response.getheaders(), response.read()
                except (http.client.HTTPException, OSError):
                    connection.close()
                    connections.it = None
                    if attempt:
                        raise
            raise AssertionError

        def handle(self) -> None:
            with suppress(OSError):  # a client that was killed
                super().handle()

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    return Handler


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended with {process.returncode}")
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("the S3 server does not start")


@contextmanager
def started() -> Iterator[Server]:
    """Start the server and its proxy, with a bucket called "bucket"."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port, process)
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("PUT", "/bucket", headers={"host": "127.0.0.1"})
            assert connection.getresponse().read() is not None
            connection.close()
            with before(port) as server:
                yield server
        finally:
            process.kill()


@contextmanager
def before(port: int, secret: str = "test") -> Iterator[Server]:
    """Put a proxy before an S3 server that runs, whose access key is "test" and whose bucket "bucket"."""
    server = Server(port, secret=secret)
    with listening(_handler(server)) as server.port:
        yield server


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # With 5, Linux drops connections that come while the tests' own threads run: each waits a second or much longer.
    request_queue_size = 128


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Answer requests in threads; yield the port."""
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving(
    folder: Path, *, etag: str | None = None, asked: list[tuple[str, str | None]] | None = None
) -> Iterator[str]:
    """Serve a folder as a web server does; yield its URL. `asked`: gets path and user of each request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a body follows its headers without 40 ms between them

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if asked is not None:
                asked.append((self.path, self.headers.get("authorization")))
            path = folder / unquote(self.path.partition("?")[0]).partition("/train/")[2]
            if not path.is_file():
                self.send_response(404)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            content = path.read_bytes()
            found = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("range") or "")
            first, end = 0, len(content)
            if found is not None:
                first = int(found[1]) if found[1] else max(0, end - int(found[2]))
                end = min(end, int(found[2]) + 1) if found[1] and found[2] else end
            self.send_response(200 if found is None else 206)
            if found is not None:
                self.send_header("content-range", f"bytes {first}-{end - 1}/{len(content)}")
            self.send_header("content-length", str(end - first))
            self.send_header("last-modified", "Mon, 02 Nov 2026 10:00:00 GMT")
            if etag is not None:
                self.send_header("etag", etag)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[first:end])

        do_HEAD = do_GET  # noqa: N815 - as the base class calls it

    with listening(Handler) as port:
        yield f"http://127.0.0.1:{port}/train"
