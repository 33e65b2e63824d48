"""Numbers of PyTorch's threads."""

import pytest
from support.remedied import Trials, chosen, program, refused


@pytest.mark.parametrize(("now", "num_cores", "expected"), [
    (4, 4, [1, 2]), (2, 4, [1]), (1, 4, [2]), (3, 4, [1, 2]), (8, 4, [1, 2, 4]), (5, 4, [1, 2, 4]), (2, 2, [1]),
    (2, 1, [1])])
def test_numbers_of_threads(now: int, num_cores: int, expected: list[int]) -> None:
    settings = chosen("threads", program({"threads": {"intra_op": now, "num_usable_cores": num_cores}}))
    assert [setting.values["num_threads"] for setting in settings] == expected
    assert {setting.expected_frac for setting in settings} == {0.05}


@pytest.mark.parametrize("finding", ["threads", "contention"])
def test_a_finding_knows_better_what_is_saved(finding: str) -> None:
    of = program({"threads": {"intra_op": 4}}, findings={finding: (0.2, 0.4, "high")})
    assert [setting.expected_frac for setting in chosen("threads", of)] == pytest.approx([0.3, 0.3])


def test_programs_whose_threads_stay() -> None:
    assert "CPU" in refused("threads", program({"threads": {"intra_op": 4}}, device="cuda:0"))
    assert "not recorded" in refused("threads", program())
    assert "1 thread already" in refused("threads", program({"threads": {"intra_op": 1}}, num_cores=2))


def test_the_program_cannot_change_the_number_but_its_workers_do(trials: Trials) -> None:
    assert (trials.without["threads"], trials.remedied["threads"]) == (2, 3)
    assert trials.without["threads_of_workers"] == [2] * 8  # this loader has none
    assert trials.remedied["threads_of_workers"] == [1] * 8
