"""Configuration of Sphinx: pages in Markdown, Furo's theme, and a reference that is written before each build."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402

reference.write(HERE / "reference")

project = "charact"
author = "the authors of charact"
copyright = f"2026, {author}"
version = release = version_of("charact")
extensions = ["myst_parser", "sphinx_copybutton"]
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_title = f"charact {version}"
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # `--ab` in a heading or the text stays two hyphens, to be copied
copybutton_prompt_text = "$ "  # of a console with output, the command alone is copied
myst_heading_anchors = 4  # links to headings are those of GitHub
nitpicky = True
