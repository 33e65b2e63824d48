"""`charact sweep`: commands on sweeps."""

from charact.commands.sweep.cli import group

__all__ = ["group"]
