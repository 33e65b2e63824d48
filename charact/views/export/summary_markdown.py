"""The summary of a run as one page of Markdown: `charact show --md`."""

from collections.abc import Sequence
from typing import Any

from charact.analysis.findings import findings, has_findings, largest_part, program_time
from charact.analysis.profile.case_summary import case_summary
from charact.record.reader import Run
from charact.views.case_kind import by_kind
from charact.views.export.markdown import escaped, table_lines
from charact.views.export.run_summary import Data, Described, described_cases, run_facts, shareable
from charact.views.tables import finding_text
from charact.views.tables import format as fmt
from charact.views.tables.counter_text import counter_name, counter_value
from charact.views.tables.model import Cell, Column, Row, Table, limited

MAX_LINES = 200
_NUM_ROWS = (10, 5, 3, 1, 0)
"""Numbers of rows of a case's tables; the first with which all cases fit is used."""
_NUM_ITEMS = 12
"""Largest number of items of a line."""
_NUM_HEADLINES = 30
"""Largest number of rows of the table of headline numbers."""
_NUM_FINDINGS = 10
"""Largest number of findings."""
_HEADINGS = 12
"""Lines that are kept for the headings and the notes."""
_HIDDEN = ("headline", "not_measured", "warnings", "left_out")


def summary_markdown(run: Run) -> str:
    """Return the summary of a run in at most `MAX_LINES` lines of Markdown."""
    run = shareable(run)
    facts, cases = run_facts(run), described_cases(run)
    head = [f"# {escaped(run.run_id)}", "", *_facts(facts), *_findings(run)]
    for kind, rows in by_kind(case_summary(run)):
        head += table_lines(limited(kind.overview(run, rows).table, _NUM_HEADLINES, "charact show --json"))
    room = MAX_LINES - len(head) - _HEADINGS
    for num_rows in _NUM_ROWS:
        sections = [_case(case, num_rows) for case in cases]
        if sum(map(len, sections)) <= room:
            break
    shown: list[str] = []
    for number, section in enumerate(sections):
        if len(shown) + len(section) > room:
            shown += [f"{len(sections) - number} more cases are left out: `charact show --json` has all."]
            break
        shown += section
    return "\n".join([*head, *shown]).rstrip("\n")


def _facts(facts: Data) -> list[str]:
    of_run, machine, software = facts["run"], facts["machine"], facts["software"]
    gpus = ", ".join(machine["gpus"]) or f"no GPU ({machine['no_gpu_reason'] or 'none recorded'})"
    lines = {
        "Run": f"{of_run['status']}, {of_run['started']}, in {of_run['path']}", "Command": of_run["command"],
        "Machine": f"{machine['cpu']}, {machine['num_usable_cores']} cores, "
                   f"{counter_value('memory_bytes', machine['memory_bytes'])}; {gpus}; {machine['os']}",
        "Software": ", ".join(f"{name} {version}" for name, version in software.items() if version is not None),
    }  # fmt: skip
    return [*(f"- {title}: {escaped(text)}" for title, text in lines.items() if text), ""]


def _findings(run: Run) -> list[str]:
    """Return the section of findings: a numbered cause, and below it saving, place, evidence and remedy."""
    if not has_findings(run):
        return []
    rows, parts = findings(run), program_time(run)
    lines = ["## Findings", ""] if len(rows) else [f"{escaped(finding_text.nothing(largest_part(run)))}.", ""]
    for number, row in enumerate(fmt.rows(rows.head(_NUM_FINDINGS)), 1):
        basis = f" ({row.basis}, confidence {row.confidence})" if row.basis else ""
        points = {"to do": row.remedy, "saves": f"{finding_text.saving(row)}{basis}", "where": finding_text.place(row),
                  "evidence": "; ".join(row.evidence)}
        lines += [f"{number}. {escaped(f'{finding_text.sentence(row.cause)} [{row.finding}, case {row.case}]')}",
                  *(f"   - {title}: {escaped(text)}" for title, text in points.items() if text)]
    lines += [""] if len(rows) else []
    lines += [f"{escaped(finding_text.sentence(finding_text.program_parts(parts)))}.", ""] if len(parts) else []
    return lines


def _case(case: Described, num_rows: int) -> list[str]:
    """Return the section of a case: one line for each short part, and tables of `num_rows` rows."""
    data = case.data
    status = "" if data["status"] == "ok" else f": {data['status']} ({data['reason']})"
    lines = [f"## {escaped(str(data['case']) + status)}", ""]
    lines += [f"- warning: {escaped(text)}" for text in data["warnings"]]
    tables: list[str] = []
    for key, part in case.kind.parts.items():
        rows = data[key]
        if key in _HIDDEN or not rows:
            continue
        if not part.is_list:
            lines += _object(key, rows)
        elif part.line:
            items = _by_reason([_item(row, part.line) for row in rows[:_NUM_ITEMS]], " n/a (")
            lines.append(_items(key, items, len(rows) - _NUM_ITEMS))
        elif num_rows:
            tables += table_lines(_table(key, rows, num_rows, data["left_out"].get(key, 0)), "###")
    if data["not_measured"]:
        missing = [f"{each['what']} ({each['reason']})" for each in data["not_measured"]]
        lines.append(_items("not_measured", _by_reason(missing, " (")))
    return [*lines, "", *tables]


def _object(key: str, row: Data) -> list[str]:
    """Return an object: numbers and short texts on one line, each sentence on one of its own."""
    sentences = {name: value for name, value in row.items() if isinstance(value, str) and " " in value}
    first = _item(row, tuple(name for name in row if name not in sentences), named=True)
    first = first or fmt.missing(sentences.pop("reason", None))
    return [f"- {_title(key)}: {escaped(first)}",
            *(f"  - {_title(name)}: {escaped(text)}" for name, text in sentences.items())]


def _items(key: str, items: Sequence[str], num_left: int = 0) -> str:
    more = f"; {num_left} more" if num_left > 0 else ""
    return f"- {_title(key)}: {escaped('; '.join(items) + more)}"


def _by_reason(items: Sequence[str], mark: str) -> list[str]:
    """Join the items with the same reason, which begins at a mark: 'a, b n/a (no GPU)'."""
    names: dict[tuple[str, str], list[str]] = {}
    for item in items:
        name, marked, reason = item.partition(mark)
        names.setdefault((marked + reason, "" if marked else name), []).append(name)
    return [", ".join(joined) + reason for (reason, _), joined in names.items()]


def _item(row: Data, keys: Sequence[str], *, named: bool = False) -> str:
    """Return an item of a line: its texts, then its numbers, with names if `named`."""
    texts = [str(row[key]) for key in keys if isinstance(row[key], str) and key not in ("reason", "counter", "metric")]
    of_value = row.get("counter") or row.get("metric") or "value"
    texts += [counter_name(of_value)] if of_value != "value" else []
    numbers = [(f"{_title(key)} " if named else "") + _text(of_value if key == "value" else key, row[key])
               for key in keys if isinstance(row[key], int | float)]
    if isinstance(row.get("reason"), str) and not named:
        numbers.append(fmt.missing(row["reason"]))
    return f"{' '.join(texts)} {', '.join(numbers)}".strip()


def _table(key: str, rows: list[Data], num_rows: int, num_left: int) -> Table:
    columns = [Column(name, _title(name)) for name in rows[0] if any(row[name] is not None for row in rows)]
    num_left += max(len(rows) - num_rows, 0)
    caption = _title(key) + (f" (the first {min(num_rows, len(rows))}; {num_left} more)" if num_left else "")
    return Table(caption, columns, [Row(None, [Cell(_text(column.name, row[column.name])) for column in columns])
                                    for row in rows[:num_rows]])


def _text(key: str, value: Any) -> str:
    """Format a value in the unit of its key's ending."""
    if value is None or isinstance(value, str):
        return value or fmt.missing()
    return counter_value(f"_{key}", float(value))


def _title(key: str) -> str:
    return counter_name(key) or key
