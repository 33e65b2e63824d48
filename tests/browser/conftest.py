"""A headless Chromium for the browser tests: `page`, and `traffic`, what it requested and complained of."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright
from support.programs import free_port
from support.served import Serve, Traffic, answers

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


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start real TensorBoard servers on free loopback ports; they are stopped, by process, when the test ends."""
    servers: list[subprocess.Popen[bytes]] = []

    def start(logdir: Path, *flags: str, path_prefix: str = "") -> str:
        port = free_port()
        address = f"http://127.0.0.1:{port}{path_prefix}/"
        command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", "--host=127.0.0.1", f"--port={port}",
                   f"--path_prefix={path_prefix}", *flags]  # fmt: skip
        with open(tmp_path / "tensorboard.log", "wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        servers.append(server)
        deadline = time.monotonic() + 60
        while not answers(address):
            assert server.poll() is None, (tmp_path / "tensorboard.log").read_text()
            assert time.monotonic() < deadline, "TensorBoard does not answer"
            time.sleep(0.1)
        return address

    yield start
    for server in servers:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture(scope="module", autouse=True)
def plain_figures_of_fixtures() -> None:
    """Draw the figures, which other tests replace by their texts."""


@pytest.fixture(autouse=True)
def plain_figures_of_tests() -> None:
    """Draw them in tests, too."""
