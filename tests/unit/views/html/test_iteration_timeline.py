"""Notes of the section Timeline."""

import pandas as pd
import pytest

from charact.analysis.profile.iteration_timeline import IterationTimeline
from charact.views.sections.profile.iteration_timeline import _block


@pytest.mark.parametrize(("median_s", "note"), [
    (0.1, "This iteration took 126 ms under the profiler, the median iteration 100 ms without it"), (0.11, ""),
    (None, "")])
def test_an_iteration_that_took_much_longer_says_so(median_s: float | None, note: str) -> None:
    columns = ["track", "depth", "start_s", "length_s", "name", "layer", "kind"]
    spans = pd.DataFrame([["phases", 0, 0.0, 0.126, "forward", None, "forward"]], columns=columns)
    found = _block("case", IterationTimeline(spans, 0.126, 0, 0), median_s)
    assert found.note.startswith(note)
    assert bool(found.note) == bool(note)
