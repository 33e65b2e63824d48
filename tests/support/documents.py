"""The Markdown pages of the repository: their blocks of code, and their links."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for pattern in ("[!C]*.md", "CONTRIBUTING.md", "docs/*.md", "docs/guides/*.md", "benchmarks/*.md",
                         "reports/*.md")
    for path in ROOT.glob(pattern))
"""All but the changelog, which names what was removed, too."""
NEEDS = {"internet", "terminal", "device", "Slurm", "frameworks", "your files"}
"""What a block may need that tests lack, as in `<!-- needs: internet -->` in the line before it."""
SHELLS = {"bash", "console"}
_BLOCK = re.compile(r"^(?P<indent> *)(?:<!-- needs: (?P<needs>.+?) -->\n\s*)?```(?P<language>[^\n]*)\n"
                    r"(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(?:#([^)\s]+))?\)")


class Block(NamedTuple):
    """A block of code, and what it needs that tests lack, or None."""

    language: str
    needs: str | None
    text: str

    @property
    def commands(self) -> str:
        """The block's commands for a shell; lines of a console that begin with no `$` are output."""
        lines = self.text.splitlines()
        if self.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return "\n".join(lines)


def blocks(text: str) -> list[Block]:
    """All blocks of code of a page, in order."""
    return [Block(found["language"].strip(), found["needs"],
                  re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE))
            for found in _BLOCK.finditer(text)]


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def charact_commands(text: str) -> Iterator[list[str]]:
    """Arguments of every command of charact in the blocks for a shell, and in code within sentences."""
    shells = "\n".join(block.commands for block in blocks(text) if block.language in SHELLS)
    for line in [*shells.replace("\\\n", " ").splitlines(), *re.findall(r"`(charact [^`\n]+)`", prose(text))]:
        if found := re.search(r"(?:^|&& |--no-python |srun .*?)(charact .*)", line):
            yield shlex.split(found[1], comments=True)[1:]


def unknown_option(root: Any, arguments: list[str]) -> str | None:
    """The first word that is neither a command nor an option of charact; None if there is none."""
    command, words = root, list(arguments)
    while words and not words[0].startswith("-") and hasattr(command, "commands"):
        if words[0] not in command.commands and (default := getattr(command, "default", None)):
            command = command.commands[default]
            break
        if words[0] not in command.commands:
            return None if words[0].isupper() else words[0]  # COMMAND stands for any
        command = command.commands[words.pop(0)]
    options = {name: parameter for parameter in command.params
               for name in (*parameter.opts, *parameter.secondary_opts)}
    while words:
        word = words.pop(0).partition("=")[0]
        if not word.startswith("-"):
            if command.name in ("run", "try") and root.commands.get(command.name) is command:
                return None  # the script; what follows is its own
        elif word in ("-h", "--help"):
            continue
        elif word == "--profile" and command.name == "try":
            return None  # a workload; what follows is for `charact profile`
        elif word not in options:
            return word
        elif word in ("-m", "--module"):
            return None
        elif not options[word].is_flag:
            words[:1] = []
    return None


def broken_links(path: Path) -> list[str]:
    """Links of a page to files or headings that are absent; pages that a build writes count as present."""
    broken = []
    for target, anchor in _LINK.findall(prose(path.read_text(encoding="utf-8"))):
        file = (path.parent / target).resolve() if target else path
        if (ROOT / "docs" / "reference") in file.parents:
            continue
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(f"{target}#{anchor}")
    return broken


def _anchors(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if include := re.search(r"```\{include\} (\S+)", text):
        text = (path.parent / include[1]).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
