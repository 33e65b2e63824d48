"""What the documents show can be done: their commands run, their options and links exist."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from support.documents import (
    NEEDS,
    PAGES,
    ROOT,
    SHELLS,
    Block,
    blocks,
    broken_links,
    charact_commands,
    unknown_option,
)

from charact.cli import build_command
from charact.measure.counters import all_sources
from charact.measure.counters._support.protocol import NOT_TRIED

LANGUAGES = SHELLS | {"", "python", "toml", "yaml", "{toctree}", "{include}"}
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PAGES}
NOT_RUN = {"CONTRIBUTING.md", "docs/extending.md"}
"""Pages whose blocks install and test charact, or become parts of it."""
TO_RUN = [name for name, text in TEXTS.items() if name not in NOT_RUN
          and any(block.language in SHELLS | {"python"} and block.needs is None for block in blocks(text))]


@pytest.mark.parametrize("name", TEXTS)
def test_blocks_are_marked(name: str) -> None:
    for block in blocks(TEXTS[name]):
        assert block.language.partition(" ")[0] in LANGUAGES
        assert block.needs is None or block.needs in NEEDS
        if block.language in ("", "python", "toml"):
            assert not re.search(r"^\s*(charact|pip|make) ", block.text, re.MULTILINE)
    assert TEXTS[name].count("<!-- needs") == sum(block.needs is not None for block in blocks(TEXTS[name]))


def test_commands_and_options_exist() -> None:
    root = build_command()
    commands = [(name, words) for name, text in TEXTS.items() for words in charact_commands(text)]
    assert len(commands) > 100
    assert [(name, words) for name, words in commands if unknown_option(root, words) is not None] == []


def test_an_unknown_option_is_found() -> None:
    root = build_command()
    assert unknown_option(root, ["profile", "mlp", "--input-size", "3"]) == "--input-size"
    assert unknown_option(root, ["run", "--name", "x", "train.py", "--epochs", "2"]) is None
    assert unknown_option(root, ["run", "--epochs", "2", "train.py"]) == "--epochs"
    assert unknown_option(root, ["bricks", "run", "suite", "--shares", "0.2"]) == "--shares"
    assert unknown_option(root, ["bricks", "make"]) == "make"


CHECKED_BY = {"gpm": "gpm: ", "kineto": "trace's busy time", "ncu": "ncu: FLOP", "nvml": "energy / "}
"""Beginnings of checks in `checks.tsv` of a device, by the source that they try."""


@pytest.mark.parametrize("name", TEXTS)
def test_links_exist(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_sources_that_ran_on_no_device_are_named() -> None:
    """The guide has every source, and the README those without a record from a device."""
    tried_on = {name: source.tried_on or NOT_TRIED for name, source in all_sources().items()}
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", TEXTS["docs/guides/device.md"], re.MULTILINE)
    assert dict(rows) == tried_on
    [sentence] = re.findall(rf"Counters of ([^.]+) are {NOT_TRIED}", TEXTS["README.md"])
    assert set(re.findall(r"`(\w+)`", sentence)) == {name for name, where in tried_on.items() if where == NOT_TRIED}


def test_a_source_that_ran_on_a_device_has_a_record_or_checks_of_it() -> None:
    checks = [line.split("\t")[:2] for path in (ROOT / "reports").glob("*/checks.tsv")
              for line in path.read_text(encoding="utf-8").splitlines()]
    checked = {source for source, words in CHECKED_BY.items() for status, check in checks
               if status == "PASS" and check.startswith(words)}
    assert set(CHECKED_BY) == checked
    found = {name for path in (ROOT / "reports").glob("*/run/run.json")
             for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
             for name, outcome in case["passes"]["counters"]["sources"].items() if outcome["status"] == "ok"}
    assert found | checked == {name for name, source in all_sources().items() if source.tried_on is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", TO_RUN)
def test_commands_run(name: str, tmp_path: Path) -> None:
    """All blocks of a page that need nothing special, in order, in a copy of the examples' folder."""
    here = shutil.copytree(ROOT / "docs" / "examples", tmp_path / "examples")
    for block in blocks(TEXTS[name]):
        if block.needs is None and block.language in SHELLS | {"python"}:
            done = _run(block, here)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
            if block.language == "console":
                assert _shape(block).search(" ".join(done.stdout.split())), done.stdout


def _run(block: Block, here: Path) -> subprocess.CompletedProcess[str]:
    scripts = [sysconfig.get_path("scripts"), str(Path(torch.__file__).parents[4] / "bin")]  # the second has torchrun
    environment = os.environ | {"PATH": os.pathsep.join([*scripts, os.environ["PATH"]]), "OMP_WAIT_POLICY": "PASSIVE"}
    python = block.language == "python"
    command = [sys.executable, "-"] if python else ["bash", "-euo", "pipefail"]
    return subprocess.run(command, input=block.text if python else block.commands, cwd=here, env=environment,
                          capture_output=True, text=True, timeout=400, check=False)


def _shape(block: Block) -> re.Pattern[str]:
    shown = " ".join(" ".join(line for line in block.text.splitlines() if not line.startswith("$ ")).split())
    return re.compile(".*".join(re.escape(part.strip()) for part in shown.split("…")), re.DOTALL)
