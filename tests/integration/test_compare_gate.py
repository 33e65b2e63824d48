"""`charact compare --fail-if`: exit statuses, files, and mistakes in one line."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.compared import CASE, scattered

from charact.analysis.compare.thresholds import parse
from charact.analysis.efficiency import flop_utilization
from charact.machine.datasheets import Datasheet
from charact.record.in_progress import write_manifest


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs a side: `base` and `same` of one program, `slow` with a backward a fifth slower."""
    out = tmp_path_factory.mktemp("sides")
    for number, (name, slowness) in enumerate([("base", {}), ("same", {}), ("slow", {"backward": 1.2})]):
        for repeat in range(2):
            scattered(out / name, slowness, seed=10 * number + repeat)
    return out


def test_a_regression_ends_with_1_and_is_told_everywhere(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", runs / "base", runs / "slow", "--fail-if", "time > 1.05", "--fail-if",
                "accuracy < 0.99", "--summary", "summary.md", "--junit", "junit.xml", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 regression; 1 n/a" in done.stdout
    assert (tmp_path / "summary.md").read_text().startswith("# charact: 1 regression; 1 n/a (slow against base)")
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (root.get("failures"), root.get("skipped")) == ("1", "1")


def test_quiet_tells_regressions_alone(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", runs / "base", runs / "same", "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
    assert done == (0, "", "")
    done = here("compare", runs / "base", runs / "slow", "--fail-if", "time > 1.05", "--quiet", cwd=tmp_path)
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


@pytest.mark.parametrize(("rule", "status"), [("mfu < 0.6", 1), ("mfu < 0.4", 0)])
def test_a_limit_of_a_value_judges_one_run(here: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str,
                                           status: int) -> None:
    """195 GFLOP in 0.1 s on a device with a peak of 3.9 TFLOP/s."""
    monkeypatch.setattr(flop_utilization, "datasheet", lambda name: Datasheet({"fp32": 3.9e12}, 1e9, "by hand"))
    run = scattered(tmp_path, noise_frac=0.001)
    described = json.loads((run.path / "run.json").read_text())
    described["cases"][0]["passes"]["flop"]["recomputed_flop"] = 0.0
    write_manifest(run.path, described)
    done = here("compare", run.path, "--fail-if", rule, "--summary", "summary.md", "--junit", "junit.xml", cwd=tmp_path)
    assert done.returncode == status, done
    assert ("1 regression" in done.stdout) == bool(status)
    counted = "1 regression" if status else "no regressions; 1 ok"
    assert (tmp_path / "summary.md").read_text().startswith(f"# charact: {counted} (")
    assert ElementTree.parse(tmp_path / "junit.xml").getroot().get("failures") == str(status)
    refused = here("compare", run.path, "--fail-if", "time > 1.05", cwd=tmp_path)
    assert (refused.returncode, "at least two groups" in refused.stderr) == (2, True)


_STAND_IN = """#!{python}
import os, random, signal, sys, time
from pathlib import Path

open("calls", "a").write(" ".join(sys.argv[1:]) + "\\n")
if "--interrupt" in sys.argv and len(open("calls").readlines()) == 8:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)
if "--fail" in sys.argv:
    sys.exit("error: no such model: use another")
out = Path(sys.argv[sys.argv.index("--out") + 1])
made = sorted(Path("made", "slow" if "--slow" in sys.argv else "base").glob("*"))
if made:
    made[0].rename(out / made[0].name)
elif "--elsewhere" not in sys.argv:
    sys.path.insert(0, {tests!r})
    from support.compared import scattered
    scattered(out, {{"backward": 1.2}} if "--slow" in sys.argv else {{}}, seed=random.randrange(1000))
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A program called charact that writes a record, or moves one of those in `made`, and notes its calls."""
    path = tmp_path / "other version" / "charact"
    path.parent.mkdir()
    path.write_text(_STAND_IN.format(python=sys.executable, tests=str(Path(__file__).parents[1])))
    path.chmod(0o755)
    return path


def test_two_commands_run_by_turns_and_are_compared(
        here: Callable, stand_in: Path, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "made")
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
    assert re.search(r"^b 2/2: .* --slow, about \d+ s left$|^a 2/2: .*, about \d+ s left$", done.stderr, re.MULTILINE)
    assert "Stopped after 2 turns, one run of each in a turn, as --repeat asks for." in done.stdout
    assert json.loads((directory / "turns.json").read_text()) == {
        "num_turns": 2, "ending": "repeat", "max_minutes": None}
    again = here("compare", str(directory / "a"), str(directory / "b"), "--fail-if", "time > 1.05", "-q", cwd=tmp_path)
    assert again.returncode == 1


@pytest.mark.slow
def test_turns_end_once_the_times_differ_clearly(here: Callable, stand_in: Path, tmp_path: Path) -> None:
    command = f"{shlex.quote(str(stand_in))} profile resnet50"
    done = here("compare", "--ab", command, f"{command} --slow", "--to", "answer.md", "--fail-if", "time > 1.05",
                cwd=tmp_path)
    assert done.returncode == 1
    (directory,) = (tmp_path / "comparisons").iterdir()
    facts = json.loads((directory / "turns.json").read_text())
    assert facts["ending"] == "decided"
    assert 4 <= facts["num_turns"] <= 6
    assert len((tmp_path / "calls").read_text().splitlines()) == 2 * facts["num_turns"]
    ending = f"Stopped after {facts['num_turns']} turns, one run of each in a turn: each ratio’s interval excludes 1"
    for text in (done.stdout, (tmp_path / "answer.md").read_text()):
        assert ending in text
        assert "every turn of b was slower than every turn of a" in text
    assert "b 3: " in done.stderr
    again = here("compare", str(directory / "a"), str(directory / "b"), "--json", cwd=tmp_path)
    turns = json.loads(again.stdout)["turns"]
    assert turns == facts | {"decisions": [
        {"case": CASE, "side": "b", "decision": "slower", "separation": "slower"}]}


@pytest.mark.slow
def test_equal_programs_end_with_the_largest_possible_difference(
        here: Callable, stand_in: Path, tmp_path: Path) -> None:
    command = f"{shlex.quote(str(stand_in))} profile resnet50"
    done = here("compare", "--ab", command, command, "--json", cwd=tmp_path)
    assert done.returncode == 0
    turns = json.loads(done.stdout)["turns"]
    assert turns["decisions"] == [{"case": CASE, "side": "b", "decision": "same", "separation": None}]
    (directory,) = (tmp_path / "comparisons").iterdir()
    again = here("compare", f"old={directory / 'a'}", f"new={directory / 'b'}", cwd=tmp_path)
    assert "no difference larger than 3 %: the time of new is " in again.stdout
    page = (directory / "comparison.html").read_text(encoding="utf-8")
    assert "no difference above 3 %" in page.replace("\u00a0", " ")


@pytest.mark.slow
def test_an_interrupted_comparison_answers_from_its_finished_turns(stand_in: Path, tmp_path: Path) -> None:
    command = f"{shlex.quote(str(stand_in))} profile resnet50 --interrupt"
    done = subprocess.run([sys.executable, "-m", "charact", "compare", "--ab", command, f"{command} --slow", "--repeat",
                           "9"], cwd=tmp_path, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert "Stopped after 3 turns, one run of each in a turn: interrupted." in done.stdout
    (directory,) = (tmp_path / "comparisons").iterdir()
    assert [len(list(path.iterdir())) for path in (directory / "a", directory / "b")] == [3, 3]
    assert len(list((directory / "unfinished" / "b").iterdir())) == 1


_SLEEPING = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader

class Sleeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        time.sleep({seconds})
        return self.layer(x)

model = Sleeping()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in DataLoader(torch.randn(80, 4), batch_size=4):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_a_sleeping_script_of_a_third_is_decided_in_few_turns(here: Callable, tmp_path: Path) -> None:
    for name, seconds in (("long.py", 0.06), ("short.py", 0.02)):
        (tmp_path / name).write_text(_SLEEPING.format(seconds=seconds))
    options = "--iterations 10 --stop"
    done = here("compare", "--ab", f"charact run {options} long.py", f"charact run {options} short.py", "--json",
                cwd=tmp_path)
    assert done.returncode == 0
    turns = json.loads(done.stdout)["turns"]
    assert turns["num_turns"] <= 5
    assert [(row["decision"], row["separation"]) for row in turns["decisions"]] == [("faster", "faster")]


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
    done = here("compare", "--ab", command, "charact profile mlp", "--quiet", cwd=tmp_path, status=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    assert message in done.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "error: name runs to compare, or two commands to measure"),
    (["runs", "--ab", "charact profile mlp", "charact profile mlp"], "error: --ab measures the runs that it compares"),
    (["--ab", "charact profile mlp", "charact profile mlp", "--repeat", "3", "--max-minutes", "1"],
     "error: --repeat gives the number of turns"),
    (["absent", "absent", "--fail-if", "time > 2", "--summary", "nowhere/file"],  # before the work
     "error: cannot write nowhere/file (no such file or directory): choose another place\n"),
    (["absent", "absent", "--fail-if", "time > 2", "--junit", "nowhere/file"], "error: cannot write nowhere/file"),
])
def test_what_cannot_be_compared_is_refused(refused: Callable, arguments: list[str], message: str) -> None:
    refused("compare", *arguments, said=message)


def test_explaining_names_the_phase_and_the_operator(here: Callable, runs: Path, tmp_path: Path) -> None:
    done = here("compare", runs / "base", runs / "slow", "--explain", cwd=tmp_path)
    assert done.returncode == 0
    operators = done.stdout.partition("Operators that account for the difference")[2].splitlines()
    assert re.match(r"backward +aten::mkldnn_convolution_backward ", operators[2])
    short = here("compare", runs / "base", runs / "slow", "--explain", "--top", "1", cwd=tmp_path)
    operators = short.stdout.partition("Operators that account for the difference")[2].splitlines()
    assert re.match(r"backward +aten::mkldnn_convolution_backward ", operators[2])
    assert re.search(r" \d+ more with smaller differences are left out: --top shows more rows\.$", operators[3])


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
def test_mistakes_are_one_line(refused: Callable, runs: Path, tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "there.md").write_text("kept")
    refused("compare", runs / "base", runs / "same", "--quiet", *options, said=message)
    assert (tmp_path / "there.md").read_text() == "kept"


def test_the_rules_of_the_documentation_can_be_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "regression-gate.md").read_text(encoding="utf-8")
    rules = re.findall(r'--fail-if "([^"]+)"', text) + re.findall(r"`(\S+ [<>] \S+)`", text)
    assert len(rules) >= 10
    for rule in rules:
        parse(rule)
