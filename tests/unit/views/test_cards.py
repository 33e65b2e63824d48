"""Cards: what each renderer shows of the data that a kind of case declares once."""

import json
import re
from pathlib import Path

import pytest
from support import records
from support.kinds_of_runs import RUNS
from support.pages import words_of
from support.terminal import shown

from charact.analysis.profile.case_summary import case_summary
from charact.record.presentable import presentable
from charact.record.reader import Run, load_run
from charact.views.answer import answer
from charact.views.case_kind import CaseKind, Overview, by_kind
from charact.views.document import Card
from charact.views.export.run_summary import run_summary
from charact.views.export.summary_markdown import summary_markdown
from charact.views.html.report import fragment
from charact.views.sections.overview import SECTION
from charact.views.tables.case_names import short_names


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return presentable(load_run(RUNS[request.param](tmp_path_factory.mktemp("run"))))


def overviews(run: Run) -> list[tuple[CaseKind, Overview]]:
    return [(kind, kind.overview(run, cases)) for kind, cases in by_kind(case_summary(run))]


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("\N{NO-BREAK SPACE}", " "))


def texts(card: Card) -> list[str]:
    """Return all texts of a card but the names of its bars' parts."""
    headline = [card.headline.text, card.headline.name] if card.headline else []
    return [*headline, *card.details, *card.warnings, *(text for number in card.numbers for text in number),
            *(bar.title for bar in card.bars), *(card.failure or ())]


def test_a_card_has_a_headline_or_a_failure_and_bars_that_sum_to_the_whole(run: Run) -> None:
    for kind, overview in overviews(run):
        assert overview.cards, kind.name
        assert {row.case for row in overview.table.rows if row.case} <= set(case_summary(run)["case"])
        for card in overview.cards:
            assert card.headline is not None or card.failure is not None
            assert all(texts(card))
            for bar in card.bars:
                assert sum(part.share_frac for part in bar.parts) == pytest.approx(1)
                assert all(re.fullmatch("#[0-9A-Fa-f]{6}", part.color) for part in bar.parts)


def test_the_report_has_every_text_of_every_card(run: Run) -> None:
    words = flat(words_of(run)["summary"])
    for _, overview in overviews(run):
        for card in overview.cards:
            for text in [*texts(card), *card.advice, *(meter.text for meter in card.meters)]:
                # names of cases are shortened, and backticks mark code
                whole = re.sub("`", "", flat(text))
                short = whole
                for case, name in short_names(run.manifest["cases"]).items():
                    short = short.replace(case, name)
                assert whole.lower() in words.lower() or short.lower() in words.lower(), text
    page = flat(re.sub("<[^>]+>", " ", fragment(run)))
    assert all(flat(card.headline.text) in page for _, overview in overviews(run) for card in overview.cards
               if card.headline)


def test_the_terminal_has_every_text_of_every_card_and_the_amounts_of_its_bars(run: Run) -> None:
    words = flat(shown(run.path, width=2000)).lower()
    for kind, overview in overviews(run):
        failures = [card.failure for card in overview.cards if card.failure and card.headline is None]
        for card in overview.cards if kind.summary is None else []:
            parts = [f"{part.name} {part.amount}" for bar in card.bars for part in bar.parts]
            for text in [*texts(card), *parts]:
                assert flat(text).lower() in words, text
        assert all(flat(status).lower() in words for status, _ in failures) or kind.summary is not None


def test_markdown_has_every_text_of_every_card_and_of_the_answer(run: Run) -> None:
    page = flat(summary_markdown(run).replace("\\", "").replace("&amp;", "&")).lower()
    assert flat(answer(run).sentence).lower() in page
    for kind, overview in overviews(run):
        for card in overview.cards if kind.summary is None else []:
            for text in texts(card):
                assert flat(text).lower() in page, text


def test_json_has_the_headline_numbers_and_warnings(run: Run) -> None:
    cases = {case["case"]: case for case in run_summary(run)["cases"]}
    assert set(cases) == set(case_summary(run)["case"])
    for _, overview in overviews(run):
        for card in overview.cards:
            if card.case in cases and card.warnings:
                assert cases[card.case]["warnings"] == [" ".join(card.warnings)]
    for case in cases.values():
        missing = [key for key, value in (case["headline"] or {}).items() if value is None]
        assert set((case["headline"] or {}).get("reasons", {})) <= set(missing)
    json.dumps(cases, allow_nan=False)
    assert Path(run.path).exists()


@pytest.mark.parametrize(("unknown_mib", "explains"), [(50, True), (5, False)])
def test_much_unknown_memory_is_explained(unknown_mib: int, explains: bool, tmp_path: Path) -> None:
    entry = records.case_entry("mlp", 32, "train")
    held = {"weights": 100 - unknown_mib, "unknown": unknown_mib}
    rows = [{"kind": "peak", "method": "measured", "moment": 0, "time_s": None, "phase": "forward", "layer": None,
             "operator": None, "category": category, "origin": None, "bytes": float(size << 20)}
            for category, size in held.items()]
    run = records.run_of(tmp_path, (entry, {"memory": rows}))
    text = " ".join(SECTION.html(run).cards[0].warnings)
    assert ("of the memory at the peak is unknown" in text) == explains
    assert not explains or text.count("50.0 %") == 1


def of_text(out: Path) -> Run:
    """A run of a model of text on an H100, which recomputes a third of its FLOP."""
    entry = records.case_entry("gpt", 32, "train") | {"device": "cuda:0", "device_name": "NVIDIA H100 80GB HBM3"}
    entry["passes"]["timing"] |= {"num_tokens": 7_500, "num_padding": 2_500}
    entry["passes"]["flop"]["recomputed_flop"] = 6.5e10
    return records.run_of(out, (entry, records.case_tables("train", 32)), **records.manifest("profile"))


def test_every_view_has_the_rates_of_a_model_of_text(tmp_path: Path) -> None:
    run = of_text(tmp_path)
    ((_, overview),) = overviews(run)
    numbers = dict(overview.cards[0].numbers)
    median_s = 0.1 * 1.0045
    assert numbers["tokens/s"] == "7,466"
    assert numbers["padding"] == "25.0 % of the positions"
    assert numbers["MFU"] == f"{100 * 1.3e11 / median_s / 67e12:.1f} %"
    assert numbers["HFU"] == f"{100 * 1.95e11 / median_s / 67e12:.1f} %"
    assert {"Tokens/s", "Padding", "MFU", "HFU"} <= {column.title for column in overview.table.columns}
    headline = run_summary(run)["cases"][0]["headline"]
    assert headline["tokens_per_s"] == pytest.approx(750 / median_s)
    assert headline["padding_frac"] == 0.25
    assert headline["mfu_frac"] == pytest.approx(1.3e11 / median_s / 67e12)
    for view in (shown(run.path), summary_markdown(run)):
        assert all(numbers[name].split(" ")[0] in view for name in ("tokens/s", "MFU", "HFU"))


def test_a_model_of_images_has_no_tokens_and_a_processor_the_reason_for_no_utilization(tmp_path: Path) -> None:
    run = load_run(records.write_record(tmp_path))
    ((_, overview),) = overviews(run)
    assert not {"tokens/s", "MFU", "HFU"} & {number.name for card in overview.cards for number in card.numbers}
    titles = [column.title for column in overview.table.columns]
    assert not {"Tokens/s", "HFU"} & set(titles)
    assert overview.table.rows[0].cells[titles.index("MFU")].text.startswith("n/a (")
    assert "okens/s" not in shown(run.path) + summary_markdown(run)
