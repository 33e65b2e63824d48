"""Warnings of PyTorch itself on a GPU, which differ by version and are no errors of charact."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
OF_PYTORCH = ("ignore:Please use the new API settings to control TF32", "ignore:The pynvml package is deprecated",
              "ignore:.*nvidia-ml-py", "default::UserWarning:torch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            for warning in OF_PYTORCH:
                item.add_marker(pytest.mark.filterwarnings(warning))
