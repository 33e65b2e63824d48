"""Diffs that add a remedy's arguments to a call: they apply, and change that call alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.remedied import chosen

from charact.analysis.findings._finding import Place
from charact.remedies.patch import unified_diff
from charact.remedies.process import Command
from charact.remedies.program import Program
from charact.remedies.remedy import Setting


def setting(line: int, *, name: str = "Adam", added: str = "fused=True", file: str = "train.py") -> Setting:
    return Setting("some", {}, added, f"{name}(…, {added})", Place(file, line), added)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def patched(here: Path, text: str, *settings: Setting) -> str:
    """Return what `patch` makes of a file; all settings must be in the diff."""
    path = here / "train.py"
    path.write_bytes(text.encode())
    diff, left_out = unified_diff(settings, here)
    assert left_out == []
    subprocess.run(["patch", "--binary", "-p1"], input=diff.encode(), cwd=here, check=True, capture_output=True)
    new = path.read_bytes().decode()
    ast.parse(new)
    return new


@pytest.mark.parametrize(("before", "after"), [
    ("o = Adam(p, lr=1)\n", "o = Adam(p, lr=1, fused=True)\n"),
    ("o = torch.optim.Adam(p)\n", "o = torch.optim.Adam(p, fused=True)\n"),
    ("o = Adam()\n", "o = Adam(fused=True)\n"),
    ("o = Adam(p, lr=1,)\n", "o = Adam(p, lr=1, fused=True,)\n"),
    ("o = Adam(\n    p,\n    lr=1,  # rate (all)\n)\n", "o = Adam(\n    p,\n    lr=1, fused=True,  # rate (all)\n)\n"),
    ("o = Adam(p, fused=False, lr=1)\n", "o = Adam(p, fused=True, lr=1)\n"),
    ("o = Adam(p, fused = None)\n", "o = Adam(p, fused=True)\n"),
    ("o = f('grün', '日本', Adam(p))\n", "o = f('grün', '日本', Adam(p, fused=True))\n"),
    ("o = Adam(p, lr=g(1))  # Adam(x)\nq = Adam(p)\n", "o = Adam(p, lr=g(1), fused=True)  # Adam(x)\nq = Adam(p)\n"),
    ("o = Adam(p, lr=1), SGD(p)\n", "o = Adam(p, lr=1, fused=True), SGD(p)\n"),
    ("o = Adam(p, lr=(1))", "o = Adam(p, lr=(1), fused=True)"),
    ("o = Adam((x for x in p))\n", "o = Adam((x for x in p), fused=True)\n"),
])  # fmt: skip
def test_a_plain_call_gets_the_arguments(here: Path, before: str, after: str) -> None:
    assert patched(here, before, setting(1)) == after


def test_lines_keep_their_ends(here: Path) -> None:
    text = "import a\r\n\x0c\r\no = Adam(\r\n    p,\r\n)\r\nlast = 1"
    assert patched(here, text, setting(3)) == text.replace("p,", "p, fused=True,")


def test_tabs_and_lines_after_a_form_feed_are_found(here: Path) -> None:
    text = "def f():\n\tx = 1\x0c; y = '\u2028'\n\treturn Adam(p)\n"
    assert patched(here, text, setting(3)) == text.replace("(p)", "(p, fused=True)")


def test_several_arguments_some_of_which_exist(here: Path) -> None:
    text = "d = DataLoader(x, 8, True, num_workers=16, pin_memory=True)\n"
    more = setting(1, name="DataLoader", added="num_workers=2, persistent_workers=True")
    assert patched(here, text, more) == ("d = DataLoader(x, 8, True, num_workers=2, pin_memory=True, "
                                         "persistent_workers=True)\n")


def test_several_settings_in_one_file(here: Path) -> None:
    text = "d = DataLoader(\n    x)\no = Adam(p); e = DataLoader(y)\n"
    loader = {"name": "DataLoader", "added": "num_workers=2"}
    settings = [setting(1, **loader), setting(3), setting(3, **loader)]
    assert patched(here, text, *settings) == (
        "d = DataLoader(\n    x, num_workers=2)\no = Adam(p, fused=True); e = DataLoader(y, num_workers=2)\n")


@pytest.mark.parametrize("text", [
    "o = Adam(*p)\n",
    "o = Adam(p, **options)\n",
    "o = Adam(p), Adam(q)\n",
    "o = SGD(p)\n",
    "o = 1\no = Adam(p)\n",
    "o = Adam(p, fused=(\n    False))\n",
    "o = Adam(p, fused=not (\nFalse), lr='日本')\n",
    "o = Adam(x for x in p)\n",
    "o = Adam((p))\n",
    "o = Adam(p, 1, 2, 3, 4, False)\n",
    "o = Adam(p\n",
    "o = Adam(p, '\0')\n",
    "",
])
def test_other_calls_are_left_out(here: Path, text: str) -> None:
    (here / "train.py").write_text(text)
    assert unified_diff([setting(1)], here) == ("", ["train.py:1: Adam(…, fused=True)"])


def test_the_fifth_argument_by_position_is_plain(here: Path) -> None:
    assert patched(here, "o = Adam(p, 1, 2, 3, 4)\n", setting(1)) == "o = Adam(p, 1, 2, 3, 4, fused=True)\n"


def test_files_that_cannot_be_read_and_new_lines_are_left_out(here: Path) -> None:
    (here / "latin.py").write_bytes("o = Adam(p)  # ä\n".encode("latin-1"))
    (here / "null.py").write_bytes(b"o = Adam(p)\n\0")
    new_line = Setting("threads", {}, "set_num_threads(1)", "torch.set_num_threads(1)")
    without_place = Setting("fused", {}, "fused=True", "Adam(…, fused=True)", None, "fused=True")
    at_a_line = Setting("no-grad", {}, "no_grad()", "with torch.no_grad():", Place("gone.py", 2))
    diff, left_out = unified_diff(
        [setting(1, file="gone.py"), new_line, setting(1, file="latin.py"), setting(1, file="null.py"), without_place,
         at_a_line], here)
    assert diff == ""
    assert sorted(left_out) == ["Adam(…, fused=True)", "gone.py:1: Adam(…, fused=True)",
                                "latin.py:1: Adam(…, fused=True)", "null.py:1: Adam(…, fused=True)",
                                "torch.set_num_threads(1)", "with torch.no_grad():"]


def test_places_are_below_the_script_and_paths_below_the_working_directory(here: Path) -> None:
    (here / "src" / "lib").mkdir(parents=True)
    (here / "src" / "lib" / "train.py").write_text("o = Adam(p)\n")
    (here / "train.py").write_text("o = Adam(p)\n")
    diff, _ = unified_diff([setting(1, file="lib/train.py")], here / "src")
    subprocess.run(["patch", "-p1"], input=diff.encode(), cwd=here, check=True, capture_output=True)
    assert "fused" in (here / "src" / "lib" / "train.py").read_text()
    assert "fused" not in (here / "train.py").read_text()


def test_files_outside_of_the_working_directory_are_left_out(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "train.py").write_text("o = Adam(p)\n")
    (here / "job").mkdir()
    monkeypatch.chdir(here / "job")
    assert unified_diff([setting(1)], here) == ("", ["train.py:1: Adam(…, fused=True)"])


MODULE = """\
import torch

net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(optimizer.param_groups[0]["fused"])
"""


@pytest.mark.parametrize("tool", [["patch", "-p1"], ["git", "apply"]])
def test_the_file_of_a_module_is_named_from_the_working_directory(here: Path, tool: list[str]) -> None:
    (here / "manner").mkdir()
    (here / "manner" / "train.py").write_text(MODULE)
    options = ("--iterations", "4", "--passes", "inspection", "--stop")
    trial = Command("run", (*options, "-m", "manner.train"), b"", here).measured([], [], here / "runs", 100.0)
    assert trial.run is not None, trial.failure
    diff, left_out = unified_diff(chosen("fused", Program(trial.run)), here)
    assert left_out == []
    assert "+++ b/manner/train.py\n" in diff
    subprocess.run(tool, input=diff.encode(), cwd=here, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-m", "manner.train"], cwd=here, check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"
