"""A road to a real server that can be closed and opened again, as a test needs it."""

import contextlib
import socket
import threading
import time
from typing import Literal

import pytest

Closing = Literal["refuse", "reset", "silent", "error"]


class Road:
    """Passes connections on to a server while it is open.

    Args:
        host: Of the server.
        port: Of the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._closing: Closing | None = None
        self._pairs: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.refused = 0
        self.bucket = ""
        self._is_over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self, how: Closing = "refuse") -> None:
        """From now on nobody gets through; what is under way is cut off."""
        self._closing = how
        if how == "refuse":
            self._shut()
        if how != "silent":
            for each in list(self._pairs):
                _end(each)

    def open(self) -> None:
        """Let everybody through again."""
        if self._is_over.is_set():
            return
        was, self._closing = self._closing, None
        for each in list(self._pairs):  # those that timed out
            if was == "silent":
                _end(each)
        if was == "refuse":
            self._listener = self._listen(self.port)
            threading.Thread(target=self._accept, daemon=True).start()

    def close_for(self, seconds: float, how: Closing = "refuse") -> threading.Timer:
        """Close now, and open again after a time."""
        self.close(how)
        timer = threading.Timer(seconds, self.open)
        timer.daemon = True
        timer.start()
        return timer

    def end(self) -> None:
        self._is_over.set()
        self._shut()
        for each in list(self._pairs):
            _end(each)

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        return listener

    def _accept(self) -> None:
        listener = self._listener
        while not self._is_over.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._pairs.add(near)
        if self._closing is not None:
            self.refused += 1
        if self._closing == "silent":
            return
        if self._closing == "error":
            with contextlib.suppress(OSError):
                near.recv(65536)
                near.sendall(
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n"
                    b"Connection: close\r\n\r\n"
                )
            _end(near)
            return
        if self._closing == "reset":
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            near.close()
            return
        try:
            far = socket.create_connection(self._target)
        except OSError:
            _end(near)
            return
        self._pairs.add(far)
        threading.Thread(target=self._pump, args=(near, far), daemon=True).start()
        self._pump(far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while self._closing == "silent":
                    time.sleep(0.02)
                sink.sendall(data)
        for each in (source, sink):
            _end(each)
            self._pairs.discard(each)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@pytest.fixture
def road(bucket, s3_endpoint, monkeypatch) -> Road:
    """The only road from this test, and from what it starts, to the object store."""
    host, _, port = s3_endpoint.removeprefix("http://").partition(":")
    found = Road(host, int(port))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", found.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    found.bucket = bucket
    yield found
    found.end()
