"""`charact bricks`: commands on suites of bricks, one module per subcommand."""

from charact.commands.bricks.cli import group

__all__ = ["group"]
