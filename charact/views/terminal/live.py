"""Live view of a running program or its ranks: a panel of a few lines, or one line without a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.text import Text

from charact.analysis.profile.machine_speed import Speed
from charact.record.schema import PHASES
from charact.views.document import Part, ShareBar
from charact.views.tables import format as fmt
from charact.views.tables import palette
from charact.views.terminal.renderer import drawn

NUM_LINES = 6
"""Number of lines of the panel: a title, a verdict, numbers, a bar, and two lines of legend."""
MOST_RANKS = 16
"""Maximum number of ranks in the panel of ranks."""
_STALLED_S, _STALLED_RATIO = 3.0, 5.0
_WAITING = ("backward", "communication")
"""Phases in which ranks wait for each other. How long a backward waits for its last all-reduce is not known yet."""
_LESS_WAITING_FRAC = 0.1
"""Minimum by which the share of `_WAITING` is smaller in the rank that the others wait for than in the others."""
_VERDICTS = {
    "data": "data-bound: {} of the time is spent waiting for batches",
    "communication": "communication-bound: {} of the time is spent exchanging data between processes",
    "other": "mostly outside of any phase: {} of the time (use charact run --sample to see where)",
}


@dataclass(frozen=True)
class State:
    """State of a running program.

    `num_iterations` have finished so far; `since_s` is the time since the last one finished, or since watching began;
    `memory_bytes` is the resident memory of the process; `speed` is None before the first iteration finished.
    """

    name: str
    num_iterations: int
    speed: Speed | None
    since_s: float
    memory_bytes: int | None


@dataclass(frozen=True)
class RankState:
    """State of a rank: `ending` is how its process ended, None while it runs."""

    rank: int
    state: State
    ending: str | None


def ranks_panel(ranks: Sequence[RankState], console: Console) -> list[str]:
    """Return the panel of ranks: a title, and a line for each of the first `MOST_RANKS` of at least one rank."""
    title = f"{ranks[0].state.name}, {len(ranks)} rank{'' if len(ranks) == 1 else 's'}"
    return _panel(console, title, *map(_cropped, _rank_lines(ranks)[:MOST_RANKS]))


def ranks_line(ranks: Sequence[RankState]) -> str:
    """Return the content of `ranks_panel` on one line without colors, for all ranks."""
    return f"{ranks[0].state.name}: {'; '.join(_rank_lines(ranks))}"


def _rank_lines(ranks: Sequence[RankState]) -> list[str]:
    awaited = _awaited(ranks)
    lines = []
    for rank in ranks:
        state, speed = rank.state, rank.state.speed
        iteration = f"iteration {state.num_iterations:,}, "
        if rank.ending is not None or speed is None or _is_stalled(state):
            text = f"{iteration if state.num_iterations else ''}{rank.ending or _verdict(state)}"
        else:
            largest = sorted(_parts(speed), key=lambda part: part.share_frac, reverse=True)[:2]
            shares = ", ".join(f"{part.name} {fmt.share(part.share_frac)}" for part in largest)
            text = f"{iteration}{fmt.seconds(speed.median_s)}, {shares}"
        lines.append(f"rank {rank.rank}: {text}{', the others wait for it' if rank.rank == awaited else ''}")
    return lines


def _awaited(ranks: Sequence[RankState]) -> int | None:
    """Return the rank with a clearly smaller share of `_WAITING` than every other; None if there is none."""
    running = [(sum(rank.state.speed.share_frac.get(phase, 0.0) for phase in _WAITING), rank.rank) for rank in ranks
               if rank.ending is None and rank.state.speed is not None]
    if len(running) < 2:
        return None
    (least, rank), (next_least, _), *_ = sorted(running)
    return rank if next_least - least >= _LESS_WAITING_FRAC else None


def panel(state: State, console: Console) -> list[str]:
    """Return the panel: at most `NUM_LINES` colored lines, as wide as the console."""
    numbers = _cropped(_memory(state)) if state.speed is None else \
        drawn(ShareBar(", ".join(_numbers(state, state.speed)), _parts(state.speed)))
    return _panel(console, f"{state.name}, {_mode(state)}", _cropped(_verdict(state), "bold"), numbers)[:NUM_LINES]


def _panel(console: Console, title: str, *below: RenderableType) -> list[str]:
    rule = Rule(Text.assemble(("charact ", "bold"), title), align="left", style="dim")
    with console.capture() as captured:
        console.print(rule, *below, sep="\n")
    return captured.get().splitlines()


def line(state: State) -> str:
    """Return the same content on one line without colors."""
    if state.speed is None:
        return f"{state.name}: {_verdict(state)}, {_memory(state)}"
    shares = ", ".join(f"{part.name} {fmt.share(part.share_frac)}" for part in _parts(state.speed))
    return f"{state.name}, {_mode(state)}: {', '.join(_numbers(state, state.speed))}; {shares}; {_verdict(state)}"


def _cropped(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _mode(state: State) -> str:
    if state.speed is None:
        return "starting"
    return f"{'training' if state.speed.training else 'inference'}, iteration {state.num_iterations:,}"


def _numbers(state: State, speed: Speed) -> list[str]:
    samples = fmt.number(speed.samples_per_s, fmt.no_samples(None))
    rate = f"samples/s {samples}" if speed.samples_per_s is None else f"{samples} samples/s"
    return [f"{fmt.seconds(speed.median_s)} per iteration", rate, _memory(state)]


def _memory(state: State) -> str:
    return f"memory {fmt.num_bytes(state.memory_bytes, 'the process has ended')}"


def _parts(speed: Speed) -> list[Part]:
    return [
        Part(phase, speed.share_frac[phase], palette.PHASES[phase],
             fmt.seconds(speed.share_frac[phase] * speed.median_s))
        for phase in PHASES if phase in speed.share_frac
    ]  # fmt: skip


def _verdict(state: State) -> str:
    """Return what bounds the program, or that no iteration has finished for a long time."""
    if state.speed is None:
        return f"no iteration has finished in {fmt.duration(round(state.since_s))}"
    if _is_stalled(state):
        return f"no iteration has finished for {fmt.duration(round(state.since_s))}"
    share = fmt.share(state.speed.share_frac[state.speed.bottleneck])
    if state.speed.is_bound:
        return _VERDICTS[state.speed.bottleneck].format(share)
    return f"most time is spent in {state.speed.bottleneck}: {share}"


def _is_stalled(state: State) -> bool:
    return state.speed is not None and state.since_s > max(_STALLED_S, _STALLED_RATIO * state.speed.median_s)
