"""Takes the pictures of the documents from real runs: `make pictures`, in about five minutes on two idle cores.

Needs Chromium. The runs, the report's files and the server of TensorBoard are temporary.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
CHARACT = [sys.executable, "-m", "charact"]
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    """Run the workloads, and write every picture."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder)
        page = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS).new_page(
            viewport={"width": 1180, "height": 860}, color_scheme="light")
        take_profile(page, out)
        take_memory(page, out)
        take_comparison(page, out)
        take_tensorboard(page, out / "profile")


def take_profile(page: Page, out: Path) -> None:
    """Take the top of the report of the demonstration, a flame graph and a timeline."""
    charact("profile", "resnet", "--input-sizes", "32,224", "--out", "profile", place=out)
    page.goto((the_run(out / "profile") / "report.html").as_uri())
    save(page.screenshot(), "report")
    for name in ("flame-graph", "timeline"):
        save(page.locator(f"#r1-{name} .ch-block:visible").first.screenshot(), name)


def take_memory(page: Page, out: Path) -> None:
    """Take the figure of memory against image area."""
    charact("memory", "resnet18", "--input-sizes", "32:224:32", "--out", "memory", place=out)
    page.goto((the_run(out / "memory") / "report.html").as_uri())
    save(page.locator("#r1-memory .ch-block:has(figure)").first.screenshot(), "memory")


def take_comparison(page: Page, out: Path) -> None:
    """Take the top of a comparison: the same case with one and with two threads."""
    one, two = (f"charact profile resnet18 --input-sizes 64 --mode train --threads {number}" for number in (1, 2))
    charact("compare", "--ab", one, two, "--repeat", "5", "--out", "comparisons", place=out)
    (measured,) = (out / "comparisons").iterdir()
    page_file = out / "comparison.html"
    charact("compare", f"1 thread={measured / 'a'}", f"2 threads={measured / 'b'}", "--to", str(page_file))
    page.goto(page_file.as_uri())
    save(page.screenshot(), "comparison")


def take_tensorboard(page: Page, runs: Path) -> None:
    """Take the tab of TensorBoard."""
    with tensorboard(runs) as address:
        page.goto(address)
        page.frame_locator("iframe").locator("main[aria-busy=false] .ch-card").first.wait_for(timeout=60_000)
        save(page.screenshot(), "tensorboard")


@contextmanager
def tensorboard(runs: Path) -> Iterator[str]:
    """Serve a directory of runs on a free port of this machine; yield the address."""
    command = [*CHARACT, "tensorboard", str(runs), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            words = (word for line in server.stdout for word in line.split())
            yield next(word for word in words if word.startswith("http://"))
        finally:
            server.terminate()


def charact(*arguments: str, place: Path = HERE) -> None:
    """Run a command of charact in a directory; its progress goes to the terminal."""
    subprocess.run([*CHARACT, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=place)


def the_run(folder: Path) -> Path:
    """Return the only run in a directory."""
    (found,) = (path for path in folder.iterdir() if not path.name.startswith("."))
    return found


def save(png: bytes, name: str) -> None:
    """Write a picture in full color."""
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.png"
    Image.open(BytesIO(png)).convert("RGB").save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
