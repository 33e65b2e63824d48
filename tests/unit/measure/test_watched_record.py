"""What the record of a watched program says of its loaders."""

import pytest

from charact.measure.autophase.iterations import Iteration, Stretch
from charact.measure.autophase.record import loaders_batch_size

TRAINING, VALIDATION, UNKNOWN = 11, 12, 13
OWNERS = {TRAINING: {"batch_size": 8}, VALIDATION: {"batch_size": 100}, UNKNOWN: {"batch_size": None}}


def iteration(*loaders: int) -> Iteration:
    fetches = [Stretch("data", loader, 10 * place, 10 * place + 5) for place, loader in enumerate(loaders)]
    return Iteration(True, 0, 100, [*fetches, Stretch("forward", 21, 90, 95)])


@pytest.mark.parametrize(("iterations", "num_samples"), [
    ([iteration(TRAINING)] * 3, 8),
    ([iteration(TRAINING, TRAINING, TRAINING, TRAINING)] * 5 + [iteration(TRAINING)], 32),  # a rest at the end
    ([iteration(TRAINING)] * 3 + [iteration(VALIDATION)], 8),
    ([iteration(UNKNOWN)] * 3, None),
    ([iteration()], None),
])  # fmt: skip
def test_samples_of_an_iteration(iterations: list[Iteration], num_samples: int | None) -> None:
    assert loaders_batch_size(OWNERS, iterations) == num_samples
