"""Types of the numbers and names in run.json."""

from typing import Annotated, Literal

from msgspec import Meta

from charact.record.schema import MEMORY_CATEGORIES, MOST_RANKS, PHASES

Count = Annotated[int, Meta(ge=0, le=2**53)]
RankCount = Annotated[int, Meta(ge=0, le=MOST_RANKS)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Share = Annotated[float, Meta(ge=0, le=1)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
Device = Annotated[str, Meta(pattern=r"^(n/a|[a-z_]{1,20}(:[0-9]{1,4})?)\Z")]
Phase = Literal[PHASES]  # type: ignore[valid-type]
Category = Literal[MEMORY_CATEGORIES]  # type: ignore[valid-type]
