"""Drawing figures, and writing them with their captions: all files, or none."""

import contextlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from charact.core.errors import UserError
from charact.core.files import atomic_write, file_name, reading, writing
from charact.record.reader import Run
from charact.views.export.markdown import escaped
from charact.views.papers._figure import NoData, all_figures, style

CAPTIONS = "captions.md"
_HEAD = "# Captions of figures drawn by charact"
_METADATA = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
"""No time of writing: equal runs give equal files."""


def write_figures(runs: Sequence[Run], name: str, to: Path, formats: Sequence[str], width_in: float,
                  ) -> tuple[list[str], dict[str, str]]:
    """Draw all figures of runs, and write them with their captions.

    Captions of other runs in the directory are kept.

    Returns:
        names of the files; and by figure, the reasons why some were not drawn.

    Raises:
        UserError: a file cannot be written, or captions.md is not charact's.
    """
    files: dict[str, bytes] = {}
    captions: dict[str, str] = {}
    missing: dict[str, str] = {}
    with mpl.rc_context(style()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # names in scripts that the font lacks
        for figure in all_figures():
            try:
                drawn = figure.draw(runs, width_in)
            except NoData as reason:
                missing[figure.name] = str(reason)
                continue
            stem = file_name(f"{name}-{figure.name}")
            captions[stem] = drawn.caption
            files |= {f"{stem}.{form}": _file(drawn.figure, form) for form in formats}
    if files:
        with writing(to):
            to.mkdir(parents=True, exist_ok=True)
        files[CAPTIONS] = _captions(to / CAPTIONS, captions).encode()
        with contextlib.ExitStack() as stack:  # no file gets its name before all are written
            for path, content in files.items():
                stack.enter_context(atomic_write(to / path)).write_bytes(content)
    return list(files), missing


def _file(figure: Figure, form: str) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=form, metadata=_METADATA[form])
    return content.getvalue()


def _captions(path: Path, captions: Mapping[str, str]) -> str:
    """Return the text of captions.md: earlier paragraphs of other figures, and the given ones."""
    earlier: list[str] = []
    if path.exists():
        with reading(path):
            text = path.read_text(encoding="utf-8", errors="replace")
        if not text.startswith(_HEAD):
            raise UserError(f"{path} is not charact's: --to names another directory")
        names = [f"**{escaped(name)}**" for name in captions]
        earlier = [each for each in re.split("\n\n", text.strip())[1:] if each.partition(": ")[0] not in names]
    paragraphs = [f"**{escaped(name)}**: {escaped(caption)}" for name, caption in captions.items()]
    return "\n\n".join([_HEAD, *earlier, *paragraphs]) + "\n"
