"""Which rank failed first."""

from typing import Any

import pytest

from charact.record.rank_merge import first_failure


def rank(number: int, ending: str | None, ended_s: float | None = None, traceback: str | None = None) -> dict[str, Any]:
    return {"rank": number, "ending": ending, "ended_s": ended_s, "traceback": traceback}


CLOSED = "RuntimeError: [pair.cc:538] Connection closed by peer [127.0.0.1]:38021"


@pytest.mark.parametrize(("ranks", "first"), [
    ([rank(0, "to its end", 1.0), rank(1, "sys.exit(0)", 1.0)], None),
    ([rank(0, CLOSED, 1.0, CLOSED), rank(1, "ValueError: bad batch", 2.0, "Traceback")], 1),
    ([rank(0, "ended by SIGTERM", 1.0), rank(1, None)], 1),
    ([rank(0, "ended by SIGTERM", 1.0), rank(1, "killed")], 1),
    ([rank(0, "ValueError: a", 3.0, "Traceback"), rank(1, "ValueError: b", 2.0, "Traceback")], 1),
    ([rank(0, "to its end", 1.0), rank(1, "sys.exit(3)", 1.0)], 1),
    ([rank(0, "os._exit(0)", 1.0), rank(1, "sys.exit(None)", 1.0)], None),
    ([rank(0, "ValueError: a", None, "Traceback"), rank(1, "ValueError: b", 2.0, "Traceback")], 1),
    ([rank(0, "ValueError: a", 1.0, f"Traceback: {CLOSED}"), rank(1, "os._exit(1)", 3.0)], 1),
    ([rank(0, "stopped measuring: no space", 2.0), rank(1, "ended by SIGKILL", 3.0)], 0),
])  # fmt: skip
def test_the_first_failure_is_one_that_no_other_caused(ranks: list[dict[str, Any]], first: int | None) -> None:
    found = first_failure(ranks)
    assert (None if found is None else found["rank"]) == first
