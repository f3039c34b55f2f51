"""A browser for tests: headless Chromium, driven over W3C WebDriver by the standard library.

Debian's `chromium-driver` does the work. Here is just enough of its protocol: open a page, run a
script in it, wait until something is so, take a picture, and Chromium's own commands for the size
of the window and for dark colours.
"""

import base64
import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE = 300.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--lang=en-GB",
)


class Browser:
    def __init__(self, driver: str) -> None:
        self._driver = driver
        options = {"args": list(FLAGS)}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": logs}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._driver + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=2 * PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as refused:
            raise RuntimeError(refused.read().decode()) from None

    def close(self) -> None:
        self._call("DELETE", self._session)

    def open(self, address: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs a function's body in the page; its result."""
        body = {"script": script, "args": list(arguments)}
        return self._call("POST", f"{self._session}/execute/sync", body)

    def text(self, selector: str) -> str:
        found = self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)"
        return list(self.run(script, selector))

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def until(self, selector: str, pattern: str, seconds: float = PATIENCE) -> str:
        """Waits until the text there matches; fails with what it was at last."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, text := self.text(selector)):
            assert time.monotonic() < deadline, f"{selector} says {text!r}, not {pattern!r}"
            time.sleep(0.02)
        return text

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    # -- what only Chromium can do -----------------------------------------------------------------

    def devtools(self, command: str, **parameters: Any) -> Any:
        body = {"cmd": command, "params": parameters}
        return self._call("POST", f"{self._session}/goog/cdp/execute", body)

    def size(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`, as the system of a reader would."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def complaints(self) -> list[str]:
        """What the page wrote to its console as a warning or an error, since last asked."""
        said = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in said if entry["level"] in ("WARNING", "SEVERE")]

    def requested(self) -> set[str]:
        """The addresses that the page has asked for, since last asked."""
        said = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in said]
        return {
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        }


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    process, port = started_driver()
    try:
        chromium = Browser(f"http://127.0.0.1:{port}")
        try:
            yield chromium
        finally:
            chromium.close()
    finally:
        process.terminate()
        process.wait()


def started_driver(program: str = "chromedriver") -> tuple[subprocess.Popen[str], int]:
    """The driver and its port.

    It is given one of IPv6 and takes the same of IPv4, where a connection of somebody else may
    have it: then it ends, and another try finds another port.
    """
    while True:
        process = subprocess.Popen(
            [program, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"started successfully on port (\d+)", line):
                return process, int(found[1])
        process.wait()
        if "port not available" not in said:
            raise RuntimeError(f"no browser: {said}")
