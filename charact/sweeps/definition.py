"""A sweep file: YAML that describes cases, each of which is one command of charact."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import yaml

from charact.core.errors import UserError
from charact.core.files import reading
from charact.core.text import did_you_mean

MAX_CASES = 10_000
_MAX_FILE_BYTES = 2**20
_YAML = "tag:yaml.org,2002:"
NODE = "node"
"""Key under which a case names the type of node that it runs on: one of the file's `nodes`."""
RESERVED = ("out", "name", "json", "quiet", "resume", "help")
"""Options that the sweep sets itself, or that make no sense in it."""

Known = Mapping[str, Collection[str]]
"""Names of options and arguments of each command that a sweep may run."""
Check = Callable[[str, str, str], str]
"""Function that returns what is wrong with a value, from command, option and value; empty if nothing is."""
ARGUMENTS = {"profile": "workload", "train": "workload", "infer": "workload", "memory": "workload",
             "bricks run": "suite"}
"""Name under which a case gives the argument of its command."""


@dataclass(frozen=True)
class SweepCase:
    """One command with its options, run once."""

    command: str
    """Such as `profile` or `bricks run`."""
    options: tuple[tuple[str, str], ...]
    """Names and values, sorted by name; arguments are included under their lower-case name."""
    repeat: int
    """Number of the repetition, from 1."""

    @property
    def id(self) -> str:
        """Hash of what the case is (12 hexadecimal digits)."""
        text = json.dumps([self.command, self.options, self.repeat])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """The case in one line: its command, its options, and the repetition if that is not the first."""
        argument = ARGUMENTS.get(self.command)
        words = [value if name == argument else name if not value else f"{name}={value}" for name, value in
                 sorted(self.options, key=lambda option: option[0] != argument)]
        return " ".join([self.command, *words, *([f"(repeat {self.repeat})"] if self.repeat > 1 else [])])

    @property
    def node(self) -> str | None:
        """Name of the type of node that the case runs on; None for any."""
        return dict(self.options).get(NODE)

    @property
    def arguments(self) -> list[str]:
        """Arguments for charact's command line, without those that the sweep adds."""
        options, argument = dict(self.options), ARGUMENTS.get(self.command, "")
        options.pop(NODE, None)
        positional = [options.pop(argument)] if argument in options else []
        return [*self.command.split(), *positional, *(
            f"--{name}={value}" if value else f"--{name}" for name, value in options.items())]


@dataclass(frozen=True)
class Definition:
    """The content of a sweep file."""

    name: str
    cases: tuple[SweepCase, ...]
    """Cases in the order of the file, each once."""
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Options of sbatch for each type of node, with underscores for dashes."""


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    command: str
    matrix: dict[str, Any] = {}
    options: dict[str, Any] = {}
    include: list[dict[str, Any]] = []
    exclude: list[dict[str, Any]] = []
    repeats: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1


class _Sweep(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[_Part]
    name: str | None = None
    nodes: dict[str, dict[str, str]] = {}


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Place = tuple[str | int, ...]
"""Keys and indices that lead to a node of the YAML document."""


def read_definition(path: Path, known: Known, check: Check = lambda command, name, value: "") -> Definition:
    """Read a sweep file.

    `known` has the options of the commands; `check` checks the value of an option, such as the name of a workload.
    """
    return _Reader(path, known, check).definition()


class _Reader:
    """Converts a YAML document by `msgspec`; its nodes know their lines."""

    def __init__(self, path: Path, known: Known, check: Check) -> None:
        self._path, self._known, self._check = path, known, check
        self._root = self._document()
        top = self._plain(self._root)
        self._has_parts = not isinstance(top, dict) or "parts" in top
        if not self._has_parts:
            shared = {key: top.pop(key) for key in ("name", "nodes") if key in top}
            top = shared | {"parts": [top]}
        self._sweep = self._converted(top, _Sweep, ())

    def definition(self) -> Definition:
        """Return the content of the file."""
        places: list[_Place] = [("parts", number) for number in range(len(self._sweep.parts))]
        cases = dict.fromkeys(case for part, place in zip(self._sweep.parts, places, strict=True)
                              for case in self._cases(part, place))
        if not cases:
            raise UserError(f"{self._path} describes no case: all are excluded, or a list of `matrix` is empty")
        nodes = {name: {key.replace("-", "_"): value for key, value in options.items()}
                 for name, options in self._sweep.nodes.items()}
        return Definition(self._sweep.name or self._path.stem, tuple(cases), nodes)

    def _document(self) -> yaml.Node:
        with reading(self._path), self._path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES:
            raise UserError(f"{self._path} has more than {_MAX_FILE_BYTES >> 20} MiB: name a sweep file")
        try:
            node = yaml.SafeLoader(text.decode("utf-8")).get_single_node()
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
        except yaml.MarkedYAMLError as error:
            where = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise UserError(f"{self._path}{where}: {error.problem}: write it as YAML") from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise UserError(f"{self._path}: {' '.join(str(error).split())}: write it as YAML") from error
        if node is None:
            raise UserError(f"{self._path} is empty: give `command` and `matrix`, as `charact sweep --help` shows")
        return node

    def _plain(self, node: yaml.Node) -> Any:
        """Return the lists, dictionaries and texts of a node: numbers stay as they are written."""
        if isinstance(node, yaml.ScalarNode):
            return node.value
        if node.tag not in (_YAML + "seq", _YAML + "map"):
            self._fail_at(node, f"{node.tag} is not allowed: leave it out")
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(inner) for inner in node.value]
        values: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in values:
                self._fail_at(key, f"{getattr(key, 'value', '')} is no key, or is given twice")
            values[key.value] = self._plain(value)
        return values

    def _converted(self, value: Any, kind: Any, place: _Place) -> Any:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError as error:
            problem, _, inner = str(error).partition(" - at `$")
            for key, index in re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", inner):
                place = (*place, key or (int(index) if index.isdecimal() else index))
            if unknown := re.search("unknown field `(.*)`", problem):
                fields = [field for struct in (_Part, _Sweep) for field in struct.__struct_fields__]
                self._fail((*place, unknown[1]), f"unknown key '{unknown[1]}'",
                           did_you_mean(unknown[1], fields, f"one of {', '.join(fields)}"))
            problem = problem.replace("`object`", "`key: value`").replace("`array`", "a list")
            self._fail(place, f"{problem[:1].lower()}{problem[1:]}")

    def _cases(self, part: _Part, place: _Place) -> Iterator[SweepCase]:
        command = part.command
        if command not in self._known:
            self._fail((*place, "command"), f"unknown command '{command}'",
                       did_you_mean(command, self._known, f"one of {', '.join(self._known)}"))
        matrix = {name: [self._value(command, name, item, (*place, "matrix", name, number))
                         for number, item in enumerate(values if isinstance(values, list) else [values])]
                  for name, values in part.matrix.items()}
        matrix = {name: list(dict.fromkeys(values)) for name, values in matrix.items()}

        def values_of(options: dict[str, Any], *there: str | int) -> dict[str, str]:
            return {name: self._value(command, name, value, (*place, *there, name)) for name, value in options.items()}

        fixed = values_of(part.options, "options")
        included, excluded = ([values_of(options, key, number) for number, options in enumerate(getattr(part, key))]
                              for key in ("include", "exclude"))
        if twice := matrix.keys() & fixed.keys():
            self._fail((*place, "options"), f"{min(twice)} is in `matrix` and in `options`: leave out one of them")
        num_cases = part.repeats * prod(map(len, matrix.values()))
        if num_cases + part.repeats * len(included) > MAX_CASES:
            self._fail((*place, "matrix"), f"{num_cases:,} cases are more than {MAX_CASES:,}: divide the sweep")
        points = [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]
        chosen = [fixed | point for point in (points if matrix or not included else [])]
        chosen = [options for options in chosen if not any(wanted.items() <= options.items() for wanted in excluded)]
        chosen += [fixed | options for options in included]
        for options in chosen:
            for repeat in range(1, part.repeats + 1):
                yield SweepCase(command, tuple(sorted(options.items())), repeat)

    def _value(self, command: str, name: str, value: Any, place: _Place) -> str:
        """Return the value of an option as on the command line; values of a list are joined by commas."""
        options = self._known[command]
        if name in RESERVED:
            self._fail(place, f"{name} is set by the sweep: leave it out")
        if name not in options and name != NODE:
            self._fail(place, f"charact {command} has no option '{name}'",
                       did_you_mean(name, options, f"see charact {command} --help"))
        node = self._node(place)
        if node.tag == _YAML + "bool":
            if value.lower() not in ("true", "yes", "on"):
                self._fail(place, "a flag is either `true` or left out")
            return ""
        text = self._converted(value, _Text | list[_Text], place)
        text = ",".join(text) if isinstance(text, list) else text
        if name == NODE and text not in self._sweep.nodes:
            self._fail(place, f"unknown node '{text}'", did_you_mean(text, self._sweep.nodes, "describe it in `nodes`"))
        if name != NODE and (problem := self._check(command, name, text)):
            self._fail(place, problem)
        return text

    def _node(self, place: _Place) -> yaml.Node:
        node = self._root
        for key in place if self._has_parts or place[:1] != ("parts",) else place[2:]:
            pairs = enumerate(node.value) if isinstance(node, yaml.SequenceNode) else (
                (name.value, value) for name, value in node.value) if isinstance(node, yaml.MappingNode) else ()
            node = dict(pairs).get(key, node)
        return node

    def _fail(self, place: _Place, problem: str, remedy: str = "") -> NoReturn:
        self._fail_at(self._node(place), problem, remedy)

    def _fail_at(self, node: yaml.Node, problem: str, remedy: str = "") -> NoReturn:
        line = node.start_mark.line + 1
        raise UserError(f"{self._path} line {line}: {problem}{': ' if remedy else ''}{remedy}")
