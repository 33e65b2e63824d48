"""`charact compare --fail-if`: exit statuses, files, and mistakes in one line."""

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.compared import CASE, scattered
from support.records import write_training

from charact.analysis.compare.thresholds import parse


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs a side: `base` and `same` of one program, `slow` with a backward a fifth slower."""
    out = tmp_path_factory.mktemp("sides")
    for number, (name, slowness) in enumerate([("base", {}), ("same", {}), ("slow", {"backward": 1.2})]):
        for repeat in range(2):
            scattered(out / name, slowness, seed=10 * number + repeat)
    return out


def test_a_regression_ends_with_1_and_is_told_everywhere(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "slow"), "--fail-if", "time > 1.05", "--fail-if",
                "accuracy < 0.99", "--summary", "summary.md", "--junit", "junit.xml", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 regression; 1 n/a" in done.stdout
    assert (tmp_path / "summary.md").read_text().startswith("# charact: 1 regression; 1 n/a (slow against base)")
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("failures"), root.get("skipped")) == ("1", "1")


def test_the_same_program_passes(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "same"), "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
    assert done == (0, "", "")


def test_quiet_tells_regressions_alone(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "slow"), "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{CASE}: regression: 100 ms to ")
    assert len(done.stderr.splitlines()) == 1


def test_explaining_names_the_phase_and_the_operator(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "slow"), "--explain", cwd=tmp_path)
    assert done.returncode == 0
    operators = done.stdout.partition("Operators that account for the difference")[2].splitlines()
    assert re.match(r"backward +aten::mkldnn_convolution_backward ", operators[2])


def test_what_has_no_iterations_is_not_explained_and_says_so(here: Callable, tmp_path: Path) -> None:
    run = str(write_training(tmp_path, diverged=False))
    done = here("compare", f"a={run}", f"b={run}", "--explain", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.count("n/a (no iterations were timed in both groups)") == 2


@pytest.mark.parametrize(("options", "message"), [
    (["--fail-if", "time >> 1"], "error: threshold 'time >> 1', character 7"),
    (["--fail-if", "accuracy < 0.9"], "error: no threshold could be checked (accuracy < 0.9: not measured)"),
    (["--junit", "new.xml"], "error: --junit writes results of thresholds: give one, as in --fail-if"),
    (["--summary", "new.md"], "error: --summary writes results of thresholds"),
    (["--fail-if", "time > 2", "--summary", "there.md"], "error: there.md exists: --force overwrites it"),
    (["--fail-if", "time > 2", "--junit", "there.md"], "error: there.md exists: --force overwrites it"),
    (["--fail-if", "time > 2", "--junit", "nowhere/j.xml"], "error: cannot write nowhere/j.xml (no such file or "
                                                            "directory): choose another place"),
    (["--fail-if", "time > 2", "--summary", "."], "error: . is a directory: name a file"),
    (["--fail-if", "time > 2", "--summary", "new.md", "--junit", "./new.md"],
     "error: new.md is given twice: --to, --summary and --junit need different files"),
    (["--fail-if", "time > 2", "--to", "new.md", "--summary", "new.md"], "error: new.md is given twice"),
])  # fmt: skip
def test_mistakes_are_one_line(here: Callable, runs: Path, tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "there.md").write_text("kept")
    done = here("compare", str(runs / "base"), str(runs / "same"), "--quiet", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "there.md").read_text() == "kept"


@pytest.mark.parametrize("option", ["--summary", "--junit"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(here: Callable, tmp_path: Path, option: str) -> None:
    done = here("compare", "absent", "absent", "--fail-if", "time > 2", option, "nowhere/file", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: cannot write nowhere/file (no such file or directory): choose another place\n"
    assert list(tmp_path.iterdir()) == []


def test_force_overwrites(here: Callable, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("old")
    done = here("compare", str(runs / "base"), str(runs / "same"), "--fail-if", "time > 2", "--summary", "there.md",
                "--force", cwd=tmp_path)
    assert done.returncode == 0
    assert "no regressions; 1 ok" in (tmp_path / "there.md").read_text()


def test_the_rules_of_the_documentation_can_be_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "regression-gate.md").read_text(encoding="utf-8")
    rules = re.findall(r'--fail-if "([^"]+)"', text) + re.findall(r"`(\S+ [<>] \S+)`", text)
    assert len(rules) >= 10
    for rule in rules:
        parse(rule)
