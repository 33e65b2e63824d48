"""What charact prints: through one place, on any stream, in any encoding, with nothing in it that is obeyed."""

import ast
import errno
import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress, TextColumn
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from support.hostile import EVIL, assert_harmless

import charact
from charact.core import output
from charact.core.console import Console

PACKAGE = Path(charact.__file__).parent


@pytest.fixture(autouse=True)
def fresh_channels() -> Iterator[None]:
    yield
    output.OUT.lost = output.ERR.lost = None


@functools.cache
def nodes() -> list[tuple[Path, ast.Call | ast.Constant]]:
    """Calls and constants of charact's files."""
    return [(path.relative_to(PACKAGE), node) for path in PACKAGE.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call | ast.Constant)]


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Calls, their files, and the names that they are written with."""
    for path, node in nodes():
        if isinstance(node, ast.Call):
            part, names = node.func, []
            while isinstance(part, ast.Attribute):
                names, part = [part.attr, *names], part.value
            yield path, node, ".".join([part.id if isinstance(part, ast.Name) else "", *names])


def test_nothing_is_printed_but_through_output() -> None:
    forbidden = ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write", "Text.from_markup",
                 "traceback.print_exception", "traceback.print_exc")
    found = [f"{path}:{call.lineno}: {name}" for path, call, name in calls() if name in forbidden]
    assert found == []


def test_every_console_is_characts_own() -> None:
    for path in {path for path, _, name in calls() if name == "Console"}:
        assert "from charact.core.console import Console" in (PACKAGE / path).read_text(encoding="utf-8"), path


def test_no_column_of_a_progress_reads_markup() -> None:
    columns = [ast.unparse(call) for _, call, name in calls() if name == "TextColumn"]
    assert columns
    assert [column for column in columns if "markup=False" not in column] == []


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(f"Wrote {EVIL}", "second")
    output.warn(EVIL)
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 2
    assert shown.err.count("\n") == 1
    assert_harmless(shown.out)
    assert_harmless(shown.err)
    assert "[bold red][link=http://evil]" in shown.out


DRAWN: dict[str, Callable[[str], Any]] = {
    "text": Text, "string": str, "span": lambda name: Text.assemble((name, "bold"), "after"),
    "rule": Rule, "rule of a text": lambda name: Rule(Text(name)),
    "table": lambda name: _table(name),
}


def _table(name: str) -> Table:
    table = Table(name, title=name, caption=name)
    table.add_row(name)
    table.add_row(Text(name))
    return table


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("kind", DRAWN)
def test_a_console_obeys_no_name(kind: str, terminal: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, color_system="truecolor" if terminal else None, width=200,
                      highlight=False)
    console.print(DRAWN[kind](EVIL))
    assert_harmless(file.getvalue(), lines=False)
    assert "[bold" in file.getvalue()
    assert "red][link=http://evil]" in file.getvalue()


def test_a_console_keeps_its_own_colours_where_they_were() -> None:
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard", _environ={}).print(
        Text.assemble(("\x1bx", "red"), "y"))
    assert file.getvalue() == "\x1b[31m␛x\x1b[0my\n"


def test_a_table_is_straight_although_a_name_has_controls() -> None:
    file = io.StringIO()
    table = Table("name", "value", box=None, pad_edge=False)
    table.add_row(Text("a\x1b[2Jb long name"), "1")
    table.add_row(Text("plain"), "2")
    Console(file=file, width=80).print(table)
    assert {line.index(one) for line, one in zip(file.getvalue().splitlines()[1:], "12", strict=False)
            if one in line} == {file.getvalue().splitlines()[-1].index("2")}


def test_progress_obeys_no_name() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=200)
    with Progress(TextColumn("{task.description}", markup=False), console=console, auto_refresh=False,
                  redirect_stdout=False, redirect_stderr=False) as progress:
        progress.add_task(EVIL)
        progress.refresh()
    shown = file.getvalue()
    assert "␛]0;evil␛[2J" in shown
    assert "[bold red" in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
    assert "\x1b[?25h" in shown  # rich's own control of the cursor


class Broken(io.StringIO):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error


@pytest.mark.parametrize("error", [
    OSError(errno.ENOSPC, "No space left on device"), BrokenPipeError(errno.EPIPE, ""),
    OSError(errno.EIO, "Input/output error"), ValueError("I/O operation on closed file"),
])
def test_what_cannot_be_printed_is_dropped_and_the_status_says_so(
        error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(error))
    output.show("a")
    output.show("b")
    Console().print("c")
    assert output.finish(0) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == (0 if isinstance(error, BrokenPipeError) else 1)
    assert output.finish(0) == 0  # the next command begins afresh


def test_another_status_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Broken(OSError(errno.EIO, "Input/output error")))
    output.show("a")
    assert output.finish(130) == 130


def test_a_stream_that_is_not_there_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    output.warn("a")
    Console(stderr=True).print("b")
    assert output.finish(0) == 0
    monkeypatch.setattr(sys, "stdout", None)
    assert output.finish(0) == 0  # nothing was to be printed
    output.show("a")
    assert output.finish(0) == 1


@pytest.mark.parametrize(("encoding", "shown"), [
    ("ascii", "5 us, 1 x 2 - 'a' ## \\u65e5 \\xe9"), ("latin-1", "5 \xb5s, 1 \xd7 2 - 'a' ## \\u65e5 \xe9"),
    ("utf-8", "5 µs, 1 × 2 – ’a’ ██ 日 é"),
])
def test_an_encoding_that_lacks_a_character_gets_another(encoding: str, shown: str,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
    output.show("5 µs, 1 × 2 – ’a’ ██ 日 é")
    assert raw.getvalue().decode(encoding) == f"{shown}\n"


def test_what_charact_writes_of_its_own_has_a_stand_in_in_ascii() -> None:
    texts = {one for path, node in nodes() if path.name not in ("text.py", "output.py", "junit.py")
             and isinstance(node, ast.Constant) and isinstance(node.value, str)
             for one in node.value if not one.isascii()}
    assert "×" in texts
    assert {one for one in texts if "\\" in one.encode("ascii", "charact").decode()} == set()


def test_closed_descriptors_are_not_given_to_files(tmp_path: Path) -> None:
    program = ("import os, charact.core.output; charact.core.output.occupy_closed_descriptors(); "
               f"open({str(tmp_path / 'f')!r}, 'w', buffering=1).write('x\\n'); os.write(1, b'stray')")
    done = subprocess.run(["bash", "-c", f"exec {sys.executable} -c \"$1\" >&- 2>&- <&-", "-", program],
                          env=os.environ, check=False)
    assert done.returncode == 0
    assert (tmp_path / "f").read_text() == "x\n"


def test_a_log_has_no_controls() -> None:
    file = io.StringIO()
    output.PrintableStream(file).write(f"a\n{EVIL}\n")
    assert_harmless(file.getvalue(), lines=False)
    assert file.getvalue().startswith("a\n")
