"""A headless Chromium, driven over its debugging pipe: no port, no driver, no network."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND",
    # Keeps the frame in the page's process, where this session sees its console and requests.
    "--disable-features=IsolateSandboxedIframes", "--remote-debugging-pipe",
)  # fmt: skip


class Tab:
    """One tab; remembers every request, console message and error since it was opened."""

    def __init__(self, executable: str, profile: Path) -> None:
        child_reads, self._write_end = os.pipe()
        self._read_end, child_writes = os.pipe()
        redirect = f'exec "$0" "$@" 3<&{child_reads} 4>&{child_writes}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, executable, *ARGUMENTS, f"--user-data-dir={profile}"],
            pass_fds=(child_reads, child_writes), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(child_reads)
        os.close(child_writes)
        self._buffer = b""
        self._last_id = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read_end, 1 << 16)
            assert part, "chromium ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def show(self, *, width: int, dark: bool) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)

    def open(self, file: Path) -> None:
        self.events.clear()
        self.send("Page.navigate", url=file.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def open_framed(self, html: str, folder: Path) -> None:
        """Show a page as the dashboard does: `srcdoc` of a sandboxed frame."""
        frame = f'<iframe sandbox="allow-scripts" srcdoc="{escape(html)}"></iframe>'
        style = "body{margin:0}iframe{border:0;width:100%;height:100vh;display:block}"
        parent = folder / "dashboard.html"
        parent.write_text(f"<!DOCTYPE html><meta charset=utf-8><style>{style}</style>{frame}")
        self.open(parent)

    def run(self, expression: str, *, in_frame: bool = True) -> Any:
        """Evaluate JavaScript in the frame, or in the page itself."""
        tree = self.send("Page.getFrameTree")["frameTree"]
        frame = tree["childFrames"][0]["frame"] if in_frame else tree["frame"]
        world = self.send("Page.createIsolatedWorld", frameId=frame["id"])["executionContextId"]
        answer = self.send(
            "Runtime.evaluate", expression=expression, contextId=world, returnByValue=True,
            awaitPromise=True,
        )  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    @property
    def requests(self) -> list[str]:
        """What left the tab besides the opened file; not what the page's policy held back."""
        held_back = {
            event["params"]["requestId"]
            for event in self.events
            if event["method"] == "Network.loadingFailed"
            and event["params"].get("blockedReason") == "csp"
        }
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
            and event["params"]["requestId"] not in held_back
        ]
        return [url for url in urls if not url.startswith(("file:", "about:", "data:"))]

    @property
    def complaints(self) -> list[str]:
        """Console messages and errors."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event) for event in self.events if event["method"] in methods]

    def close(self) -> None:
        self._session = ""
        with contextlib.suppress(AssertionError):
            self.send("Browser.close")
        try:
            self._process.wait(timeout=20)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._read_end)
            os.close(self._write_end)


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    names = ("chromium", "chromium-browser", "google-chrome")
    executable = next(filter(None, map(shutil.which, names)), None)
    if executable is None:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is on PATH")
    opened = Tab(executable, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
