"""A browser without a window, for the tests of pages; a test that asks for it is skipped where none is installed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def opened() -> Iterator[Any]:
    """The driver of a browser with a profile of its own."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser: install chromium and chromium-driver")
    selenium = pytest.importorskip("selenium", reason="no driver of browsers: pip install selenium")
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.chrome.webdriver import WebDriver

    assert selenium
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = browser
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        found = WebDriver(options, Service(driver))
        try:
            yield found
        finally:
            found.quit()


def show(driver: Any, file: Path, width: int = 1200, height: int = 900, *, is_dark: bool = False) -> None:
    """Load a page into a window of this size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(file.as_uri())
