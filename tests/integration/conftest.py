"""Commands in the test's own process, where starting one of its own is not the point: that takes seconds each."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from charact import cli
from charact.commands._shared import publish
from charact.commands._shared.publish import write_views


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


@pytest.fixture(scope="module", autouse=True)
def no_views() -> Iterator[None]:
    """Commands of this process write no views, which take most of a command's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "write_views", lambda run: None)
        yield


@pytest.fixture(autouse=True)
def views_where_looked_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of a test that is marked `views` write them."""
    if request.node.get_closest_marker("views") is not None:
        monkeypatch.setattr(publish, "write_views", write_views)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """Run `charact` with arguments in a directory, `cwd`; it must end with `status` where that is given."""
    num_threads = torch.get_num_threads()

    def run(*arguments: object, cwd: Path, status: int | None = None) -> Done:
        monkeypatch.chdir(cwd)
        capsys.readouterr()
        done = Done(cli.run([str(argument) for argument in arguments]), *capsys.readouterr())
        assert status in (None, done.returncode), done
        return done

    yield run
    torch.set_num_threads(num_threads)


@pytest.fixture
def refused(here: Callable[..., Done], tmp_path: Path) -> Callable[..., None]:
    """Check that a command is refused in one line that holds `said`, and that it writes nothing."""
    def check(*arguments: object, said: str, cwd: Path = tmp_path) -> None:
        before = sorted(cwd.rglob("*"))
        done = here(*arguments, cwd=cwd, status=2)
        assert (done.stdout, done.stderr.count("\n"), done.stderr[:7]) == ("", 1, "error: "), done
        assert said in done.stderr
        assert sorted(cwd.rglob("*")) == before

    return check
