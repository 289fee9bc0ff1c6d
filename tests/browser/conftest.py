"""A real Chromium, one for all tests; skipped with its reason where there is none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WIDTH, HEIGHT = 1280, 900


def _found(*names: str) -> str:
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no {names[0]} on this machine: `make browser` installs it on Debian")
    return path


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """The browser, headless, with logs of console and network."""
    options = webdriver.ChromeOptions()
    options.binary_location = _found("chromium", "chromium-browser", "google-chrome")
    service = Service(_found("chromedriver"), env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    for flag in [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--force-device-scale-factor=1",
        "--enable-precise-memory-info",
        f"--user-data-dir={profile}",
        f"--window-size={WIDTH},{HEIGHT}",
    ]:
        options.add_argument(flag)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("no_proxy", "*")
        patch.setenv("NO_PROXY", "*")
        try:
            driver = webdriver.Chrome(options=options, service=service)
        except WebDriverException as fault:
            pytest.skip(f"Chromium does not start here: {fault.msg}")
        try:
            yield driver
        finally:
            driver.quit()


class Page:
    """A report in the browser. Waits are for conditions; the longest is generous, and reached only by a failure."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, report: Path, address: str = "") -> None:
        """Open the file anew, also if it is open already."""
        self.driver.get("about:blank")
        self.logs()
        self.driver.get(f"{report.as_uri()}{address}")
        self.wait("return !!window.report")
        self.settled()

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: str) -> None:
        WebDriverWait(self.driver, 60, poll_frequency=0.02).until(lambda _: self.js(condition), condition)

    def settled(self) -> None:
        """Wait until what is in view does not move from one frame to the next."""
        self.driver.execute_async_script(
            """const done = arguments[0], view = window.report.view;
            let same = 0, last = "";
            const frame = () => {
              const now = [view.from, view.to, view.chosen, view.key].join();
              same = now === last ? same + 1 : 0; last = now;
              if (same > 2) done(); else requestAnimationFrame(frame);
            };
            frame();"""
        )

    def keys(self, *keys: str) -> None:
        """Type into the timeline, one after the other."""
        timeline = self.driver.find_element(By.ID, "timeline")
        for key in keys:
            timeline.send_keys(key)
        self.settled()

    def text(self, selector: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def span(self) -> tuple[float, float]:
        start, end = self.js("return [report.view.from, report.view.to]")
        return start, end

    @property
    def chosen(self) -> int:
        """Index of the chosen operation, -1 if none is."""
        return int(self.js("return report.view.chosen < 0 ? -1 : report.ops.index[report.view.chosen]"))

    def logs(self) -> tuple[list[str], list[str]]:
        """Return what the console said and which addresses were asked for, since the last call."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [
            event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"
        ]
        return said, [address for address in asked if not address.startswith("data:")]


@pytest.fixture
def page(chromium: webdriver.Chrome) -> Page:
    return Page(chromium)


__all__ = ["HEIGHT", "WIDTH", "Keys", "Page"]
