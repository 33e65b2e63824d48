import subprocess
import sys
from types import ModuleType
from typing import Annotated

import pytest
import typer

from charact import cli
from charact.core.errors import UserError
from charact.core.plugins import module_names

HEAVY = {"torch", "pandas", "pyarrow", "matplotlib", "tensorboard", "numpy", "rich", "psutil"}


def profile(sizes: Annotated[str, typer.Option("--input-sizes", help="Sizes.")] = "",
            repeat: Annotated[int, typer.Option(min=1)] = 1) -> int | None:
    """Do what the sizes say."""
    match sizes:
        case "user":
            raise UserError("size 7 is too small\nfor vgg16: needs at least 32")
        case "interrupt":
            raise KeyboardInterrupt
        case "bug":
            raise ZeroDivisionError("a bug")
        case "status":
            return 130
    print("profiled", repeat)
    return None


def other() -> None:
    """Do nothing."""


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = []
    for name in ("profile", "two_words", "import_"):
        module = ModuleType(f"charact.commands.{name}")
        module.command = profile  # type: ignore[attr-defined]
        modules.append(module)
    module = ModuleType("charact.commands.a_group")
    module.group = typer.Typer(rich_markup_mode=None, help="Do more.")  # type: ignore[attr-defined]
    module.group.command()(profile)
    module.group.command()(other)
    modules.append(module)
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(cli, "_command_modules", lambda: {
        module.__name__.rpartition(".")[2].rstrip("_").replace("_", "-"): module.__name__ for module in modules})


@pytest.mark.parametrize(("arguments", "outcome"), [
    (["profile", "--repeat", "3"], (0, "profiled 3\n", "")),
    (["two-words"], (0, "profiled 1\n", "")), (["import"], (0, "profiled 1\n", "")),
    (["a-group", "profile", "--repeat", "2"], (0, "profiled 2\n", "")),
    (["profile", "--input-sizes", "status"], (130, "", "")),
    (["a-group", "profile", "--input-sizes", "status"], (130, "", "")),
    (["profile", "--input-sizes", "user"], (2, "", "error: size 7 is too small for vgg16: needs at least 32\n")),
    (["profile", "--input-sizes", "interrupt"], (130, "", "")),
])
def test_a_command_is_named_as_its_module_and_its_outcome_is_the_status(
        capsys: pytest.CaptureFixture[str], arguments: list[str], outcome: tuple[int, str, str]) -> None:
    assert (cli.run(arguments), *capsys.readouterr()) == outcome


def test_a_group_of_commands_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["a-group", "-h"], ["a-group", "--help"]):
        assert cli.run(arguments) == 0
        assert "Do nothing." in capsys.readouterr().out


def test_traceback_shows_where_a_user_error_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--traceback", "profile", "--input-sizes", "user"]) == 2
    said = capsys.readouterr().err
    assert "in profile" in said
    assert said.endswith("error: size 7 is too small for vgg16: needs at least 32\n")


@pytest.mark.parametrize(("arguments", "said"), [
    (["profil"], "no such command 'profil'. Did you mean 'profile'? (see charact --help)"),
    (["zzz"], "no such command 'zzz' (see charact --help)"),
    (["--verison"], "no such option: --verison: did you mean --version? (see charact --help)"),
    (["profile", "--input-size", "3"],
     "no such option: --input-size: did you mean --input-sizes? (see charact profile --help)"),
    (["profile", "--input-sizes"], "option '--input-sizes' requires an argument (see charact profile --help)"),
    (["a-group"], "missing command (see charact a-group --help)"),
    (["a-group", "profil"], "no such command 'profil'. Did you mean 'profile'? (see charact a-group --help)"),
    (["profile", "surplus"], "got unexpected extra argument(s) (surplus) (see charact profile --help)"),
])
def test_a_mistyped_command_line_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str],
                                             said: str) -> None:
    assert cli.run(arguments) == 2
    assert capsys.readouterr() == ("", f"error: {said}\n")


@pytest.mark.parametrize("value", ["0", "x", "1.5", ""])
def test_a_number_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], value: str) -> None:
    assert cli.run(["profile", "--repeat", value]) == 2
    out, said = capsys.readouterr()
    assert out == ""
    assert said.startswith(f"error: --repeat: '{value}' is not allowed: give a whole number (")
    assert said.endswith("(see charact profile --help)\n")
    assert said.count("\n") == 1


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.run(["profile", "--input-sizes", "bug"])


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_teaches(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert cli.run(arguments) == 0
    shown = capsys.readouterr().out
    assert "  charact profile resnet --input-sizes 32,224   measure" in shown
    assert "Do what the sizes say." in shown


def charact(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *python, "-m", "charact", *arguments], capture_output=True, text=True,
                          check=True)


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("doctor", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    lines = charact(*arguments, python=("-X", "importtime")).stderr.splitlines()
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    assert "typer" in imported
    assert imported & HEAVY == set()


def test_help_costs_little_more_than_its_parser() -> None:
    resource = pytest.importorskip("resource")

    def cpu_s(*arguments: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)

    # What slows one down slows down its neighbour, too.
    assert min(cpu_s("-m", "charact", "--help") / cpu_s("-c", "import typer") for _ in range(3)) < 2


def test_every_file_of_commands_is_a_command_with_help() -> None:
    names = {name.rpartition(".")[2].rstrip("_").replace("_", "-") for name in module_names("charact.commands")}
    described = {}
    for line in charact("--help").stdout.partition("Commands:\n")[2].splitlines():
        if line.strip() and not line.startswith("   "):  # deeper lines continue the one above
            name, _, text = line.strip().partition(" ")
            described[name] = text.strip()
    assert described.keys() == names
    assert all(described.values())
