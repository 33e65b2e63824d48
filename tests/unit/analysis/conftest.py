"""Sides that tests of comparisons share."""

import pytest
from support.compared import PUBLISHED, scattered, side

from charact.analysis.compare import Group
from charact.record.published import reference


@pytest.fixture(scope="module")
def published() -> list[Group]:
    """A published table of two machines."""
    return [side(name, reference(name.removeprefix("reference:"))) for name in PUBLISHED]


@pytest.fixture(scope="module")
def base_and_new(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """60 iterations of 100 ms, and of 105 ms: the backward pass takes 10 % longer."""
    out = tmp_path_factory.mktemp("scattered")
    return [side("base", scattered(out)), side("new", scattered(out, {"backward": 1.1}, seed=1))]
