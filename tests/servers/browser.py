"""Drives a headless Chromium over its debugging pipe: ``with Browser(program) as browser: browser.open(file, ...)``.

Only what tests of pages need: a width, a colour scheme, script in the page, a screenshot, and what went wrong in it.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_PATIENCE_SECONDS = 60
_CODES = {"Tab": 9, "Escape": 27}  # for keys on which the browser itself acts


@dataclass
class Page:
    """An opened page, and what happened while it was opened: complaints, and each address that was asked for."""

    browser: Browser
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.browser.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression in the page is true; its value. The page itself looks, once each frame."""
        loop = f"""new Promise((done, fail) => {{
            const last = performance.now() + {_PATIENCE_SECONDS} * 900;
            const look = () => {{
                let found = null;
                try {{ found = {script}; }} catch {{ found = null; }}
                if (found) done(found);
                else if (performance.now() > last) fail(new Error("never came: " + {json.dumps(script)}));
                else setTimeout(look, 16);
            }};
            look();
        }})"""
        answer = self.browser.ask("Runtime.evaluate", expression=loop, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]["exception"]["description"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press a key, named as in ``KeyboardEvent.key``."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"windowsVirtualKeyCode": _CODES[key]} if key in _CODES else {}  # with it, the browser itself acts, too
        for kind in ("keyDown", "keyUp"):
            self.browser.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, **code, **(text if kind == "keyDown" else {})
            )

    def leave(self, script: str) -> None:
        """Do what leads to another page, and wait until that is loaded."""
        self.browser.loading(lambda: self.evaluate(script))

    def leave_by(self, key: str) -> None:
        """As ``leave``, by a key."""
        self.browser.loading(lambda: self.press(key))

    def screenshot(self, file: Path) -> None:
        """The whole page as PNG."""
        size = self.browser.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}
        shot = self.browser.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


class Browser:
    """A browser process with one tab."""

    def __init__(self, program: str) -> None:
        self._program = program

    def __enter__(self) -> Browser:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def places() -> None:  # the browser reads commands at 3 and writes answers at 4
            far = [fcntl.fcntl(one, fcntl.F_DUPFD, 10) for one in (to_read, to_write)]
            for place, one in enumerate(far, 3):
                os.dup2(one, place)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        options += [f"--user-data-dir={self._folder.name}", "--no-first-run", "about:blank"]
        self._process = subprocess.Popen(
            [self._program, *options],
            preexec_fn=places,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = self._loads = 0
        self._session: str | None = None
        self._page = Page(self)
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)  # which ends the browser
        try:
            self._process.wait(_PATIENCE_SECONDS)
        finally:
            os.close(self._read)
            self._process.kill()
            self._folder.cleanup()

    def open(self, file: Path | str, width: int, dark: bool = False) -> Page:
        """Open a file, or an address, in a window so wide (CSS pixels), and wait until it is loaded."""
        self.loading(lambda: self.ask("Page.navigate", url="about:blank"))  # what the page before does ends with it
        self._page = page = Page(self)
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=phone)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[feature])
        address = file if isinstance(file, str) else file.resolve().as_uri()
        self.loading(lambda: self.ask("Page.navigate", url=address))
        return page

    def loading(self, act: Callable[[], Any]) -> None:
        """Do what loads a page, and wait until it is loaded."""
        self._loads = 0
        act()
        while self._loads == 0:
            self._message()

    def ask(self, method: str, **options: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": options}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _message(self) -> dict[str, Any]:
        """The next message; what it says of the page is noted."""
        while b"\0" not in self._rest:
            before = signal.signal(signal.SIGALRM, _gone)
            signal.alarm(_PATIENCE_SECONDS)
            try:
                piece = os.read(self._read, 1 << 20)
            finally:
                signal.alarm(0)
                signal.signal(signal.SIGALRM, before)
            assert piece, "the browser ended"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        method, told = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loads += 1
        elif method == "Network.requestWillBeSent":
            self._page.requests.append(told["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self._page.complaints.append(f"{told['type']}: {told['args']}")
        elif method == "Runtime.exceptionThrown":
            self._page.complaints.append(str(told["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self._page.complaints.append(told["entry"]["text"])
        return message


def _gone(number: int, frame: object) -> None:
    raise TimeoutError(f"the browser said nothing for {_PATIENCE_SECONDS} s")
