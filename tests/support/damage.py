"""Files as they arrive when something went wrong on their way, and readers that may refuse them."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from charact.errors import UserError


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Content with a bit flipped, its end cut off, something put after it, or nothing wrong."""
    flipped = bytearray(content)
    flipped[draw(st.integers(0, len(content) - 1))] ^= 1 << draw(st.integers(0, 7))
    cut = content[: draw(st.integers(0, len(content)))]
    return draw(st.sampled_from([content, bytes(flipped), cut, content + draw(st.binary(max_size=40))]))


def attempt(read: Callable[..., Any], *arguments: Any) -> Any:
    """What a reader returns, or the error with which it refuses, which is one line."""
    try:
        return read(*arguments)
    except UserError as error:
        refusal = error
    assert "\n" not in str(refusal)
    return refusal
