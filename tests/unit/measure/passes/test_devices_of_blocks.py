"""Memory of one of several devices."""

import pytest
import torch

from charact.measure.passes.event_tree import Allocation, EventTree
from charact.measure.passes.memory_pass import BlockOwners, curve_of


@pytest.mark.parametrize(("device", "names"), [
    (torch.device("cuda", 1), {"cuda:1"}), (torch.device("cuda"), {"cuda:0", "cuda:1"}),
    (torch.device("cpu"), {"cpu"})])
def test_blocks_of_other_devices_do_not_count(device: torch.device, names: set[str]) -> None:
    owners = BlockOwners(device, [], [])
    owners.begin()
    tree = EventTree(phases=[(0, 100, "forward")], allocations=[
        Allocation(10 * (number + 1), 512 * number, 2**number, name, 50)
        for number, name in enumerate(("cpu", "cuda:0", "cuda:1"))])
    expected = sum(one.num_bytes for one in tree.allocations if one.device in names)
    assert curve_of(tree, owners, {}).snapshots[-1].total_bytes == expected
