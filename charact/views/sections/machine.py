"""The section Machine: hardware, software and options of a run."""

from typing import Any

from charact.record.reader import Run
from charact.views.document import Body, Facts
from charact.views.section import Section
from charact.views.tables import format as fmt


def _html(run: Run) -> Body:
    manifest = run.manifest
    times = [(name, str(manifest.get(name) or fmt.missing("not recorded")).replace("T", " "))
             for name in ("started", "ended")]
    lists = [Facts("Run", [("run", run.run_id), ("status", str(manifest["status"])), *times])]
    if manifest.get("anonymous"):
        lists[0].items.append(("anonymous", "names of the host and the user, paths, the commit and identifiers of GPUs "
                                            "are removed"))
    # All cases of a model share these facts, except for the mode.
    model = {key: value for entry in run.entries for key, value in (entry.facts or {}).items()}
    if model:
        lists.append(Facts("Model", _items(model)))
    for title in ("machine", "software", "options"):
        facts = manifest.get(title) or {}
        if title == "options":  # another section shows the script; arguments are private
            facts = {key: value for key, value in facts.items() if key not in ("script", "arguments")}
        if facts.get("no_gpu_reason") and not facts.get("gpus"):
            facts = {key: value for key, value in facts.items() if key != "no_gpu_reason"}
            facts["gpus"] = fmt.missing(manifest["machine"]["no_gpu_reason"])
        items = _items(facts, nothing="not given" if title == "options" else "not found")
        lists.append(Facts(title.capitalize(), items or [(title, fmt.missing("not recorded"))]))
    return Body(facts=lists)


def _items(facts: dict[str, Any], prefix: str = "", nothing: str = "not found") -> list[tuple[str, str]]:
    """Flatten nested facts into one list: names joined, values formatted by the unit at the end of the name."""
    items = []
    for key, value in facts.items():
        name = f"{prefix}{key if key.isupper() else key.removeprefix('num_').replace('_', ' ')}"
        if isinstance(value, dict) and value:
            items += _items(value, f"{name} ", nothing)
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for number, each in enumerate(value):
                items += _items(each, f"{name} {number} ", nothing)
        else:
            items.append(_item(key, name, value, nothing))
    return items


def _item(key: str, name: str, value: Any, nothing: str) -> tuple[str, str]:
    if value is None:
        return name, fmt.missing(nothing)
    if value in ([], {}, ""):
        return name, "none"
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, (int, float)):
        for suffix, words in (("_bytes", fmt.num_bytes), ("_frac", fmt.share)):
            if key.endswith(suffix):
                return name.removesuffix(suffix.replace("_", " ")), words(value)
        return name, str(value)
    return name, ", ".join(_item("", "", each, nothing)[1] for each in value) if isinstance(value, list) else str(value)


SECTION = Section("machine", "Machine", 210, _html, folded="What the machine, its software and the run’s options were")
