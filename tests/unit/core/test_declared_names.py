"""Names that a file declares, read without running it."""

from pathlib import Path

import pytest

from charact.core.declared_names import declared_names

CLASSES = '''
import nowhere

class Plain:
    name: str = "plain"
    aliases = ("simple", "p")

class Named:
    name = "never"
'''


@pytest.mark.parametrize(("text", "names"), [
    ("LIST = [Plain()]", ["plain", "simple", "p"]),
    ('LIST = [Named(name="a", aliases=("b",)), Named("c", 3)]', ["a", "b", "never"]),
    ('LIST: list = [other.Class(name="d"), helper("e", x=2)]', ["d", "e"]),
    ('LIST = [Named(name=f"f{1}"), Plain(name="g")]', ["g", "simple", "p"]),
    ('LIST = [Plain(name="h") for _ in range(2)]', []), ("OTHER = [Plain()]", []), ("LIST = 3", []),
])
def test_names_are_read_as_they_are_written(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "file.py"
    path.write_text(f"{CLASSES}\n{text}\n", encoding="utf-8")
    assert declared_names(path, "LIST") == names
