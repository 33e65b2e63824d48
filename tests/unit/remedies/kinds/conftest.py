"""A program under a trial, with many remedies applied together and without any."""

import pytest
from support.remedied import LINE_OF_LOADER, LINE_OF_OPTIMIZER, WATCHED_PROGRAM, Trials, tried


@pytest.fixture(scope="session")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """Facts of the program without remedies, and with all of those that do not exclude each other."""
    directory = tmp_path_factory.mktemp("remedied")
    without, seen = tried(directory, WATCHED_PROGRAM)
    together, remedied = tried(
        directory, WATCHED_PROGRAM, ("workers", {"num_workers": 1, "file": "train.py", "line": LINE_OF_LOADER}),
        ("fused", {"name": "SGD", "file": "train.py", "line": LINE_OF_OPTIMIZER}), ("threads", {"num_threads": 3}),
        ("no-anomaly", {}), ("flush-denormal", {}), ("freeze-garbage", {}), ("channels-last", {}),
        ("bf16-autocast", {"device": "cpu"}), ("no-grad", {}), ("sleeping-threads", {}))
    assert (without.failure, together.failure) == (None, None)
    assert together.run is not None
    assert len(together.losses) == 2
    return Trials(seen, remedied)
