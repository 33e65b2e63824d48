import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from charact.core.files import lock, release
from charact.measure.script import run_script
from charact.measure.script.exit_handling import StandardError
from charact.measure.script.run_script import _remove_own_frames

OURS = str(Path(run_script.__file__).with_name("any.py"))


def through_ours(call: Callable[[], Any]) -> Callable[[], Any]:
    """A function that calls another from within a file of charact's."""
    namespace: dict[str, Any] = {"call": call}
    exec(compile("def watched():\n    call()", OURS, "exec"), namespace)
    watched: Callable[[], Any] = namespace["watched"]
    return watched


def fail() -> None:
    raise ValueError("inner")


def shown(error: BaseException) -> list[str]:
    """Functions that the lines of an error's traceback name."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_our_frames_are_taken_out_wherever_they_are_also_of_the_errors_that_it_came_from() -> None:
    def outer() -> None:
        try:
            through_ours(lambda: through_ours(fail)())()
        except ValueError as error:
            raise ExceptionGroup("both", [caught(through_ours(fail))]) from error  # type: ignore[list-item]

    error = caught(outer)
    assert isinstance(error, ExceptionGroup)
    assert error.__cause__ is not None
    assert shown(error.__cause__) == ["outer", "watched", "<lambda>", "watched", "fail"]
    _remove_own_frames(error, set())
    assert shown(error.__cause__) == ["outer", "<lambda>", "fail"]
    assert shown(error.exceptions[0]) == ["caught", "fail"]
    namespace: dict[str, Any] = {}
    exec(compile("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    ours = error", OURS, "exec"), namespace)
    _remove_own_frames(namespace["ours"], set())
    assert namespace["ours"].__traceback__ is None


def test_errors_that_go_in_a_circle_are_no_trap() -> None:
    error, other = caught(fail), caught(fail)
    error.__cause__, other.__cause__ = other, error
    _remove_own_frames(error, set())
    assert shown(error) == shown(other) == ["caught", "fail"]


def test_a_lock_is_given_back_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock(path)
    assert held is not None
    assert lock(path) is None
    release(held, path)
    again = lock(path)
    assert again is not None
    os.close(again)


def test_a_descriptor_that_is_another_file_s_by_now_stays_open(tmp_path: Path) -> None:
    held = lock(tmp_path / "lock")
    assert held is not None
    os.close(held)
    own = os.open(tmp_path / "own", os.O_CREAT | os.O_RDWR)
    assert own == held
    release(held, tmp_path / "lock")
    os.close(own)
    release(held, tmp_path / "lock")  # closed by now


@pytest.mark.parametrize(("change", "expected"), [
    ("", "charact: a line\n"),
    ("os.close(2)", ""),
    ("sys.stderr.close()", "charact: a line\n"),  # which leaves the descriptor open
    ("os.close(2); os.open(sys.argv[1], os.O_WRONLY)", ""),
    ("os.dup2(os.open(sys.argv[1], os.O_WRONLY), 2)", ""),
])
def test_our_own_words_go_where_standard_error_was(tmp_path: Path, change: str, expected: str) -> None:
    own = tmp_path / "own"
    own.touch()
    text = ("import os, sys\nfrom charact.measure.script.exit_handling import StandardError\nerror = StandardError()\n"
            f"{change}\nerror.print_line('a line')\nprint(error.descriptor)")
    done = subprocess.run([sys.executable, "-c", text, str(own)], capture_output=True, text=True, check=True)
    assert done.stderr == expected
    assert done.stdout == ("2\n" if expected else f"{subprocess.DEVNULL}\n")
    assert own.read_text() == ""


def test_words_that_nobody_reads_are_let_go() -> None:
    reader, writer = os.pipe()
    before = os.dup(2)
    try:
        os.dup2(writer, 2)
        os.close(writer)
        error = StandardError()
        os.close(reader)
        error.print_line("a line")
        assert error.descriptor == 2
    finally:
        os.dup2(before, 2)
        os.close(before)
