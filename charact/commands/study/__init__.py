"""`charact study`: repeats published studies."""

from charact.commands.study.cli import command

__all__ = ["command"]
