"""Names of the machines on which runs were recorded."""

from charact.record.reader import Run


def machine_name(run: Run) -> str | None:
    """Return the device names and the host name as "DEVICE + DEVICE on HOST"; None if the record has neither."""
    machine = run.manifest.get("machine", {})
    devices = dict.fromkeys(entry.get("device_name") for entry in run.manifest["cases"] if entry.get("device_name"))
    cpu = machine.get("cpu") or {}
    cores = f", {_cores(cpu['num_usable_cores'])}" if cpu.get("num_usable_cores") is not None else ""
    names = [f"{name}{cores}" if name == cpu.get("model") else str(name)
             for name in devices]  # fmt: skip
    if not names:
        gpus = [gpu["name"] for gpu in machine.get("gpus", []) if gpu.get("name")]
        names = gpus or [model for model in (cpu.get("model"),) if model]
    hostname = machine.get("hostname")
    return " on ".join([" + ".join(names), *([hostname] if hostname else [])]) if names else hostname


def _cores(number: int) -> str:
    return f"{number} core{'' if number == 1 else 's'}"
