"""Commands that are measured by turns."""

import pytest

from charact.commands._shared.turns import _with_one_name, read_command


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
