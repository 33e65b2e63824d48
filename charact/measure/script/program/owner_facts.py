"""Facts of the owners of slices: models, optimizers and loaders' iterators. Imports no torch when loaded."""

from collections.abc import Callable, Mapping
from typing import Any

from charact.measure.script.program.frames import CreationPlaces


def owner_facts(number: int, objects: Mapping[int, Any], variable: str | None, places: CreationPlaces
                ) -> dict[str, Any]:
    """Return a note with the current facts of an owner."""
    from charact.measure.script.program.settings import model_settings, optimizer_settings

    obj = objects[number]
    facts: dict[str, Any] = {"note": "owner", "owner": number, "class": type(obj).__name__, "variable": variable}
    if hasattr(obj, "param_groups"):
        owned = {id(parameter) for group in obj.param_groups for parameter in group["params"]}
        models = [other for other, one in objects.items() if hasattr(one, "parameters")
                  and any(id(parameter) in owned for parameter in one.parameters())]
        return facts | {"kind": "optimizer", "models": models} | _settings(optimizer_settings, obj, places.of(obj))
    if hasattr(obj, "named_modules"):
        from torch.nn.parameter import is_lazy

        sizes = [parameter.numel() for parameter in obj.parameters() if not is_lazy(parameter)]
        modules = {id(module) for module in obj.modules()} - {id(obj)}
        parts = [other for other, one in objects.items() if id(one) in modules]
        settings = _settings(model_settings, obj, {}) if sizes else {}
        return facts | {"kind": "model", "num_parameters": sum(sizes), "parts": parts} | settings
    sampler = getattr(obj, "_index_sampler", None)
    return facts | {"kind": "loader", "batch_size": getattr(sampler, "batch_size", None),
                    "num_workers": getattr(obj, "_num_workers", None)}


def _settings(read: Callable[[Any], dict[str, Any]], obj: Any, place: dict[str, Any]) -> dict[str, Any]:
    """Return the settings as part of a note; empty if a class of the program lacks an attribute."""
    try:
        return {"settings": read(obj) | place}
    except Exception:
        return {}
