"""Makes the gallery of this machine, and the page that links all galleries: `make gallery MACHINE=name [DATA_DIR=…]`.

It runs `charact study all --quick` and the commands of the documents' pictures. It writes their reports, a picture of
the top of each, and the record of the demonstration to `reports/<machine>/`, and `gallery.json`, which lists them with
their commands. It needs Chromium.
`reports/index.html` is made from the `gallery.json` of every machine; `python reports/make_gallery.py --index` writes
only that page. The runs need idle cores and are temporary, except that of the demonstration.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined

from charact.record.schema import SCHEMA_VERSION

HERE = Path(__file__).parent
INDEX = "index.html"
LIST = "gallery.json"
RECORD = "run"
_CHARACT = [sys.executable, "-m", "charact"]


class Item(NamedTuple):
    """A report of the gallery: its file, its title, and the commands that make it."""

    file: str
    title: str
    commands: Sequence[str]


def items(data_dir: Path | None) -> list[Item]:
    """Return the reports of a machine, in order; the commands run in an empty directory, with the data in `data`."""
    data = "" if data_dir is None else " --data-dir data"
    two = [f"charact profile resnet18 --input-sizes 64 --mode train --threads {number} --out threads-{number}"
           for number in (1, 2)]
    return [
        Item("report.html", "ResNet-50 at 32 and 224 pixels: time, operators, layers, memory, utilization",
             ["charact profile resnet --input-sizes 32,224 --out profile"]),
        Item("studies.html", "Four published studies, repeated",
             [f"charact study all --quick --out studies{data}"]),
        Item("memory.html", "Memory of ResNet-18 against the image area",
             ["charact memory resnet18 --input-sizes 32:224:32 --out memory"]),
        Item("comparison.html", "ResNet-18 with two threads against one",
             [*two, "charact compare '1 thread=threads-1' '2 threads=threads-2' --to comparison.html"]),
    ]


def make(machine: str, data_dir: Path | None) -> None:
    """Run the commands, and write the reports, the list and the page.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    folder = HERE / machine
    folder.mkdir(exist_ok=True)
    entries = []
    with TemporaryDirectory() as temporary:
        if data_dir is not None:
            (Path(temporary) / "data").symlink_to(data_dir.resolve())
        for item in items(data_dir):
            begun_s = time.monotonic()
            for command in item.commands:
                _run(command, temporary)
            shutil.copyfile(_made(Path(temporary), item.file), folder / item.file)
            entries.append({"file": item.file, "title": item.title, "seconds": round(time.monotonic() - begun_s),
                            "commands": [command.replace(" --out profile", "") for command in item.commands]})
        _keep_record(Path(temporary), folder)
    take_pictures(folder)
    (folder / LIST).write_text(json.dumps(_facts(folder / RECORD) | {"reports": entries}, indent=1) + "\n",
                               encoding="utf-8")
    write_index()


def _run(command: str, out: str) -> None:
    """Run a command of charact; a study whose cases did not all succeed still has a report."""
    import shlex

    print(f"$ {command}", flush=True)
    words = shlex.split(command)[1:]
    status = subprocess.run([*_CHARACT, *words], cwd=out, check=False).returncode
    if status > 1 or (status and words[0] != "study"):
        raise subprocess.CalledProcessError(status, command)


def _made(out: Path, file: str) -> Path:
    """Return the report that the commands of an item wrote."""
    places = {"report.html": "profile/*/report.html", "studies.html": "studies/report.html",
              "memory.html": "memory/*/report.html", "comparison.html": "comparison.html"}
    (found,) = out.glob(places[file])
    return found


def _keep_record(out: Path, folder: Path) -> None:
    """Replace the record of the demonstration, without its traces and views."""
    (run,) = (path for path in (out / "profile").iterdir() if not path.name.startswith("."))
    shutil.rmtree(folder / RECORD, ignore_errors=True)
    (folder / RECORD).mkdir()
    for path in [run / "run.json", *run.glob("*.parquet")]:
        shutil.copyfile(path, folder / RECORD / path.name)


def take_pictures(folder: Path) -> None:
    """Write the top of each report of a folder as `<report>.png`."""
    from playwright.sync_api import sync_playwright

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page(viewport={"width": 1180, "height": 860}, color_scheme="light")
        for report in sorted(folder.glob("*.html")):
            page.goto(report.resolve().as_uri())
            page.screenshot(path=report.with_suffix(".png"))
        browser.close()


def _facts(run: Path) -> dict[str, Any]:
    """Return the machine, the versions and the day of a record."""
    manifest = json.loads((run / "run.json").read_text(encoding="utf-8"))
    machine, software = manifest["machine"], manifest["software"]
    cpu, gpus = machine.get("cpu") or {}, [gpu["name"] for gpu in machine.get("gpus") or []]
    device = " + ".join([f"{cpu.get('model')}, {cpu.get('num_usable_cores')} cores", *gpus])
    return {"machine": device, "schema_version": manifest["schema_version"], "charact": software["charact"],
            "torch": software["torch"], "day": manifest["started"][:10]}


def galleries() -> dict[str, dict[str, Any]]:
    """Return the list of every machine by the name of its folder."""
    return {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob(f"*/{LIST}"))}


def problems() -> list[str]:
    """Return what is wrong with the galleries: an older schema, a report that is missing, not listed or not linked."""
    found = [] if galleries() else [f"no folder of reports/ has a {LIST}: make gallery MACHINE=name"]
    index = (HERE / INDEX).read_text(encoding="utf-8") if (HERE / INDEX).is_file() else ""
    linked = set(re.findall(r'href="([^"]*)"', index))
    for machine, listed in galleries().items():
        renew = f"make gallery MACHINE={machine}"
        recorded = json.loads((HERE / machine / RECORD / "run.json").read_text(encoding="utf-8"))["schema_version"]
        if min(listed["schema_version"], recorded) < SCHEMA_VERSION:
            found.append(f"reports/{machine} has schema {min(listed['schema_version'], recorded)}, records have "
                         f"{SCHEMA_VERSION}: {renew}")
        names = {entry["file"] for entry in listed["reports"]}
        files = {path.name for path in (HERE / machine).glob("*.html")}
        found += [f"reports/{machine}/{name} is missing: {renew}" for name in sorted(names - files)
                  if name.endswith(".html")]
        found += [f"reports/{machine}/{name} is not in {LIST}: {renew}, or remove it" for name in sorted(files - names)]
        found += [f"reports/{machine}/{name} has no picture: {renew}" for name in sorted(files & names)
                  if not (HERE / machine / name).with_suffix(".png").is_file()]
        found += [f"reports/{INDEX} has no link to {machine}/{name}: python reports/make_gallery.py --index"
                  for name in sorted(names) if f"{machine}/{name}" not in linked]
    if index and index != index_page(galleries()):
        found.append(f"reports/{INDEX} is not that of the lists: python reports/make_gallery.py --index")
    return found


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Reports of charact</title>
<style>
body { max-width: 960px; margin: 32px auto; padding: 0 16px; font: 16px/1.5 system-ui, sans-serif; }
h2 { margin-top: 40px; }
ul { display: grid; grid-template-columns: repeat(auto-fit, minmax(280px, 1fr)); gap: 24px; }
ul { padding: 0; list-style: none; }
img { display: block; width: 100%; height: auto; margin-bottom: 6px; border: 1px solid #8884; border-radius: 8px; }
pre { margin: 4px 0; white-space: pre-wrap; font-size: 13px; }
small { opacity: 0.8; }
</style>
</head>
<body>
<h1>Reports of charact</h1>
<p>What charact wrote on real machines, with the commands. README.md next to this page describes the machines.</p>
{% for name, listed in galleries.items() %}
<h2>{{ name }}</h2>
<p>{{ listed.machine }}; charact {{ listed.charact }}, torch {{ listed.torch }}, {{ listed.day }}.</p>
<ul>
{% for entry in listed.reports %}
{% set picture = entry.file | replace(".html", ".png") %}
<li><a href="{{ name }}/{{ entry.file }}">
<img src="{{ name }}/{{ picture }}" alt="" width="1180" height="860" loading="lazy">{{ entry.title }}</a>
{% if entry.seconds %}<small>({{ entry.seconds }} s)</small>{% endif %}

{% for command in entry.commands %}
<pre><code>{{ command }}</code></pre>
{% endfor %}
</li>
{% endfor %}
</ul>
{% if "studies.html" not in listed.reports | map(attribute="file") | list %}
<p>The published studies have not been repeated on this machine yet.</p>
{% endif %}
{% endfor %}
</body>
</html>
"""


def index_page(lists: dict[str, dict[str, Any]]) -> str:
    """Return the page that links the reports of all machines."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
                              keep_trailing_newline=True)
    return environment.from_string(_PAGE).render(galleries=lists)


def write_index() -> None:
    """Write the page."""
    (HERE / INDEX).write_text(index_page(galleries()), encoding="utf-8")
    print(f"Wrote {HERE / INDEX}")


def main() -> None:
    """Make the gallery of a machine, or the page alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", nargs="?", help="name of the folder, such as xeon-2-cores")
    parser.add_argument("--data-dir", type=Path, help="directory of real data sets, for the studies")
    parser.add_argument("--index", action="store_true", help="only write the page")
    options = parser.parse_args()
    if options.index:
        write_index()
    elif options.machine is None or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", options.machine):
        parser.error("name the machine in lower case, as in make gallery MACHINE=xeon-2-cores")
    else:
        make(options.machine, options.data_dir)


if __name__ == "__main__":
    main()
