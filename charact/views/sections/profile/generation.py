"""The section Generation: time to the first token and per token, and tokens per second."""

from typing import Any

import pandas as pd

from charact.analysis.common.script_attribution import is_watched
from charact.analysis.profile.generation import MIN_ITERATIONS_OF, generations, is_generation, token_times
from charact.record.reader import Run
from charact.views.charts import Axis, Chart, Curve
from charact.views.document import Block, Body
from charact.views.section import Section
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.tables.model import Column, table

_REQUEST = (
    "A request is a prompt and its outputs. All prompts of a batch are read at once (prefill), from which each "
    "request gets its first token; each further token is an iteration of its own (decode). "
)
_LEAD = (
    f"{_REQUEST}The most likely token is chosen, and an end mark ends no request, so that all have the same number of "
    "outputs."
)
_LEAD_OF_SCRIPT = (
    f"{_REQUEST}charact recognizes both by the tokens with which the program calls its model: those of the prompts, "
    "and then one of each request at a time. Without a cache, each call reads all tokens again."
)
_NOTE = (
    "A request’s time is that of its prompt and, for each further token, the mean of those that were timed. "
)
_APART = (
    "Prompts and decoding are measured apart: decoding goes on from the same prompts again and again, without reading "
    "them anew."
)
_IN_SCRIPT = (
    "The first token’s time begins with the forward that reads the prompts, or with the fetch of their batch. It ends "
    "where the next forward begins, so that the choice of the token is part of it, and so does a further token’s. The "
    "last token of a generation ends with its forward. What the program does between two generations is in neither."
)
_FEWEST_POINTS = 8
"""Least number of tokens of a curve against the context."""


def _failed(row: Any) -> str:
    return "not measured"


def _differs(row: Any) -> str:
    return "the number of requests differs"


def _too_few(name: str) -> Any:
    return lambda row: f"fewer than {MIN_ITERATIONS_OF[name]} tokens"


_COLUMNS = [
    Column("name", "Model"), Column("prompt", "Prompt", meaning="tokens of a prompt"),
    Column("output_size", "Outputs", fmt.number, "tokens that each request gets; of a script, the median"),
    Column("batch_size", "Batch", fmt.number, "requests at once", _differs), Column("cache", "Cache"),
    Column("first_s", "First token", fmt.seconds, "median time from the prompts to the first token", _failed),
    Column("token_s", "Per token", fmt.seconds, "median time of a further token of all requests of the batch", _failed),
    Column("request_s", "Request", fmt.seconds, "prompt and all outputs", _failed),
    Column("tokens_per_s", "Tokens/s, each", fmt.number, "of one request after its first token", _failed),
    Column("all_tokens_per_s", "Tokens/s, all", fmt.number, "outputs of the batch over the request’s time",
           lambda row: _differs(row) if fmt.absent(row.batch_size) else _failed(row)),
    Column("token_low_s", "95 % from", fmt.seconds, "lower end of the 95 % interval of the median", _failed),
    Column("token_high_s", "95 % to", fmt.seconds, "upper end of the 95 % interval of the median", _failed),
    Column("p90_s", "p90", fmt.seconds, "10 % of the further tokens took longer", _too_few("p90_s")),
    Column("p99_s", "p99", fmt.seconds, "1 % of the further tokens took longer", _too_few("p99_s")),
]  # fmt: skip


def _html(run: Run) -> Body:
    rows = generations(run)
    names = [", ".join([*filter(None, [row.workload, row.variant, row.precision, row.device]),
                        *([f"{row.attention} attention"] if isinstance(row.attention, str) else [])])
             for row in fmt.rows(rows)]
    prompts = [" to ".join(dict.fromkeys([fmt.number(row.input_low), fmt.number(row.input_high)]))
               for row in fmt.rows(rows)]
    watched = is_watched(run)
    note = f"{_NOTE}{_IN_SCRIPT if watched else _APART}"
    blocks = [Block(table=table(rows.assign(name=names, prompt=prompts), "Time of a generation", _COLUMNS,
                                note if watched else _partly(rows, note)))]
    cases = {str(case): of_case for case, of_case in token_times(run).groupby("case", sort=False)
             if len(of_case) >= _FEWEST_POINTS}
    if cases:
        colors = {case: palette.CASES[number % len(palette.CASES)] for number, case in enumerate(cases)}
        blocks.append(Block(figures=[_by_context(cases, colors)], legend=list(colors.items())))
    return Body(lead=_LEAD_OF_SCRIPT if watched else _LEAD, blocks=blocks)


def _partly(rows: pd.DataFrame, note: str) -> str:
    part = [row.decode_case for row in fmt.rows(rows) if row.decode_case and not row.whole]
    return note if not part else (
        f"{note} The time was up before all tokens were timed once, so the later ones count as the earlier: "
        f"{', '.join(part)}; give a larger --max-seconds.")


def _by_context(cases: dict[str, pd.DataFrame], colors: dict[str, str]) -> Chart:
    """Return the time of a token against the number of tokens read before."""
    curves = [Curve(rows["context"], rows["time_s"], colors[case],
                    texts=[f"{case}\nafter {row.context} tokens: {fmt.seconds(row.time_s)}" for row in fmt.rows(rows)])
              for case, rows in cases.items()]
    return Chart("Time of a token against the tokens read before", Axis("tokens read before", whole=True),
                 Axis("time of a token", "s", low=0), curves, 250)


SECTION = Section(
    "generation", "Generation", 43, _html, shows=is_generation,
    points={"timing": [("time to the first token, time per token", "measured: iterations of the modes prefill and "
                        "decode; of a script, by the tokens with which it calls its model")]},
)
