"""The device of `charact memory`."""

import pytest

from charact.commands._shared.memory_target import chosen_device
from charact.core.errors import UserError


@pytest.mark.parametrize(("device", "near"), [("a100-80", "a100-80gb"), ("RTX 4090", "rtx4090"), ("t4", "t4")])
def test_a_device_of_the_table_is_no_device_of_this_machine(device: str, near: str) -> None:
    with pytest.raises(UserError, match=f"--device-like {near} estimates for another GPU"):
        chosen_device(device, None, None)


def test_another_unknown_device_lists_the_choices() -> None:
    with pytest.raises(UserError, match="unknown device 'tpu-v9': choose auto, cpu, cuda or cuda:N"):
        chosen_device("tpu-v9", None, None)
