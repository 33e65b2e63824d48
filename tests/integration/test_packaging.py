"""The wheel and the source distribution hold all that charact needs, and work outside of a clone."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

import charact

ROOT = Path(__file__).parents[2]
SOURCES = ("charact", "workloads")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT, DATA = SETTINGS["project"], SETTINGS["tool"]["setuptools"]["package-data"]
FACTS = """
import json
from importlib.metadata import entry_points
from pathlib import Path
import charact, charact.workloads
from charact.ops import all_suites
from charact.record.published import reference
from charact.workload.registry import all_workloads

[plugin] = [one for one in entry_points(group="tensorboard_plugins") if one.name == "charact"]
tab = plugin.load()
static = Path(__import__(tab.__module__, fromlist=["x"]).__file__).parent
print(json.dumps({
    "place": charact.__file__, "version": charact.__version__, "tab": tab.plugin_name,
    "static": sorted(path.name for path in static.iterdir() if path.suffix in (".js", ".css")),
    "problems": {name: len(suite.problems()) for name, suite in all_suites().items()},
    "workloads": sorted(all_workloads()), "published": len(reference("aalto-1").cases),
}))
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(one) for one in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution and its wheel: those in CHARACT_DIST, else built from a copy of the sources."""
    if folder := os.environ.get("CHARACT_DIST"):
        [wheel], [sdist] = (ROOT / folder).glob("*.whl"), (ROOT / folder).glob("*.tar.gz")
        return {"wheel": wheel, "sdist": sdist}
    clone = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", clone / "dist", clone, cwd=clone.parent)
    [wheel], [sdist] = clone.glob("dist/*.whl"), clone.glob("dist/*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def installed(request: pytest.FixtureRequest, distributions: dict[str, Path],
              tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts of a virtual environment with one of them, and the libraries of this one."""
    place = tmp_path_factory.mktemp(request.param)
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    [packages] = place.glob("lib/python*/site-packages")
    # Python reads no .pth file in these folders, so that the clone stays out of reach.
    libraries = dict.fromkeys([str(Path(torch.__file__).parents[1]), sysconfig.get_path("purelib")])
    (packages / "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
    run(sys.executable, "-m", "pip", "--python", place / "bin" / "python", "install", "--quiet", "--no-index",
        "--no-deps", "--no-build-isolation", "--ignore-installed", "--disable-pip-version-check",
        distributions[request.param], cwd=place)
    return place / "bin"


def of_the_package() -> set[str]:
    """Names of all files of the package in the clone."""
    found = {path.relative_to(ROOT).as_posix() for name in SOURCES for path in (ROOT / name).rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}
    assert {"charact/views/html/templates/report.html.j2", "charact/ops/suites/figures/gemm.csv"} < found
    return found


def test_every_data_file_is_named_by_the_project() -> None:
    """A quick look; the next tests build and install."""
    named = {path.relative_to(ROOT).as_posix() for package, patterns in DATA.items() for pattern in patterns
             for path in (ROOT / package.replace(".", "/")).glob(pattern)}
    assert named == {name for name in of_the_package() if not name.endswith(".py")}


@pytest.mark.parametrize("name", [path.name for path in WORKFLOWS])
def test_workflows_name_files_that_exist_and_no_host(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    assert yaml.safe_load(text)["jobs"]
    paths = set(re.findall(r"(?:tests|docs/examples|\.ci)/[\w/.]+|constraints\.txt", text))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert re.findall(r"https?:|\w\.(?:org|com|io)\b", text) == []


def test_actions_are_pinned_by_commit_with_one_version_each() -> None:
    """A tag can be moved to other code; the comment names the version for people and for tools that renew it."""
    used = {line.strip() for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines()
            if "uses:" in line}
    pinned = [re.fullmatch(r"(?:- )?uses: ([\w-]+/[\w-]+)@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in used]
    names = [found[1] for found in pinned if found]
    assert len(names) == len(used)
    assert sorted(names) == sorted(set(names))
    assert "actions/checkout" in names


def test_workflows_test_every_version_of_python() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    versions = {one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert set(jobs["linux"]["strategy"]["matrix"]["python"]) == versions


def test_the_version_is_written_once() -> None:
    written = f'"{PROJECT["version"]}"'
    assert charact.__version__ == PROJECT["version"]
    files = [*ROOT.glob("charact/**/*.py"), ROOT / "setup.py", *ROOT.glob("docs/*.py")]
    assert [str(path) for path in files if re.search(rf"version.*{re.escape(written)}", path.read_text("utf-8"))] == []


def test_the_citation_has_the_version_and_its_date() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(rf"^## \[{re.escape(PROJECT['version'])}\] - (\S+)$", changes, re.MULTILINE)
    assert released is None or citation["date-released"].isoformat() == released[1]


@pytest.mark.slow
def test_the_wheel_holds_every_file(distributions: dict[str, Path]) -> None:
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert set(names) == {re.sub("^workloads/", "charact/workloads/", name) for name in of_the_package()}


@pytest.mark.slow
def test_the_source_distribution_holds_every_file(distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert of_the_package() | {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.startswith(("tests", "docs", "runs"))]


@pytest.mark.slow
def test_commands_run_outside_of_the_clone(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "charact", "--version", cwd=tmp_path) == f"charact {charact.__version__}\n"
    assert "resnet50" in run(installed / "charact", "list", "workloads", cwd=tmp_path)
    run(installed / "charact", "profile", "mlp", "--mode", "infer", "--max-iterations", 6, "--max-seconds", 1,
        "--counters", "none", cwd=tmp_path)
    [page] = tmp_path.glob("runs/*-mlp-*/report.html")
    assert "<style>" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_plugins_and_data_are_found(installed: Path, tmp_path: Path) -> None:
    facts = json.loads(run(installed / "python", "-c", FACTS, cwd=tmp_path))
    assert Path(facts["place"]).is_relative_to(installed.parent)
    assert facts["version"] == charact.__version__
    assert facts["tab"] == "charact"
    assert facts["static"] == ["index.js", "style.css"]
    assert facts["problems"]["deepbench"] > 100
    assert {"resnet50", "mlp", "seq2seq"} <= set(facts["workloads"])
    assert facts["published"] > 0
