"""Short names of cases, from the facts that differ."""

from charact.views.tables.case_names import short_names


def test_caches_of_generations() -> None:
    cases = [{"case": kind, "workload": "llama", "cache": kind} for kind in ("static", "none")]
    assert short_names(cases) == {"static": "static cache", "none": "no cache"}
