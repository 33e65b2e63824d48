"""Commands that are measured by turns."""

from pathlib import Path

import pytest

from charact.analysis.compare import Turns
from charact.commands._shared.turns import _with_one_name, read_command, read_turns
from charact.core.errors import UserError


@pytest.mark.parametrize(("first", "second", "named"), [
    ("run train.py", "run fast/train_fast.py --epochs 2", True),
    ("run --sample train.py", "run train.py", False),
    ("run --name a train.py", "run --name a train_fast.py", False),
    ("profile mlp", "profile resnet18", False),
    ("run -m trainer", "run train.py", False),
])
def test_two_scripts_have_the_name_of_the_first(first: str, second: str, named: bool) -> None:
    commands = [read_command(f"other/charact {words}") for words in (first, second)]
    expected = [["other/charact", "run", "--name", "train", *command[2:]] for command in commands]
    assert _with_one_name(commands) == (expected if named else commands)


def test_the_ending_belongs_to_both_groups_of_a_directory(tmp_path: Path) -> None:
    groups = [tmp_path / label for label in ("a", "b")]
    assert read_turns(groups) is None
    (tmp_path / "turns.json").write_text('{"num_turns": 7, "ending": "time", "max_minutes": 3.0}')
    assert read_turns(groups) == read_turns(groups[::-1]) == Turns(7, "time", 3.0)
    assert read_turns(groups[:1]) is None
    assert read_turns([groups[0], tmp_path / "c"]) is None
    assert read_turns([groups[0], tmp_path / "other" / "b"]) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"num_turns": 7, "ending": "never"}', '{"num_turns": "x"}',
                                  '{"num_turns": null, "ending": "time"}'])
def test_a_damaged_ending_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "turns.json").write_text(text)
    with pytest.raises(UserError, match=r"turns\.json is damaged: remove it"):
        read_turns([tmp_path / "a", tmp_path / "b"])
