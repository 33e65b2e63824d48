"""`charact bricks`: suites of bricks, one subcommand a file."""

from charact.commands.bricks.cli import group

__all__ = ["group"]
