"""A sweep file: YAML that describes cases, each of which is one command of charact."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

import yaml

from charact.core.errors import UserError
from charact.core.files import reading
from charact.core.text import did_you_mean

MAX_CASES = 10_000
_MAX_FILE_BYTES = 2**20
NODE = "node"
"""Key under which a case names the type of node that it runs on: one of the file's `nodes`."""
_TOP_KEYS = ("name", "nodes", "parts")
_PART_KEYS = ("command", "matrix", "options", "include", "exclude", "repeats")
RESERVED = ("out", "name", "json", "quiet", "resume", "help")
"""Options that the sweep sets itself, or that make no sense in it."""
_MAX_REPEATS = 1000

Options = Mapping[str, str]
"""Values of options by name; the value of a flag is empty."""
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


def read_definition(path: Path, known: Known, check: Check = lambda command, name, value: "") -> Definition:
    """Read a sweep file.

    Args:
        path: the file.
        known: options of the commands that cases may run.
        check: checks the value of an option, such as the name of a workload.
    """
    reader = _Reader(path, known, check)
    return reader.definition()


class _Reader:
    """Converts the nodes of a YAML document, which know their lines."""

    def __init__(self, path: Path, known: Known, check: Check) -> None:
        self._path, self._known, self._check = path, known, check
        self._nodes: dict[str, dict[str, str]] = {}

    def definition(self) -> Definition:
        """Return the content of the file."""
        top = self._mapping(self._document(), "a sweep")
        is_one_part = "parts" not in top
        self._check_keys(top, _TOP_KEYS + (_PART_KEYS if is_one_part else ()))
        name = self._text(top["name"]) if "name" in top else self._path.stem
        self._nodes = self._node_types(top.get("nodes"))
        if is_one_part:
            parts = [{key: node for key, node in top.items() if key not in _TOP_KEYS}]
        else:
            parts = [self._mapping(node, "a part") for node in self._sequence(top["parts"], "parts")]
        cases = dict.fromkeys(case for part in parts for case in self._part(part, top))
        if not cases:
            raise UserError(f"{self._path} describes no case: all are excluded, or a list of `matrix` is empty")
        return Definition(name, tuple(cases), self._nodes)

    def _node_types(self, node: yaml.Node | None) -> dict[str, dict[str, str]]:
        """Return the options of sbatch of each type of node."""
        types = {} if node is None else self._mapping(node, "nodes")
        return {name: {key.replace("-", "_"): self._text(value)
                       for key, value in self._mapping(options, f"node {name}").items()}
                for name, options in types.items()}

    def _document(self) -> yaml.Node:
        with reading(self._path), self._path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES:
            raise UserError(f"{self._path} has more than {_MAX_FILE_BYTES >> 20} MiB: name a sweep file")
        try:
            loader = yaml.SafeLoader(text.decode("utf-8"))
            node = loader.get_single_node()
        except UnicodeDecodeError as error:
            raise UserError(f"{self._path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            where = f" line {mark.line + 1}" if mark else ""
            raise UserError(f"{self._path}{where}: {error.problem}: write it as YAML") from error
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            raise UserError(f"{self._path}: {' '.join(str(error).split())}: write it as YAML") from error
        if node is None:
            raise UserError(f"{self._path} is empty: give `command` and `matrix`, as `charact sweep --help` shows")
        return node

    def _part(self, part: Mapping[str, yaml.Node], top: Mapping[str, yaml.Node]) -> Iterator[SweepCase]:
        self._check_keys(part, _PART_KEYS)
        if "command" not in part:
            self._fail(next(iter((part or top).values()), None), f"`command` is missing: {', '.join(self._known)}")
        command = self._text(part["command"])
        if command not in self._known:
            self._fail(part["command"], f"unknown command '{command}'",
                       did_you_mean(command, self._known, f"one of {', '.join(self._known)}"))
        matrix = {key: self._values(command, key, node)
                  for key, node in self._options(part, "matrix", command).items()}
        fixed = {key: self._checked(command, key, node)
                 for key, node in self._options(part, "options", command).items()}
        if twice := matrix.keys() & fixed.keys():
            self._fail(part["options"], f"{min(twice)} is in `matrix` and in `options`: leave out one of them")
        excluded = [self._named_values(node, command) for node in self._sequence(part.get("exclude"), "exclude")]
        included = [self._named_values(node, command) for node in self._sequence(part.get("include"), "include")]
        repeats = self._repeats(part.get("repeats"))
        num_cases = repeats
        for values in matrix.values():
            num_cases *= len(values)
        if num_cases + repeats * len(included) > MAX_CASES:
            self._fail(part.get("matrix"), f"{num_cases:,} cases are more than {MAX_CASES:,}: divide the sweep")
        of_matrix: list[Options] = [dict(zip(matrix, values, strict=True)) for values in product(*matrix.values())]
        chosen = [fixed | dict(point) for point in (of_matrix if matrix or not included else [])]
        chosen = [options for options in chosen if not any(wanted.items() <= options.items() for wanted in excluded)]
        chosen += [fixed | dict(options) for options in included]
        for options in chosen:
            for repeat in range(1, repeats + 1):
                yield SweepCase(command, tuple(sorted(options.items())), repeat)

    def _repeats(self, node: yaml.Node | None) -> int:
        if node is None:
            return 1
        text = self._text(node)
        if not text.isdecimal() or not 1 <= int(text) <= _MAX_REPEATS:
            self._fail(node, f"repeats is '{text}': give a whole number from 1 to {_MAX_REPEATS:,}")
        return int(text)

    def _options(self, part: Mapping[str, yaml.Node], key: str, command: str) -> Mapping[str, yaml.Node]:
        """Return the mapping below `key`, whose keys are options of the command."""
        if key not in part:
            return {}
        found = self._mapping(part[key], key)
        for name, node in found.items():
            if name in RESERVED:
                self._fail(node, f"{name} is set by the sweep: leave it out")
            if name not in self._known[command] and name != NODE:
                self._fail(node, f"charact {command} has no option '{name}'",
                           did_you_mean(name, self._known[command], f"see charact {command} --help"))
        return found

    def _named_values(self, node: yaml.Node, command: str) -> Options:
        """Return the options of an entry of `include` or `exclude`."""
        return {key: self._checked(command, key, value)
                for key, value in self._options({"options": node}, "options", command).items()}

    def _values(self, command: str, name: str, node: yaml.Node) -> list[str]:
        """Return the values of an axis: those of a list, or the only one."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return list(dict.fromkeys(self._checked(command, name, one) for one in nodes))

    def _checked(self, command: str, name: str, node: yaml.Node) -> str:
        """Return the value of an option of a command."""
        value = self._value(node)
        if name == NODE and value not in self._nodes:
            self._fail(node, f"unknown node '{value}'", did_you_mean(value, self._nodes, "describe it in `nodes`"))
        if name != NODE and (problem := self._check(command, name, value)):
            self._fail(node, problem)
        return value

    def _value(self, node: yaml.Node) -> str:
        """Return the value of an option as on the command line; values of a list are joined by commas."""
        if isinstance(node, yaml.SequenceNode):
            return ",".join(self._text(one) for one in node.value)
        text = self._text(node)
        if node.tag == "tag:yaml.org,2002:bool":
            if text.lower() not in ("true", "yes", "on"):
                self._fail(node, "a flag is either `true` or left out")
            return ""
        if not text:
            self._fail(node, "the value is empty: give one, or leave the key out")
        return text

    def _text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, "a single value is expected here")
        return str(node.value)

    def _sequence(self, node: yaml.Node | None, what: str) -> Sequence[yaml.Node]:
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, f"`{what}` is a list: begin each entry with a dash")
        return node.value  # type: ignore[no-any-return]

    def _mapping(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode) or node.tag != "tag:yaml.org,2002:map":
            self._fail(node, f"{what} is written as `key: value`")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self._text(key)
            if name in found:
                self._fail(key, f"{name} is given twice")
            found[name] = value
        return found

    def _check_keys(self, found: Mapping[str, yaml.Node], allowed: Collection[str]) -> None:
        for name, node in found.items():
            if name not in allowed:
                self._fail(node, f"unknown key '{name}'", did_you_mean(name, allowed, f"one of {', '.join(allowed)}"))

    def _fail(self, node: Any, problem: str, remedy: str = "") -> NoReturn:
        where = f" line {node.start_mark.line + 1}" if node is not None else ""
        raise UserError(f"{self._path}{where}: {problem}{': ' if remedy else ''}{remedy}")
