"""Expressions of the gate: what they mean, and one line with the place where they are wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.analysis.compare.metrics import all_metrics
from charact.analysis.compare.thresholds import Threshold, parse
from charact.core.errors import UserError
from charact.record.schema import PHASES


@pytest.mark.parametrize(("text", "metric", "sign", "limit"), [
    ("time > 1.05", "time", ">", 1.05),
    ("time>1.05", "time", ">", 1.05),
    ("  time  >  1.05  ", "time", ">", 1.05),
    ("time > +5%", "time", ">", 1.05),
    ("time > + 5 %", "time", ">", 1.05),
    ("time > 1", "time", ">", 1.0),
    ("time > 1e0", "time", ">", 1.0),
    ("phase.backward > 1.1", "phase.backward", ">", 1.1),
    ("peak_memory > 1.02", "peak_memory", ">", 1.02),
    ("throughput < 0.95", "throughput", "<", 0.95),
    ("throughput < .95", "throughput", "<", 0.95),
    ("throughput < -5%", "throughput", "<", 0.95),
    ("accuracy < 0.99", "accuracy", "<", 0.99),
    ("energy > +12.5%", "energy", ">", 1.125),
    ("total_time > 2", "total_time", ">", 2.0),
    ("inference_time > 2", "inference_time", ">", 2.0),
    ("mfu < -5%", "mfu", "<", 0.95),
    ("tokens_per_s < 0.9", "tokens_per_s", "<", 0.9),
])  # fmt: skip
def test_what_a_rule_means(text: str, metric: str, sign: str, limit: float) -> None:
    assert parse(text) == Threshold(metric, sign, limit)


@pytest.mark.parametrize(("text", "metric", "sign", "limit"), [
    ("mfu < 0.4", "mfu", "<", 0.4),
    ("hfu < .45", "hfu", "<", 0.45),
    ("mfu > 1", "mfu", ">", 1.0),
    ("mfu > 0.9", "mfu", ">", 0.9),
])
def test_a_number_limits_utilization_itself(text: str, metric: str, sign: str, limit: float) -> None:
    rule = parse(text)
    assert rule == Threshold(metric, sign, limit, is_of_value=True)
    assert parse(str(rule)) == rule
    assert parse(str(parse("mfu < -5%"))) == Threshold("mfu", "<", 0.95)


@pytest.mark.parametrize(("text", "character", "words"), [
    ("", 1, "expected a metric"),
    ("   ", 4, "expected a metric"),
    ("> 1.05", 1, "expected a metric"),
    ("tme > 1.05", 1, "unknown metric"),
    ("phase > 1.05", 1, "unknown metric"),
    ("time.backward > 1.05", 1, "unknown metric"),
    ("phase.back > 1.05", 7, "unknown phase"),
    ("phase. > 1.05", 7, "unknown phase"),
    ("time", 5, "expected > or <"),
    ("time = 1.05", 6, "expected > or <"),
    ("time 1.05", 6, "expected > or <"),
    ("time >", 7, "expected a limit"),
    ("time >= 1.05", 7, "expected a limit"),
    ("time >> 1.05", 7, "expected a limit"),
    ("time > fast", 8, "expected a limit"),
    ("time > 5%", 8, "expected a limit"),
    ("time > +1.05", 8, "expected a limit"),
    ("time > -5", 8, "expected a limit"),
    ("time > 1.0.5", 8, "expected a limit"),
    ("time > nan", 8, "expected a limit"),
    ("time > 1.05 and energy > 1.1", 13, "expected the end"),
    ("time > 1,05", 9, "expected the end"),
    ("time > 1.05%", 8, "expected a limit"),
    ("time > 0.95", 8, "1 or more"),
    ("time > -5%", 8, "1 or more"),
    ("time > 1e999", 8, "1 or more"),
    ("throughput < 1.05", 14, "up to 1"),
    ("throughput < 0", 14, "up to 1"),
    ("mfu < 0", 7, "above 0"),
    ("mfu > 1e999", 7, "above 0"),
    ("mfu < +5%", 7, "up to 1"),
    ("throughput < -100%", 14, "up to 1"),
    ("time > 1.05\nx", 13, "expected the end"),
    ("time > ١", 8, "expected a limit"),
])  # fmt: skip
def test_what_is_wrong_is_told_in_one_line_with_its_place(text: str, character: int, words: str) -> None:
    with pytest.raises(UserError, match=r"^threshold ") as caught:
        parse(text)
    message = str(caught.value)
    assert f", character {character}, at " in message
    assert words in message
    assert "\n" not in message


def test_an_unknown_metric_or_phase_is_answered_with_those_there_are() -> None:
    with pytest.raises(UserError, match=", ".join(all_metrics())):
        parse("speed > 1")
    with pytest.raises(UserError, match=", ".join(PHASES)):
        parse("phase.speed > 1")


RATIOS = [name for name, metric in all_metrics().items() if not metric.is_limited_itself]


@given(st.sampled_from([*RATIOS, *(f"phase.{phase}" for phase in PHASES)]), st.floats(1, 1e300), st.data())
def test_a_rule_reads_back_from_its_text(metric: str, limit: float, data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from([Threshold(metric, ">", limit), Threshold(metric, "<", 1 / limit)]))
    assert parse(str(rule)) == rule
    assert rule.phase == (metric.partition(".")[2] or None)
    assert not rule.is_exceeded_by(rule.limit)
    assert not rule.is_exceeded_by(1.0)


@given(st.floats(0.01, 99))
def test_a_change_is_the_same_as_its_ratio(percent: float) -> None:
    assert parse(f"time > +{percent!r}%").limit == pytest.approx(1 + percent / 100)
    assert parse(f"throughput < -{percent!r}%").limit == pytest.approx(1 - percent / 100)


@given(st.text(max_size=30) | st.lists(st.sampled_from(
    ["time", "phase.", "forward", " ", "<", ">", "1.05", "+5%", "-", ".", "%", "\n", "9" * 400])).map("".join))
def test_any_text_is_a_rule_or_one_line(text: str) -> None:
    message = ""
    try:
        rule = parse(text)
    except UserError as error:
        message = str(error)
    assert len(message.splitlines()) == 1 or parse(str(rule)) == rule
