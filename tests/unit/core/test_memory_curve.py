"""The memory curve against sums over all blocks at each moment."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charact.core.memory_curve import MAX_TIMELINE_SNAPSHOTS, Block, MemoryCurve, Place, Snapshot

MOMENTS = st.integers(0, 30)
CATEGORIES = ("weights", "temporary", "input")


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    birth = draw(st.none() | MOMENTS)
    death = draw(st.none() | st.integers((birth or 0) + 1, 40))
    return Block(draw(st.integers(0, 100)), draw(st.sampled_from(CATEGORIES)), birth=birth, death=death,
                 origin=draw(st.sampled_from(["tensors", "rounding"])))


PLACES = st.lists(st.builds(Place, MOMENTS, st.sampled_from(["forward", "backward"])), min_size=1, max_size=60)


def in_use(block: Block, moment: int) -> bool:
    return (block.birth is None or block.birth <= moment) and (block.death is None or moment < block.death)


@given(st.lists(blocks(), max_size=30), PLACES)
def test_every_snapshot_is_the_sum_of_the_blocks_in_use(made: list[Block], places: list[Place]) -> None:
    curve = MemoryCurve.of(made, places, [("unknown", "tensors")])
    assert [snapshot.place.moment for snapshot in curve.snapshots] == sorted(place.moment for place in places)
    for snapshot in curve.snapshots:
        live = [block for block in made if in_use(block, snapshot.place.moment)]
        assert snapshot.total_bytes == sum(block.num_bytes for block in live) == sum(snapshot.held.values())
        assert snapshot.held["unknown", "tensors"] == 0
        for category in CATEGORIES:
            assert snapshot.categories.get(category, 0) == sum(
                block.num_bytes for block in live if block.category == category)
        for key, num_bytes in snapshot.held.items():
            assert num_bytes == sum(block.num_bytes for block in live if (block.category, block.origin) == key)


@given(st.lists(blocks(), max_size=30), PLACES)
def test_peaks_are_the_first_of_the_most(made: list[Block], places: list[Place]) -> None:
    curve = MemoryCurve.of(made, places)

    def first_of_most(snapshots: list[Snapshot]) -> Snapshot:
        most = max(snapshot.total_bytes for snapshot in snapshots)
        return next(snapshot for snapshot in snapshots if snapshot.total_bytes == most)

    assert curve.peak is first_of_most(curve.snapshots)
    by_phase = {phase: [snapshot for snapshot in curve.snapshots if snapshot.place.phase == phase]
                for phase in ("forward", "backward")}
    assert {phase: id(snapshot) for phase, snapshot in curve.phase_peaks().items()} == {
        phase: id(first_of_most(snapshots)) for phase, snapshots in by_phase.items() if snapshots}


def curve_of_totals(totals: list[int], phases: list[str | None]) -> MemoryCurve:
    return MemoryCurve([Snapshot(Place(number * 1000, phase), {("unknown", None): total}, total)
                        for number, (total, phase) in enumerate(zip(totals, phases, strict=True))])


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["forward", "loss", None])), min_size=1, max_size=900)
       .filter(lambda points: any(phase for _, phase in points)))
def test_thinning_keeps_the_peaks_and_the_distance(points: list[tuple[int, str | None]]) -> None:
    totals, phases = zip(*points, strict=True)
    curve = curve_of_totals(list(totals), list(phases))
    timeline = curve.timeline()
    assert {id(snapshot) for snapshot in curve.phase_peaks().values()} <= set(map(id, timeline))
    assert timeline[0] is curve.snapshots[0]
    assert len(timeline) <= MAX_TIMELINE_SNAPSHOTS + len(curve.phase_peaks())
    if len(points) <= MAX_TIMELINE_SNAPSHOTS:
        assert timeline == curve.snapshots
    moments = [snapshot.place.moment for snapshot in timeline]
    stride = -(-len(points) // MAX_TIMELINE_SNAPSHOTS) * 1000
    assert all(0 < later - earlier <= stride for earlier, later in itertools.pairwise(moments))


def test_a_snapshot_outside_of_phases_is_no_peak() -> None:
    curve = curve_of_totals([3, 9, 5, 5], ["forward", None, "loss", "loss"])
    assert curve.peak is curve.snapshots[2]
    assert curve.phase_peaks() == {"forward": curve.snapshots[0], "loss": curve.snapshots[2]}


@pytest.mark.parametrize("method", ["measured", "predicted"])
def test_rows_are_the_peaks_and_the_timeline(method: str) -> None:
    made = [Block(8, "weights", origin="tensors"), Block(4, birth=2, death=3, origin="tensors"),
            Block(2, birth=2, death=3, origin="rounding")]
    places = [Place(1, "forward", "0", "aten::mm"), Place(2, "backward", None, "aten::mm"), Place(3, None)]
    rows = MemoryCurve.of(made, places).rows(method)  # type: ignore[arg-type]
    assert {row["method"] for row in rows} == {method}
    held = {(row["kind"], row["phase"], row["moment"], row["category"], row["origin"]): row["bytes"] for row in rows}
    at_peak = {("weights", "tensors"): 8.0, ("temporary", "tensors"): 4.0, ("temporary", "rounding"): 2.0}
    points = [("phase_peak", "forward", None, {("weights", "tensors"): 8.0}),
              ("timeline", "forward", 0, {("weights", "tensors"): 8.0}),
              ("timeline", None, 2, {("weights", "tensors"): 8.0, ("temporary", "tensors"): 0.0}),
              *((kind, "backward", number, at_peak)
                for kind, number in (("peak", None), ("phase_peak", None), ("timeline", 1)))]
    assert held == {(kind, phase, number, *key): num_bytes for kind, phase, number, by_key in points
                    for key, num_bytes in by_key.items()}
    assert [(row["layer"], row["operator"]) for row in rows if row["phase"] == "forward"] == [("0", "aten::mm")] * 2
    times = {row["moment"]: row["time_s"] for row in rows}
    assert times == {None: None, **({0: 0.0, 1: 1e-9, 2: 2e-9} if method == "measured" else dict.fromkeys(range(3)))}
