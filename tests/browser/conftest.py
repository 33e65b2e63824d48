"""A headless Chromium for the browser tests: `page`, and `traffic`, what it requested and complained of."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

_FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip them with a message where there is no browser."""
    executable = _chromium()
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)
            if executable is None:
                item.add_marker(pytest.mark.skip(reason="no Chromium found: install chromium to run browser tests"))


@dataclass
class Traffic:
    """What a page did: the addresses it requested, and the errors of its console and scripts."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests, with a user-data directory of its own (Playwright makes and removes it)."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_chromium(), args=_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page 1280 px wide, with no cookies or storage of other tests."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


@pytest.fixture
def traffic(page: Page) -> Traffic:
    """The requests and errors of `page`, from here on."""
    seen = Traffic()

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            seen.errors.append(message.text)

    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", on_console)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    return seen
