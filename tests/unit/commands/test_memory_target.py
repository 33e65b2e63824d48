"""The device of `charact memory`, and the command that it names for a search."""

import shlex

import pytest

from charact.commands._shared.memory_target import chosen_device
from charact.commands.memory import with_fit
from charact.core.errors import UserError


@pytest.mark.parametrize(("device", "near"), [("a100-80", "a100-80gb"), ("RTX 4090", "rtx4090"), ("t4", "t4")])
def test_a_device_of_the_table_is_no_device_of_this_machine(device: str, near: str) -> None:
    with pytest.raises(UserError, match=f"--device-like {near} estimates for another GPU"):
        chosen_device(device, None, None)


def test_another_unknown_device_lists_the_choices() -> None:
    with pytest.raises(UserError, match="unknown device 'tpu-v9': choose auto, cpu, cuda or cuda:N"):
        chosen_device("tpu-v9", None, None)


@pytest.mark.parametrize(("typed", "searched"), [
    ("memory mlp --batch-sizes 8,16 --mode train", "memory mlp --mode train --fit"),
    ("memory mlp --predict --batch-sizes=8 --device-memory=1GiB -q", "memory mlp --device-memory=1GiB --fit"),
    ("memory --model 'a:B' --measure --out /tmp/x --name n --json --input-spec '3xSxS -> int64[10]'",
     "memory --model a:B --input-spec '3xSxS -> int64[10]' --fit"),
])
def test_the_command_of_a_search_has_no_options_that_it_does_not_take(typed: str, searched: str) -> None:
    assert shlex.join(with_fit(shlex.split(typed))) == searched
