"""Colors: each has one meaning."""

from itertools import combinations

from charact.core.operator_types import OPERATOR_GROUPS, OPERATOR_TYPES, WITHOUT_OPERATOR
from charact.views.tables import palette


def test_phases_groups_limits_and_cases_share_no_color() -> None:
    sets = [set(colors.values()) for colors in (palette.PHASES, palette.GROUPS, palette.LIMITS)] + [set(palette.CASES)]
    for one, other in combinations(sets, 2):
        assert one.isdisjoint(other)
    assert [len(colors) for colors in sets] == [
        len(palette.PHASES), len(palette.GROUPS), len(palette.LIMITS), len(palette.CASES)]


def test_at_most_eight_groups_and_other_hold_every_type_once() -> None:
    assert len(OPERATOR_GROUPS) <= 8
    assert list(palette.GROUPS) == [*OPERATOR_GROUPS, "other"]
    kinds = [kind for group in OPERATOR_GROUPS.values() for kind in group]
    assert len(kinds) == len(set(kinds))
    assert set(OPERATOR_TYPES) - set(kinds) == {"autograd", "other", WITHOUT_OPERATOR}
