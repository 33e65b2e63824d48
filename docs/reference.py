"""Writes the pages of the reference from the code: commands, Python API, tables, counters, metrics, workloads."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.summary import COLUMNS as SUMMARY_COLUMNS
from charact.analysis.summary import TABLE as SUMMARY
from charact.cli import build_command
from charact.datasets._common.registry import all_datasets
from charact.measure.counters import all_sources
from charact.measure.counters._support.protocol import NOT_TRIED
from charact.measure.memory_estimate.target_devices import _TABLE as TARGETS
from charact.ops import all_kinds, all_suites
from charact.record import schema
from charact.workload.registry import all_workloads

API = (
    ("charact", "Profiler"), ("charact", "profile"), ("charact", "load_run"), ("charact", "load_runs"),
    ("charact", "Run"), ("charact", "Workload"), ("charact.memory", "estimate"), ("charact.memory", "Estimate"),
)
"""Modules and names of the public Python API."""
CALLBACKS = (
    ("lightning", "CharactCallback", "Trainer(callbacks=[CharactCallback()])"),
    ("transformers", "CharactCallback", 'Trainer(..., callbacks=[CharactCallback("bert")])'),
    ("accelerate", "CharactTracker", 'Accelerator(log_with=CharactTracker("my model"))'),
)
"""Modules of `charact.integrations`, which need their frameworks, with the class and its use."""

_SECTION = re.compile(r"(Args|Raises|Returns|Yields):")
_ENTRY = re.compile(r"([\w.*]+): (.*)")


def pages() -> dict[str, str]:
    """Return the Markdown text of every page by file name."""
    return {"commands.md": commands(), "python.md": python(), "tables.md": tables(), "counters.md": counters(),
            "metrics.md": metrics(), "workloads.md": workloads(), "operations.md": operations()}


def write(directory: Path) -> None:
    """Write every page into a directory; a page that has not changed keeps its file."""
    directory.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def commands() -> str:
    """Return the page of all commands, from the command line's own definition."""
    root = build_command()
    parts = ["# Commands", "`charact --help` and `charact COMMAND --help` show the same in the terminal.",
             _parameters(root, "charact")]
    for name, command in _commands(root):
        usage = " ".join([name, *command.collect_usage_pieces(_context(command, name))])
        parts += [f"## {name}", _block("text", usage), _help(command.help), _parameters(command, name)]
    return _joined(parts)


def python() -> str:
    """Return the page of the Python API, from signatures and docstrings."""
    parts = ["# Python", "Everything is imported on first use: `import charact` imports neither PyTorch nor pandas."]
    for module, name in API:
        thing = getattr(importlib.import_module(module), name)
        parts += [f"## {module}.{name}", *_described(thing, f"{module}.{name}")]
        if inspect.isclass(thing):
            parts += [text for member, value in _members(thing) for text in _member(name, member, value)]
    parts += ["## charact.integrations", "One line in the program of a framework:"]
    parts += [_block("python", f"from charact.integrations.{module} import {name}\n\n{use}")
              for module, name, use in CALLBACKS]
    return _joined(parts)


def tables() -> str:
    """Return the page of a record's tables, from the schema."""
    parts = ["# Tables of a record", f"Schema version {schema.SCHEMA_VERSION}. A table is a Parquet file in the run's "
             "directory, and a DataFrame in Python: `run.iterations`. Units are base units and end a column's name. "
             "A value that was not measured is null; `run.json` has the reason."]
    parts += ["`summary` is computed: `run.summary()` and `charact.load_runs(...).summary()` return it, exports and "
              "queries have it. The others are stored."]
    for table, columns in {SUMMARY: SUMMARY_COLUMNS, **schema.TABLES}.items():
        parts += [f"## {table}", _table(["column", "type", "nulls", "meaning"], [
            [f"`{one.name}`", one.type, "yes" if one.nullable else "no", _with_values(one)] for one in columns])]
    return _joined(parts)


def counters() -> str:
    """Return the page of all counter sources."""
    parts = ["# Counters", "Sources of counters, and what they count. `charact doctor` shows which of them work on "
             "this machine, and how to enable the others. A source with a pass of its own runs only if it is named, as "
             "in `--counters auto,pm`."]
    for name, source in all_sources().items():
        taken = {"along": "during the counter pass", "trace": "from the trace of the operator pass",
                 "own pass": "in a pass of its own"}[source.taken]
        parts += [f"## {name}", f"Devices: {', '.join(sorted(source.devices))}. Read {taken}. Cost: {source.cost}. "
                  + (f"Run on: {source.tried_on}." if source.tried_on else f"{NOT_TRIED.capitalize()}."),
                  _table(["counter", "method", "scope", "meaning"], [
                      [f"`{one.name}`", one.method, one.scope, one.definition] for one in source.counters])]
    return _joined(parts)


def metrics() -> str:
    """Return the page of metrics of comparisons."""
    rows = [[f"`{metric.name}`", {"1": "fraction of 1"}.get(metric.unit, metric.unit),
             "higher" if metric.higher_is_better else "lower",
             metric.meaning + ("; counted, so that every difference is significant" if metric.is_exact else "")
             + ("; a number in `--fail-if` limits the value itself" if metric.is_limited_itself else "")]
            for metric in all_metrics().values()]
    return _joined(["# Metrics", "Metrics of `charact compare`, `--fail-if`, `charact history` and `charact query`. "
                    "`phase.` with a phase, such as `phase.backward`, is one of `--fail-if` alone.",
                    _table(["metric", "unit", "better", "meaning"], rows)])


def workloads() -> str:
    """Return the page of workloads, data sets and GPUs."""
    rows = [[f"`{one.name}`", ", ".join(f"`{alias}`" for alias in one.aliases), ", ".join(one.variants),
             one.input_kind, one.prepare().default_input_size, one.default_batch_size, one.source]
            for one in all_workloads().values()]
    return _joined([
        "# Workloads and data sets",
        "The first variant is the default. The input size is the side in pixels of an image, the length in tokens of a "
        "sequence, or the number of lookups of each sparse feature. Of `vit`, `dit` and `unet` it is a multiple of 16.",
        "## Workloads", _table(["name", "aliases", "variants", "input", "size", "batch", "source"], rows),
        "## Data sets", _table(["name", "kind", "splits", "content"], [
            [f"`{one.name}`", one.kind or "any", ", ".join(one.splits), one.description]
            for one in all_datasets().values()]),
        "## GPUs", "Names for `charact memory --device-like`, with their memory.",
        _table(["name", "GiB", "source"], [[f"`{name}`", f"{gib:g}", source]
                                           for name, (gib, _, source) in TARGETS.items()]),
    ])


def operations() -> str:
    """Return the page of basic operations and suites."""
    return _joined([
        "# Operations and suites", "Problems for `charact ops --problem`, and lists of them for `--suite`.",
        "## Operations", _table(["problem", "operation"], [
            [f"`{one.syntax}`", _first_line(one)] for one in all_kinds().values()]),
        "## Suites", _table(["name", "parts", "problems", "source"], [
            [f"`{one.name}`", ", ".join(one.sets), len(one.problems()), one.source] for one in all_suites().values()]),
    ])


def _commands(group: Any, prefix: str = "charact") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        yield f"{prefix} {name}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")


def _context(command: Any, name: str) -> Any:
    return command.make_context(name, [], resilient_parsing=True)


def _parameters(command: Any, name: str) -> str:
    records = [(parameter, parameter.get_help_record(_context(command, name))) for parameter in command.params]
    rows = [[f"`{record[0]}`", record[1]] for parameter, record in records
            if record is not None and parameter.name != "help"]
    return _table(["argument or option", "meaning"], rows) if rows else ""


def _help(text: str) -> str:
    """Return a command's help as Markdown; paragraphs that begin with a backspace (as in click) become code."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return _joined([_block("text", textwrap.dedent(one.removeprefix("\b\n"))) if one.startswith("\b") else _escaped(one)
                    for one in paragraphs]).rstrip()


def _described(thing: Any, name: str) -> list[str]:
    signature = [] if is_dataclass(thing) else [_block("python", _signature(thing, name))]
    return [*signature, _docstring(inspect.getdoc(thing) or "")]


class _Text(str):
    """An annotation, which a signature shows as it is."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(thing: Callable[..., Any], name: str) -> str:
    """Return name and parameters, one a line if they are long; types are without their modules."""
    found = inspect.signature(thing)
    parameters = [one for one in found.parameters.values() if one.name != "self"]
    texts = [str(one.replace(annotation=_annotation(one.annotation))) for one in parameters]
    kinds = [one.kind for one in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        texts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if inspect.isclass(thing) else f" -> {_annotation(found.return_annotation)}"
    line = f"{name}({', '.join(texts)}){result}"
    return line if len(line) < 100 else "\n".join([f"{name}(", *(f"    {text}," for text in texts), f"){result}"])


def _annotation(annotation: Any) -> _Text:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Text(re.sub(r"~|\b(?:\w+\.)+(?=\w)", "", text))


def _members(thing: type) -> list[tuple[str, Any]]:
    public = [(name, value) for name, value in vars(thing).items() if not name.startswith("_")]
    return [(name, value) for name, value in public
            if inspect.isfunction(value) or isinstance(value, property | cached_property)]


def _member(owner: str, name: str, value: Any) -> list[str]:
    signature = [_block("python", _signature(value, name))] if inspect.isfunction(value) else []
    return [f"### {owner}.{name}", *signature, _docstring(inspect.getdoc(value) or "")]


def _docstring(text: str) -> str:
    """Return a docstring as Markdown: its sections become lists, and indented paragraphs become code."""
    parts = []
    for paragraph in re.split(r"\n{2,}", text):
        first, _, rest = paragraph.partition("\n")
        if _SECTION.fullmatch(first):
            parts += [f"**{first[:-1]}**", "\n".join(_entries(textwrap.dedent(rest)))]
        elif paragraph.startswith("    "):
            parts.append(_block("python", textwrap.dedent(paragraph)))
        else:
            parts.append(_escaped(paragraph))
    return _joined(parts).rstrip()


def _entries(text: str) -> Iterator[str]:
    """Return the entries of a section, whose further lines are indented, as items of a list."""
    for entry in re.split(r"\n(?! )", text):
        words = " ".join(entry.split())
        found = _ENTRY.fullmatch(words)
        yield f"- `{found[1]}`: {_escaped(found[2])}" if found else f"- {_escaped(words)}"


def _with_values(column: Any) -> str:
    allowed = f": {', '.join(column.allowed)}" if column.allowed and len(column.allowed) <= 12 else ""
    return f"{column.description}{allowed}"


def _first_line(thing: object) -> str:
    """Return what the module of an object is about."""
    return (inspect.getdoc(inspect.getmodule(type(thing))) or "").partition("\n")[0]


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    text = " ".join(str(value).split()).replace("|", "\\|")
    return text if text.startswith("`") else _escaped(text)


def _escaped(text: str) -> str:
    """Escape what Markdown would take for markup outside of code."""
    return "".join(part if part.startswith("`") else re.sub(r"([<>\[\]_#])", r"\\\1", part)
                   for part in re.split(r"(`[^`]*`)", text))


def _block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _joined(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
