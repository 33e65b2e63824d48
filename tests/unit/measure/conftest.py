"""Fixtures for tests of what measures."""

from collections.abc import Iterator

import pytest
from support.stub_nvml import StubNvml


@pytest.fixture(scope="session")
def stub_nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StubNvml]:
    """A process with a library that stands in for NVIDIA's."""
    with StubNvml(tmp_path_factory.mktemp("nvml")) as stub:
        yield stub
