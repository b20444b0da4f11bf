"""A small HTTP server that speaks as much S3 as a client needs, and breaks it on request."""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

HTML = b"<html><head><title>Sign in</title></head><body>Welcome to the hotel</body></html>"


@dataclass
class Answer:
    """What the server sends."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class HostileStore:
    """Objects by key, and what is done to each answer before it is sent.

    Attributes:
        objects: The bucket.
        spoil: Changes an answer; gets the operation, the key and which call of this kind it is.
        send: Writes the body to the socket; None for as it is.
    """

    url: str
    objects: dict[str, bytes] = field(default_factory=dict)
    spoil: Callable[[str, str, int, Answer], Answer] | None = None
    send: Callable[[Callable[[bytes], object], bytes], None] | None = None
    calls: dict[str, int] = field(default_factory=dict)
    released: threading.Event = field(default_factory=threading.Event)

    def answer(self, method: str, key: str, query: dict[str, list[str]], span: str) -> Answer:
        operation = "list" if method == "GET" and not key else method.lower()
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if operation == "list":
            found = self.listing(query)
        elif key not in self.objects:
            code = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"
            found = Answer(404, {"Content-Type": "application/xml"}, code)
        else:
            found = self.content(key, span)
        return self.spoil(operation, key, self.calls[operation], found) if self.spoil else found

    def listing(self, query: dict[str, list[str]]) -> Answer:
        prefix = query.get("prefix", [""])[0]
        items = {key: body for key, body in self.objects.items() if key.startswith(prefix)}
        return page(
            {key: len(body) for key, body in items.items()},
            tags={key: self.content(key, "").headers["ETag"] for key in items},
        )

    def content(self, key: str, span: str) -> Answer:
        body = self.objects[key]
        tag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        headers = {"ETag": f'"{tag}"', "Content-Type": "binary/octet-stream"}
        headers["Last-Modified"] = "Thu, 01 Jan 2026 00:00:00 GMT"
        if not span:
            return Answer(200, headers, body)
        start, _, stop = span.removeprefix("bytes=").partition("-")
        part = body[int(start) : int(stop) + 1]
        headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(body)}"
        return Answer(206, headers, part)


def page(
    items: dict[str, int],
    more: str = "<IsTruncated>false</IsTruncated>",
    tags: dict[str, str] | None = None,
) -> Answer:
    """One page of a listing."""
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
        + (f"<ETag>{escape(tags[key])}</ETag>" if tags else "")
        + "</Contents>"
        for key, size in items.items()
    )
    body = f"<ListBucketResult><Name>b</Name>{more}{contents}</ListBucketResult>"
    return Answer(200, {"Content-Type": "application/xml"}, body.encode())


@contextlib.contextmanager
def hostile_store() -> Iterator[HostileStore]:
    """The server; its bucket is called `bucket`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

        def log_message(self, *_: object) -> None:
            """Quiet."""

        def reply(self) -> None:
            parts = urlsplit(self.path)
            _, _, key = unquote(parts.path).lstrip("/").partition("/")
            length = int(self.headers.get("Content-Length", 0))
            self.rfile.read(length)
            query = parse_qs(parts.query)
            found = store.answer(self.command, key, query, self.headers.get("Range", ""))
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.send_response(found.status)
                headers = {"Content-Length": str(len(found.body)), **found.headers}
                for name, value in headers.items():
                    if value:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                if self.command != "HEAD":
                    if store.send and found.body:
                        store.send(self.wfile.write, found.body)
                    else:
                        self.wfile.write(found.body)

    for method in ("GET", "HEAD", "PUT", "DELETE", "POST"):
        setattr(Handler, f"do_{method}", Handler.reply)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store = HostileStore(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield store
    finally:
        store.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
