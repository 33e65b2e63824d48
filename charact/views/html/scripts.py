"""The scripts of the report, which the TensorBoard tab loads too. Imports are light: TensorBoard imports this."""

from pathlib import Path

TEMPLATES = Path(__file__).parent / "templates"
_FILES = ("report.js", "hover.js", "charts.js", "navigation.js", "sharing.js")


def scripts() -> str:
    """Return all scripts in one."""
    return "\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in _FILES)
