"""A server of the S3 protocol that holds 100,000 small objects in memory and counts what it is asked.

    python tests/support/memory_s3.py PORT OBJECTS

Listings have pages, delimiters and start-after; reads have ranges and conditions; writes conditions.
POST /add/NUMBER makes more partitions; GET /counts returns requests and bytes since the last time.
"""

import hashlib
import io
import json
import sys
from collections import Counter
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 1000
FILES_OF_A_DAY, ROWS = 50, 20


def partition(number):
    """Key and bytes of a small Parquet file of its own."""
    import polars as pl

    day = datetime(2020, 1, 1) + timedelta(days=number // FILES_OF_A_DAY)
    table = pl.DataFrame(
        {
            "id": range(number * ROWS, (number + 1) * ROWS),
            "at": [day + timedelta(minutes=each) for each in range(ROWS)],
            "amount": [float(number + each) for each in range(ROWS)],
            "label": [each % 2 for each in range(ROWS)],
        }
    )
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return f"data/day={day:%Y-%m-%d}/part-{number:06}.parquet", buffer.getvalue()


def tag_of(body):
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


class Objects:
    """A bucket."""

    def __init__(self):
        self.bodies, self.tags, self.order = {}, {}, []
        self.counts, self.lock = Counter(), Lock()

    def put(self, key, body):
        if key not in self.bodies:
            self.order = []
        self.bodies[key], self.tags[key] = body, tag_of(body)

    def listing(self, query):
        """One page: of the keys behind start-after or a token, folded at a delimiter."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        if not self.order:
            self.order = sorted(self.bodies)
        entries, last, folders = [], after, []
        is_truncated = False
        for key in self.order[self._position(max(prefix, after)) :]:
            if key <= after or (
                after and delimiter and key.startswith(after) and after.endswith(delimiter)
            ):
                continue
            if not key.startswith(prefix):
                break
            if len(entries) + len(folders) == PAGE and not (
                folders and key.startswith(folders[-1])
            ):
                is_truncated = True
                break
            head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if found:
                folder = prefix + head + delimiter
                if folder not in folders[-1:]:
                    folders.append(folder)
                last = folder
            else:
                entries.append(key)
                last = key
        more = (
            f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if is_truncated else ""
        )
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.bodies[key])}</Size>"
            f"<ETag>{escape(self.tags[key])}</ETag></Contents>"
            for key in entries
        )
        prefixes = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        return (
            f"<ListBucketResult><IsTruncated>{str(is_truncated).lower()}</IsTruncated>{more}"
            f"{contents}{prefixes}</ListBucketResult>"
        ).encode()

    def _position(self, key):
        from bisect import bisect_left

        return bisect_left(self.order, key)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects = Objects()

    def log_message(self, *_):
        """Quiet."""

    def answer(self):
        parts = urlsplit(self.path)
        _, _, key = unquote(parts.path).lstrip("/").partition("/")
        query = {
            name: values[0]
            for name, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        body = self._body()
        if parts.path == "/counts":
            with self.objects.lock:
                counts, self.objects.counts = self.objects.counts, Counter()
            return self.reply(200, json.dumps(counts).encode())
        if parts.path.startswith("/add/"):
            first = len(self.objects.bodies)
            for number in range(first, first + int(key)):
                self.objects.put(*partition(number))
            return self.reply(200, b"")
        return self.serve(key, query, body)

    def _body(self):
        if self.headers.get(
            "Transfer-Encoding"
        ) != "chunked" and "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""  # aws-chunked: SIZE[;signature]\r\nBYTES\r\n … 0\r\ntrailer\r\n\r\n
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def serve(self, key, query, body):
        objects = self.objects
        with objects.lock:
            objects.counts["list" if not key else self.command.lower()] += 1
        if not key:
            return self.reply(200, objects.listing(query), {"Content-Type": "application/xml"})
        tag = objects.tags.get(key)
        if self.command == "PUT":
            wanted = self.headers.get("If-Match")
            if (self.headers.get("If-None-Match") and tag) or (wanted and wanted != tag):
                return self.fail(412, "PreconditionFailed")
            objects.put(key, body)
            return self.reply(200, b"", {"ETag": objects.tags[key]})
        if tag is None:
            return self.fail(404, "NoSuchKey")
        if self.headers.get("If-Match", tag) != tag:
            return self.fail(412, "PreconditionFailed")
        content, headers, status = objects.bodies[key], {"ETag": tag}, 200
        if span := self.headers.get("Range"):
            start, stop = span.removeprefix("bytes=").split("-")
            part = content[int(start) : int(stop) + 1]
            headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"
            content, status = part, 206
        return self.reply(status, content, headers)

    def fail(self, status, code):
        return self.reply(
            status,
            f"<Error><Code>{code}</Code></Error>".encode(),
            {"Content-Type": "application/xml"},
        )

    def reply(self, status, body, headers=None):
        with self.objects.lock:
            self.objects.counts["bytes"] += len(body) if self.command != "HEAD" else 0
        lines = {"Content-Length": len(body), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"} | (
            headers or {}
        )
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self.wfile.write(
            f"HTTP/1.1 {status} OK\r\n{head}\r\n".encode()
            + (b"" if self.command == "HEAD" else body)
        )

    do_GET = do_HEAD = do_PUT = do_POST = answer  # noqa: N815


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    PORT, COUNT = (int(each) for each in islice(sys.argv[1:], 2))
    for NUMBER in range(COUNT):
        Handler.objects.put(*partition(NUMBER))
    SERVER = Server(("127.0.0.1", PORT), Handler)
    print("ready", flush=True)
    SERVER.serve_forever()
