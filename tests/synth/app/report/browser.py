"""Drive a headless browser in tests over a pipe (the DevTools protocol): no package is needed, only a browser.

It is the program that SYNTH_BROWSER names, else a Chromium or Chrome on the PATH, else the one that `make test` fetched
(`get_browser.py`), else one that Playwright put into the user's cache. A test that needs one skips itself without one.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROGRAMS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell",
    "chrome-headless-shell",
)  # fmt: skip
WAIT_S = 60.0
FETCHED = Path(sys.prefix, "browser", "browser")
# The protocol uses descriptors 3 and 4.
LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Return the path of the browser that tests use, or None if there is none."""
    chosen = os.environ.get("SYNTH_BROWSER")
    if chosen:
        return shutil.which(chosen)
    on_path = next((path for program in PROGRAMS if (path := shutil.which(program))), None)
    cache = Path.home() / ".cache" / "ms-playwright"
    patterns = ("chromium*/chrome-linux*/chrome", "chromium*/chrome-linux*/headless_shell")
    candidates = [FETCHED, *(path for pattern in patterns for path in sorted(cache.glob(pattern)))]
    return on_path or next((str(path) for path in candidates if os.access(path, os.X_OK)), None)


class BrowserError(RuntimeError):
    """The browser did not start, ended or did not answer."""


class Tab:
    """A page of a browser.

    Attributes:
        requests: URLs that the page requested.
        errors: Errors and complaints of its script.
    """

    def __init__(self, process: subprocess.Popen[bytes], into: int, out: int) -> None:
        self._process, self._into, self._out = process, into, out
        self._number, self._buffer = 0, b""
        self._replies: dict[int, dict[str, Any]] = {}
        self._seen: list[str] = []
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Make one call of the protocol; raise BrowserError if it fails."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": arguments}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_S
        while self._number not in self._replies:
            self._read(end)
        reply = self._replies.pop(self._number)
        if "error" in reply:
            raise BrowserError(f"{method}: {reply['error'].get('message')}")
        result: dict[str, Any] = reply["result"]
        return result

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it is shown."""
        self.requests.clear()
        self.errors.clear()
        self._seen.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.size(width, height)
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + WAIT_S
        while "Page.loadEventFired" not in self._seen:
            self._read(end)
        self.settle()

    def size(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def settle(self) -> None:
        """Wait until the pending changes are drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise BrowserError(json.dumps(reply["exceptionDetails"])[:500])
        return reply["result"].get("value")

    def key(self, key: str) -> None:
        """Press and release a key, as a user does."""
        codes = {
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
            "Enter": 13,
            "Escape": 27,
            "Home": 36,
        }
        codes |= {"End": 35, "Tab": 9, " ": 32}
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], code=key)
        self.settle()

    def mouse(self, x: float, y: float, click: bool = False) -> None:
        """Move the pointer to a point, and click if asked."""
        # After the page was scrolled, the browser itself repeats the pointer's old place once.
        for pointer_x in (x - 1, x):
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=pointer_x, y=y)
            self.settle()
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def picture(self, path: Path | None = None) -> bytes:
        """Return the visible part as PNG."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        if path is not None:
            path.write_bytes(data)
        return data

    def _read(self, end: float) -> None:
        if not select.select([self._out], [], [], max(0.0, end - time.monotonic()))[0]:
            raise BrowserError("no answer")
        piece = os.read(self._out, 1 << 16)
        if not piece:
            raise BrowserError(f"ended with {self._process.poll()}")
        *whole, self._buffer = (self._buffer + piece).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._replies[message["id"]] = message
            else:
                self._event(message["method"], message.get("params", {}))

    def _event(self, method: str, about: dict[str, Any]) -> None:
        self._seen.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.errors.append(about["entry"]["text"])


@contextmanager
def browsing() -> Iterator[Tab]:
    """Start a browser with one page, and end it afterwards; raise BrowserError if it does not start."""
    program = find_browser()
    if program is None:
        raise BrowserError("there is none")
    with tempfile.TemporaryDirectory() as profile:
        out_of_it, its_out = os.pipe()
        its_in, into_it = os.pipe()
        options = (
            "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
            "--disable-component-update", "--disable-default-apps", "--mute-audio", f"--user-data-dir={profile}",
        )  # fmt: skip
        command = [sys.executable, "-S", "-c", LAUNCH, str(its_in), str(its_out), program, *options]
        process = subprocess.Popen(
            command, pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(its_in)
        os.close(its_out)
        try:
            yield Tab(process, into_it, out_of_it)
        finally:
            os.close(into_it)  # The browser ends when the pipe is closed.
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
            os.close(out_of_it)
