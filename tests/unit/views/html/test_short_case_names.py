"""Names of cases in the texts of a report, where they are short."""

import pytest

from charact.views.html.report import _shortener

CASES = [{"case": "train", "batch_size": 64, "mode": "train"}, {"case": "train-infer", "batch_size": 200,
                                                                "mode": "infer"}]


@pytest.mark.parametrize(("text", "shown"), [
    ("<td>train</td>", "<td>batch 64, train</td>"),
    ("<p>Phases of train-infer.</p>", "<p>Phases of batch 200, infer.</p>"),
    ("<p>peak: train, 3 MiB</p>", "<p>peak: batch 64, train, 3 MiB</p>"),
    ("<p>A. train: slow</p>", "<p>A. batch 64, train: slow</p>"),
    ("<td>train.py:52</td>", "<td>train.py:52</td>"), ("<td>lines of train.py</td>", "<td>lines of train.py</td>"),
    ("<td>trained</td>", "<td>trained</td>"), ("<td>a train</td>", "<td>a train</td>")])
def test_a_case_is_named_briefly_but_not_within_other_names(text: str, shown: str) -> None:
    assert _shortener(CASES)(text) == shown
