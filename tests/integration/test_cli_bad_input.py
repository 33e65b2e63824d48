import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from support.forked import Server

from charact.cli import build_command
from charact.measure.counters import all_sources


def charact(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "charact", *arguments], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize(("arguments", "said"), [
    (["doctr"], "error: no such command 'doctr'. Did you mean 'doctor'? (see charact --help)\n"),
    (["list", "workload"], "error: invalid value for 'TOPIC': 'workload' is not one of 'workloads', 'datasets', "
                           "'devices', 'counters', 'operator-types' (see charact list --help)\n"),
    (["list", "--jsn"], "error: no such option: --jsn: did you mean --json? (see charact list --help)\n"),
    (["profile", "resnet18", "--counters", "hots"],
     f"error: --counters: 'hots' is not one of auto, none, {', '.join(all_sources())}\n"),
])
def test_bad_input_gets_one_line(refused: Callable[..., None], arguments: list[str], said: str) -> None:
    refused(*arguments, said=said)


def path_parameters(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Command lines that give each parameter of every command that takes paths an empty one."""
    command = command or build_command()
    for parameter in command.params:
        kind = parameter.type_descriptor.annotation
        if Path in (kind, *get_args(kind)):
            option = parameter.opts[0]
            yield (*words, option, "") if option.startswith("-") else (*words, "")
    for name, inner in getattr(command, "commands", {}).items():
        yield from path_parameters(inner, (*words, name))


def test_an_empty_path_is_not_the_current_directory(tmp_path: Path, here: Callable[..., Any]) -> None:
    lines = list(path_parameters())
    assert {("import", ""), ("report", ""), ("export", "--to", ""), ("bricks", "run", "--out", "")} <= set(lines)
    for line in [*lines, ("run", "--out="), ("report", "a", ""), ("compare", "", "")]:
        done = here(*line, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, ""), line
        assert " is empty: name " in done.stderr, line
        assert done.stderr.count("\n") == 1, line
    assert list(tmp_path.iterdir()) == []


def test_list_shows_every_topic_plainly_in_a_pipe(tmp_path: Path, server: Server) -> None:
    done = server.charact("list", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.split()[:5] == ["resnet50", "(resnet)", "resnet", "2016", "25,557,032"]]
    assert max(len(line) for line in lines[:lines.index("")]) <= 100
    assert [line for line in lines if line.startswith("cifar10 ")]
    assert [line for line in lines if line.startswith("peak_rss_bytes ")]
    assert [line for line in lines if line.startswith("convolution ")]


@pytest.mark.parametrize(("topic", "column"), [
    ("workloads", "workload"), ("datasets", "dataset"), ("devices", "device"), ("counters", "counter"),
    ("operator-types", "operator_type"),
])
def test_list_of_one_topic_as_json(
        tmp_path: Path, topic: str, column: str, here: Callable[..., Any]) -> None:
    done = here("list", topic, "--json", cwd=tmp_path)
    listed = json.loads(done.stdout)
    assert list(listed) == [topic]
    names = [(row[column], row.get("source")) for row in listed[topic]]
    assert names
    assert len(set(names)) == len(names)


def test_a_reader_who_goes_away_is_no_error(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run([sys.executable, "-m", "charact", "list", "operator-types"], cwd=tmp_path,
                              stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_doctor_shows_every_check_on_one_line_with_its_reason(tmp_path: Path, server: Server) -> None:
    checks = json.loads(server.charact("doctor", "--json", cwd=tmp_path).stdout)["checks"]
    done = server.charact("doctor", "--verbose", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    for check in checks:
        shown = [line for line in done.stdout.splitlines() if line.startswith(f"  {check['name']} ")]
        assert len(shown) == 1
        if check["group"] != "Noise":  # that changes from one run to the next
            assert check["finding"] in shown[0]
            assert check["remedy"] is None or check["remedy"] in shown[0]


@pytest.mark.slow
def test_doctor_reads_the_environment_of_the_threads(tmp_path: Path) -> None:
    done = charact("doctor", "--json", cwd=tmp_path, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["threads"]["finding"].startswith("1 on ")
    assert checks["threads"]["finding"].endswith("(OMP_NUM_THREADS)")
    assert checks["OpenMP threads"]["finding"] == "sleep while they wait (OMP_WAIT_POLICY=PASSIVE)"


@pytest.mark.slow_variants
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_names_the_commands(tmp_path: Path, shell: str) -> None:
    words = {"COMP_WORDS": "charact doc", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "charact doc",
             "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = charact(cwd=tmp_path, _CHARACT_COMPLETE=f"complete_{shell}", **words)
    assert "doctor" in done.stdout
    assert "list" not in done.stdout


@pytest.mark.parametrize("group", ["", "bricks", "data"])
def test_lists_of_commands_say_each_in_one_whole_line(tmp_path: Path, group: str) -> None:
    commands = charact(*group.split(), "--help", cwd=tmp_path, COLUMNS="80").stdout.partition("Commands:\n")[2]
    told = commands.splitlines()
    assert len(told) > 1
    assert [line for line in told if not line.endswith(".") or line.endswith("...")] == []
