"""Commands in the test's own process, where starting one of its own is not the point: that takes seconds each."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from charact import cli


class Done(NamedTuple):
    """What a command left: its exit status and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the figures out of reports, but for tests that are marked `drawn`: tests of the views look at them."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("drawn") is None:
            item.add_marker(pytest.mark.without_figures)


@pytest.fixture(scope="module", autouse=True)
def short_passes(short_counter_pass: None) -> None:
    """Every command has a short counter pass."""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """Run `charact` with arguments in a directory, `cwd`."""
    num_threads = torch.get_num_threads()

    def run(*arguments: str, cwd: Path) -> Done:
        monkeypatch.chdir(cwd)
        capsys.readouterr()
        returncode = cli.run(list(arguments))
        return Done(returncode, *capsys.readouterr())

    yield run
    torch.set_num_threads(num_threads)
