"""A headless Chromium, driven by its DevTools protocol over a pipe, without another package."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: apt-get install chromium (make test tries to)"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE = 300.0
"""Seconds to wait before a test fails."""


class Browser:
    """One page, with its log entries and requests."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to, self._from, self._rest = to_browser, from_browser, b""
        self._number, self._session = 0, None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, wait for its answer, and keep the events before it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._from, 1 << 20)
            assert read, "chromium exited"
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def run(self, script: str) -> Any:
        """Evaluate an expression, and await it if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path: Path, link: str = "") -> None:
        """Load a page from disk."""
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri() + link)
        self.wait_for("document.readyState + location.protocol == 'completefile:'")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < until, f"never true: {script}"

    def press(self, key: str) -> None:
        """Press and release a key on the focused element."""
        for kind in ("keyDown", "keyUp"):
            self.call(
                *("Input.dispatchKeyEvent",),
                **{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]},
            )

    def complaints(self) -> list[dict[str, Any]]:
        """Exceptions, console messages and log entries, including refused requests."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    def show_at(self, width: int, scheme: str = "light") -> None:
        """Show pages as wide as `width` pixels, a phone below 500, in a light or dark scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def overflows(self) -> list[str]:
        """What is wider than its place: the page, or what an element of it would have to scroll."""
        return self.run(OVERFLOWS)

    def requests(self) -> list[str]:
        """Addresses that the page requested."""
        sent = [e for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]


OVERFLOWS = """(() => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    const parts = document.querySelectorAll("html, .wide, table, th, td, pre, h2, h3, p");
    return [...parts].filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth)
        .map((e) => `${e.tagName} ${e.id} ${e.className}: ${e.scrollWidth} in ${e.clientWidth}`);
})()"""

KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35}


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a Chromium with an empty `profile`, and end it with the block."""
    assert CHROMIUM
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    flags = (*FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank")
    # chromium reads the protocol on descriptor 3 and writes it on 4
    redirect = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", redirect, "bash", CHROMIUM, *flags],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)  # chromium exits when its pipe closes
        os.close(ours_in)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
