"""Cases that time basic operations of given sizes."""

import pandas as pd
from rich.console import RenderableType

from charact.analysis.operations.timings import operation_cases, operation_times, suite_totals
from charact.record.reader import Run
from charact.views.case_kind import CaseKind, Overview
from charact.views.tables import operation_tables
from charact.views.tables.model import Table
from charact.views.tables.run_column import RUN
from charact.views.terminal import operations as terminal


def _overview(run: Run, cases: pd.DataFrame) -> Overview:
    totals, problems = suite_totals(run), operation_cases(run)
    most = operation_tables.NUM_CARDS
    note = f"Cards show the {most} slowest of {len(problems)} problems." if len(problems) > most else ""
    shown = operation_tables.totals(totals) if len(totals) else operation_tables.headlines(problems, note=note)
    return Overview(operation_tables.cards(run), operation_tables.directions(operation_times(run)), shown)


def _tables(rows: pd.DataFrame) -> list[Table]:
    return [operation_tables.headlines(rows, RUN)]


def _details(run: Run, cases: pd.DataFrame) -> list[RenderableType]:
    return terminal.blocks(run)


KIND = CaseKind("operation", 50, _overview, operation_cases, _tables, details=_details, shows_failures=True)
