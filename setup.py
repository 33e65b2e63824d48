"""Packages of charact and its description; everything else is in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

_README = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")

# The workloads live at the top of the repository and are installed inside the package. Where the description is shown,
# the repository's pages and images are not next to it: images are left out, and links are their texts.
setup(
    packages=[*find_packages(include=["charact", "charact.*"]), "charact.workloads", "charact.workloads.images"],
    package_dir={"charact": "charact", "charact.workloads": "workloads"},
    long_description=re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)[^)]*\)", lambda link: "" if link[1] else link[2], _README),
    long_description_content_type="text/markdown",
)
