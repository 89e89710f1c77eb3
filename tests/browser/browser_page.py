"""Headless Chromium, driven by Playwright: for tests that look at a page as a user does."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
SECONDS = 300  # a busy machine takes a minute to show a large page
# No sandbox: that of Chromium needs a user who is not root, or namespaces that containers lack.
FLAGS = ["--no-sandbox", "--disable-gpu"]


@dataclass
class Seen:
    """A page and what its making showed. `requests`: every address that was asked for, data inside
    of the page aside; those of other machines are refused."""

    page: object
    requests: list[str] = field(default_factory=list)
    console_errors: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.exceptions.append(str(error)))
        self.page.on("request", self._request)
        self.page.route(_is_elsewhere, lambda route: route.abort())

    def _console(self, message) -> None:
        if message.type == "error":
            self.console_errors.append(message.text)

    def _request(self, request) -> None:
        if urlsplit(request.url).scheme not in ("data", "blob"):
            self.requests.append(request.url)


def _is_elsewhere(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1"


@contextmanager
def opened(width: int = 1280, height: int = 760) -> Iterator[Seen]:
    """An empty page. Without a Chromium the test is skipped, and in CI fails."""
    if CHROMIUM is None and not os.environ.get("CI"):
        pytest.skip("no Chromium: install Debian's chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(SECONDS * 1000)
        try:
            yield Seen(page)
        finally:
            browser.close()
