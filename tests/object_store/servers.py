"""S3 servers for tests: versitygw, which `make test` builds, and one that takes conditions of writes lightly."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

ACCESS, SECRET = "AKIDtests", "tests/secret+CANARY"
BUCKET = "bucket"


@dataclass(frozen=True)
class Server:
    """A server that runs; ``folder`` has a folder for each bucket."""

    url: str
    folder: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment of its clients."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


@contextmanager
def versitygw(folder: Path) -> Iterator[Server]:
    """Start versitygw over ``folder``, with one bucket."""
    binary = Path(sys.prefix, "bin", "versitygw")
    if not binary.exists():
        raise FileNotFoundError(f"{binary}: the S3 server for tests is not built; run `scripts/setup.sh s3-server`, or `make test`")
    (folder / BUCKET).mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(binary), "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET, "-q", "posix", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield Server(f"http://127.0.0.1:{port}", folder)
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"versitygw does not listen (exit code {process.poll()})")


#: What a store does with If-None-Match: nothing, or it looks for the object and then writes it.
Care = Literal["none", "looks first"]


@contextmanager
def careless(folder: Path, care: Care) -> Iterator[Server]:
    """Start a server that lets several writers create the same object."""
    # A process of its own: delta-rs keeps Python's lock while it waits for an answer.
    command = [sys.executable, "-m", "tests.object_store.servers", care]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}", folder)
    finally:
        process.kill()
        process.communicate()


class _Handler(BaseHTTPRequestHandler):
    """As much of S3 as delta-rs asks for."""

    objects: dict[str, bytes]
    care: Care
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").lstrip("/")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.care == "looks first" and self.headers.get("If-None-Match") == "*":
            if self._key in self.objects:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            time.sleep(0.01)
        self.objects[self._key] = body
        self._answer(200, b"", {"ETag": _etag(body)})

    def do_GET(self) -> None:
        if not self._key:
            self._list(parse_qs(urlsplit(self.path).query))
            return
        body = self.objects.get(self._key)
        if body is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"ETag": _etag(body), "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if asked:
            first = int(asked[1]) if asked[1] else max(0, len(body) - int(asked[2]))
            last = min(int(asked[2]), len(body) - 1) if asked[1] and asked[2] else len(body) - 1
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            self._answer(206, body[first : last + 1], headers)
            return
        self._answer(200, body, headers)

    do_HEAD = do_GET  # noqa: N815 - so the library calls it

    def do_DELETE(self) -> None:
        self.objects.pop(self._key, None)
        self._answer(204, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        for key in re.findall("<Key>([^<]*)</Key>", body):
            self.objects.pop(key, None)
        self._answer(200, b"<DeleteResult/>")

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        keys = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        folders: dict[str, None] = {}
        listed = []
        for key in keys:
            below = key.removeprefix(prefix)
            if "delimiter" in query and "/" in below:
                folders[prefix + below.partition("/")[0] + "/"] = None
            else:
                listed.append(key)
        at = datetime(2024, 1, 1, tzinfo=UTC).isoformat().replace("+00:00", "Z")
        rows = [
            f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified><Size>{len(self.objects[key])}</Size>"
            f"<ETag>{escape(_etag(self.objects[key]))}</ETag></Contents>"
            for key in listed
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>".encode())

    def _answer(self, code: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _etag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"objects": {}, "care": sys.argv[1]}))
    print(server.server_address[1], flush=True)
    server.serve_forever()
