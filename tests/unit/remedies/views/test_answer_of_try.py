"""The answer of `charact try`, its table and its section of the report."""

from pathlib import Path
from typing import Any

import pytest
from support.records import write_watched

from charact import load_run
from charact.remedies.tried import NOT_FINITE, Tried, TriedRemedy, write_tried
from charact.remedies.views.answer import answer, items, notes, tried_table, untried
from charact.views.html.report import report
from charact.views.tables.model import Row

PROVEN = TriedRemedy("fused=True", "proven", 0.006, 0.4, 0.35, 0.45, 3 * 2**20, 0.0, False, 4,
                     "SGD(…, fused=True)", "train.py:9")


def facts(*remedies: TriedRemedy, **changes: Any) -> Tried:
    return Tried(**{"remedies": list(remedies), "baseline_s": 0.01, "ending": "decided", "num_trials": 8} | changes)


def cells(remedy: TriedRemedy, **changes: Any) -> dict[str, str]:
    """Return the row of a remedy in the table, by heading."""
    shown = tried_table(facts(remedy, **changes))
    return dict(zip([column.title for column in shown.columns], texts(shown.rows[0]), strict=True))


def texts(row: Row) -> list[str]:
    return [cell.text for cell in row.cells]


def test_what_is_proven_is_recommended() -> None:
    text = answer(facts(TriedRemedy("num_workers=2", "helps", changes_results=True), PROVEN))
    for part in ("fused=True", "40.0 %", "35.0 to 45.0", "6.00 ms", "10.0 ms"):
        assert part in text
    assert "num_workers" not in text


@pytest.mark.parametrize(("remedies", "named", "not_named"), [
    ([("bf16", "helps", True), ("a", "helps", False)], ["bf16", "--allow-numerics"], ["a "]),
    ([("a", "helps", False), ("b", "helps", None), ("cc", "seems to help", False)], ["a, b", "fresh"],
     ["cc", "--allow"]),
    ([("cc", "seems to help", False), ("dd", "slower", False)], ["cc", "fresh"], ["dd"]),
    ([("d", "slower", True), ("e", "failed", None), ("f", "not tried", None)], ["none of 2 remedies"], []),
    ([("d", "dropped", True), ("f", "not tried", None)], ["none of 1 remedy "], []),
    ([("g", "not decided", None), ("h", "not decided", False), ("cc", "dropped", None)], ["g, h were not decided"],
     ["cc"]),
    ([("f", "not tried", None)], ["no remedy fits"], ["none of"]),
])
def test_without_a_proof_nothing_is_recommended(remedies: list[tuple[str, Any, bool | None]], named: list[str],
                                                not_named: list[str]) -> None:
    text = answer(facts(*(TriedRemedy(name, state, changes_results=changes) for name, state, changes in remedies)))
    assert text.startswith("Nothing ")
    assert all(part in text for part in named), text
    assert not any(part in text.partition(": ")[2] for part in not_named), text


def test_a_row_has_the_numbers_of_a_remedy() -> None:
    assert cells(PROVEN) == {
        "Remedy": "fused=True", "Iteration": "6.00 ms", "Saves": "40.0 % (35.0 to 45.0)", "Memory": "+3.00 MiB",
        "Losses": "the same", "Change in your code": "train.py:9 SGD(…, fused=True)"}


@pytest.mark.parametrize(("added_bytes", "shown"), [
    (None, "n/a (not recorded)"), (2**20 - 1, "0"), (1 - 2**20, "0"), (0.0, "0"), (2**20, "+1.00 MiB"),
    (-(2.0**21), "−2.00 MiB")])
def test_added_memory(added_bytes: float | None, shown: str) -> None:
    assert cells(TriedRemedy("a", "helps", num_turns=4, added_bytes=added_bytes))["Memory"] == shown
    assert cells(TriedRemedy("a", "failed", added_bytes=None))["Memory"] == ""


@pytest.mark.parametrize(("losses_frac", "changes", "num_turns", "shown"), [
    (0.0, False, 4, "the same"), (2e-5, False, 4, "≤ 2e-05"), (0.2, True, 4, "differ by 0.2"),
    (NOT_FINITE, True, 4, "differ: one is not finite"), (None, None, 4, "n/a (no losses to compare)"),
    (None, None, 0, "")])
def test_differences_of_losses(losses_frac: float | None, changes: bool | None, num_turns: int, shown: str) -> None:
    assert cells(TriedRemedy("a", "helps", num_turns=num_turns, losses_frac=losses_frac, changes_results=changes))[
        "Losses"] == shown


@pytest.mark.parametrize(("state", "saves", "shown"), [
    ("failed", None, "failed: out of memory"), ("not decided", None, "not decided"), ("slower", -0.25, "25.0 %"),
    ("helps", 0.25, "25.0 %"), ("dropped", 0.009, "no help in 2 turns"),
    ("dropped", 0.25, "25.0 %: another setting saves more"), ("no difference", 0.25, "no difference: 25.0 %"),
    ("not decided", 0.25, "after 2 turns")])
def test_what_a_remedy_saves(state: Any, saves: float | None, shown: str) -> None:
    text = cells(TriedRemedy("a", state, saves_frac=saves, num_turns=2, reason="out of memory"))["Saves"]
    assert shown in text
    assert ("slower" in text) == (state == "slower")
    assert "n/a" not in text


def test_the_unchanged_program_is_the_last_row() -> None:
    shown = tried_table(facts(PROVEN, TriedRemedy("f", "not tried", reason="why"), own_losses_frac=0.25))
    assert len(shown.rows) == 2
    assert {"unchanged", "10.0 ms"} <= set(texts(shown.rows[-1]))
    assert "0.2" in " ".join(texts(shown.rows[-1]))
    (row,) = tried_table(facts(baseline_s=None)).rows
    assert any(text.startswith("n/a (") for text in texts(row))


def test_notes_name_what_is_not_decided_not_tried_and_written() -> None:
    assert notes(facts(PROVEN)) == []
    assert "--max-minutes" in notes(facts(ending="time"))[0]
    assert "Interrupted" in notes(facts(ending="interrupted"))[0]
    left = facts(TriedRemedy("compile", "not tried", reason="no compiler"), PROVEN)
    assert untried(left) == [("compile", "no compiler")]
    assert "compile (no compiler)" in items(left)[-1].text
    names = [f"{number}.pt" for number in range(10)]
    (written,) = notes(facts(written_files=names))
    assert ", ".join(names) in written
    assert "more" not in written
    (written,) = notes(facts(written_files=[*names, "10.pt", "11.pt"]))
    assert "2 more" in written
    assert "10.pt" not in written
    assert len(items(facts(PROVEN, ending="time", written_files=names))) == 3 + 2


@pytest.mark.parametrize(("state", "added_bytes", "is_shown"), [
    ("dropped", -32 * 2**20, True), ("not decided", -280 * 2**20, True), ("dropped", -31 * 2**20, False),
    ("dropped", 280 * 2**20, False), ("dropped", None, False), ("slower", -280 * 2**20, False)])
def test_a_remedy_that_saves_memory_alone_is_named(state: Any, added_bytes: float | None, is_shown: bool) -> None:
    shown = notes(facts(TriedRemedy("torch.no_grad()", state, num_turns=2, added_bytes=added_bytes)))
    assert ["torch.no_grad() lowers the peak of the process by" in each for each in shown] == [True] * is_shown


def test_the_report_shows_names_as_text_and_only_what_was_tried(tmp_path: Path) -> None:
    run = load_run(write_watched(tmp_path))
    assert "Remedies tried" not in report([run])
    hostile = "<script>alert(1)</script>"
    write_tried(facts(TriedRemedy(hostile, "proven", 0.006, 0.4, 0.35, 0.45, change=hostile, place=hostile),
                      TriedRemedy(hostile, "failed", reason=hostile), TriedRemedy("b", "not tried", reason=hostile),
                      written_files=[hostile]), run.path)
    page = report([run])
    assert "Remedies tried" in page
    assert hostile not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 6


@pytest.mark.parametrize(("remedies", "is_shown"), [([PROVEN], False), ([], True)])
def test_where_nothing_is_recommended_the_largest_finding_is_named(remedies: list[TriedRemedy], is_shown: bool) -> None:
    shown = notes(facts(*remedies, advice="much is padding: pad less."))
    assert shown == ["The first run's largest finding that was not tried: much is padding: pad less."] * is_shown
    assert notes(facts(*remedies)) == []


@pytest.mark.parametrize(("ending", "words"), [("decided", "did not on fresh"), ("time", "did not decide it")])
def test_a_proof_that_failed_or_had_no_time(ending: str, words: str) -> None:
    assert words in answer(facts(TriedRemedy("a", "seems to help"), ending=ending))
