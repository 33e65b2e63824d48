"""Names of the machines on which runs were recorded."""

from charact.record.reader import Run


def machine_name(run: Run) -> str | None:
    """Return the device names and the host name as "DEVICE + DEVICE on HOST"; None if the record has neither."""
    devices, hostname = device_text(run), run.manifest.get("machine", {}).get("hostname")
    return f"{devices} on {hostname}" if devices and hostname else devices or hostname


def device_text(run: Run) -> str | None:
    """Return the device names as "DEVICE + DEVICE", a processor with its usable cores; None if the record has none."""
    machine = run.manifest.get("machine", {})
    cpu = machine.get("cpu") or {}
    model, num_cores = cpu.get("model"), cpu.get("num_usable_cores")
    cores = "" if num_cores is None else f", {num_cores} core{'' if num_cores == 1 else 's'}"
    devices = dict.fromkeys(entry.device_name for entry in run.entries if entry.device_name)
    names = [f"{name}{cores}" if name == model else name for name in devices]
    names = names or [gpu["name"] for gpu in machine.get("gpus", []) if gpu.get("name")] or ([model] if model else [])
    return " + ".join(names) or None
