"""Pages that a test serves and opens in a browser."""

import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import ConsoleMessage, FrameLocator, Page, Response, expect

Serve = Callable[..., str]


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


@dataclass
class Traffic:
    """What a page did: the addresses it requested, and the errors of its console and scripts."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def open_tab(page: Page, address: str) -> FrameLocator:
    page.goto(f"{address}#charact")
    tab = page.frame_locator("iframe")
    expect(tab.locator("main")).to_have_attribute("aria-busy", "false", timeout=60_000)
    return tab


def complaints(page: Page) -> list[str]:
    """What goes wrong on the page from here on. TensorBoard itself asks for its fonts without the path prefix."""
    found: list[str] = []

    def on_response(response: Response) -> None:
        if response.status >= 400 and "/font-roboto/" not in response.url:
            found.append(f"{response.status} {response.url}")

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            found.append(message.text)

    page.on("response", on_response)
    page.on("console", on_console)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found
