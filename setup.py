"""Packages of charact; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

# The workloads live at the top of the repository and are installed inside the package.
setup(
    packages=[*find_packages(include=["charact", "charact.*"]), "charact.workloads"],
    package_dir={"charact": "charact", "charact.workloads": "workloads"},
)
