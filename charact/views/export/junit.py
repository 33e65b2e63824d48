"""The regression gate's result as JUnit XML, which CI systems show with their tests."""

import re
from xml.etree import ElementTree

import pandas as pd

from charact.views.tables import format as fmt
from charact.views.tables.gate_tables import sentence

_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold, not even escaped."""


def junit(judged: pd.DataFrame) -> str:
    """Return a document with a suite per threshold and a test per case and group: regressions fail, n/a is skipped."""
    root = ElementTree.Element("testsuites", {"name": "charact compare"} | _counts(judged))
    for rule, rows in judged.groupby("rule", sort=False):
        suite = ElementTree.SubElement(root, "testsuite", {"name": _text(str(rule))} | _counts(rows))
        for row in fmt.rows(rows):
            test = ElementTree.SubElement(suite, "testcase", classname=_text(row.side), name=_text(row.case))
            said = _text(sentence(row))
            if row.outcome == "regression":
                ElementTree.SubElement(test, "failure", type="regression", message=said)
            elif row.outcome == "n/a":
                ElementTree.SubElement(test, "skipped", message=said)
            else:
                ElementTree.SubElement(test, "system-out").text = said
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _counts(rows: pd.DataFrame) -> dict[str, str]:
    counts = rows["outcome"].value_counts()
    return {"tests": str(len(rows)), "failures": str(counts.get("regression", 0)), "errors": "0",
            "skipped": str(counts.get("n/a", 0))}


def _text(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
