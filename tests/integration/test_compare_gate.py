"""`charact compare --fail-if`: exit statuses, files, and mistakes in one line."""

import re
import shlex
import sys
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


@pytest.mark.slow
def test_the_same_program_passes(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "same"), "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
    assert done == (0, "", "")


def test_quiet_tells_regressions_alone(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "slow"), "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{CASE}: regression: 100 ms to ")
    assert len(done.stderr.splitlines()) == 1


def test_times_of_one_run_each_need_consent(here: Callable, runs: Path, tmp_path: Path) -> None:
    base, slow = (f"{name}={next((runs / name).iterdir())}" for name in ("base", "slow"))
    refused = here("compare", base, slow, "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("error: base and slow have one run each, which cannot show how much runs vary: ")
    assert len(refused.stderr.splitlines()) == 1
    allowed = here("compare", base, slow, "--fail-if", "time > 1.05", "--allow-single", "--quiet", cwd=tmp_path)
    assert allowed.returncode == 1
    counted = here("compare", base, slow, "--fail-if", "peak_memory > 1.05", "--quiet", cwd=tmp_path)
    assert counted == (0, "", "")


_STAND_IN = """#!{python}
import os, random, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from support.compared import scattered

open("calls", "a").write(" ".join(sys.argv[1:]) + "\\n")
if "--fail" in sys.argv:
    sys.exit("error: no such model: use another")
out = Path(sys.argv[sys.argv.index("--out") + 1])
if "--elsewhere" not in sys.argv:
    scattered(out, {{"backward": 1.2}} if "--slow" in sys.argv else {{}}, seed=random.randrange(1000))
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program called charact that writes a record, and notes its calls."""
    path = tmp_path / "other version" / "charact"
    path.parent.mkdir()
    path.write_text(_STAND_IN.format(python=sys.executable, tests=str(Path(__file__).parents[1])))
    path.chmod(0o755)
    return path


def test_two_commands_run_by_turns_and_are_compared(here: Callable, stand_in: Path, tmp_path: Path) -> None:
    command = f"{shlex.quote(str(stand_in))} profile resnet50"
    done = here("compare", "--ab", command, f"{command} --slow", "--repeat", "2", cwd=tmp_path)
    assert done.returncode == 0
    (directory,) = (tmp_path / "comparisons").iterdir()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split(" ")[-1] == "--slow" for call in calls] == [False, True, True, False]
    assert calls[0].split(" ")[:4] == ["profile", "--out", str(directory.relative_to(tmp_path) / "a"), "--quiet"]
    assert len(list((directory / "b").iterdir())) == 2
    assert "slower" in done.stdout
    assert "Times by phase" in done.stdout
    assert re.search(r"^b 2/2: .* --slow, about \d+ s left$|^a 2/2: .*, about \d+ s left$", done.stdout, re.MULTILINE)
    again = here("compare", str(directory / "a"), str(directory / "b"), "--fail-if", "time > 1.05", "-q", cwd=tmp_path)
    assert again.returncode == 1


@pytest.mark.slow_variants
@pytest.mark.parametrize(("first", "message"), [
    ("charact profile 'mlp", "error: --ab \"charact profile 'mlp\": No closing quotation: quote it as for a shell"),
    ("python train.py", "error: --ab 'python train.py': write a command that measures"),
    ("charact report runs/x", "error: --ab 'charact report runs/x': write a command that measures"),
    ("charact profile mlp --out=there", "error: --ab 'charact profile mlp --out=there': leave out --out"),
    ("nowhere/charact profile mlp", "error: cannot start nowhere/charact (No such file or directory)"),
    ("{stand_in} profile mlp --fail", "ended with status 1: error: no such model: use another"),
    ("{stand_in} run --elsewhere", "leave out --out, which is set for it"),
])
def test_a_command_that_cannot_be_measured(
        here: Callable, stand_in: Path, tmp_path: Path, first: str, message: str) -> None:
    command = first.replace("{stand_in}", shlex.quote(str(stand_in)))
    done = here("compare", "--ab", command, "charact profile mlp", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "error: name runs to compare, or two commands to measure"),
    (["runs", "--ab", "charact profile mlp", "charact profile mlp"], "error: --ab measures the runs that it compares"),
])
def test_runs_or_commands(here: Callable, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = here("compare", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(message)


def test_explaining_names_the_phase_and_the_operator(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", str(runs / "base"), str(runs / "slow"), "--explain", cwd=tmp_path)
    assert done.returncode == 0
    operators = done.stdout.partition("Operators that account for the difference")[2].splitlines()
    assert re.match(r"backward +aten::mkldnn_convolution_backward ", operators[2])
    short = here("compare", str(runs / "base"), str(runs / "slow"), "--explain", "--top", "1", cwd=tmp_path)
    operators = short.stdout.partition("Operators that account for the difference")[2].splitlines()
    assert re.match(r"backward +aten::mkldnn_convolution_backward ", operators[2])
    assert re.search(r" \d+ more with smaller differences are left out: --top shows more rows\.$", operators[3])


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
    (["--fail-if", "time > 2", "--junit", "nowhere/j.xml"], "error: cannot write nowhere/j.xml (no such file or "
                                                            "directory): choose another place"),
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
