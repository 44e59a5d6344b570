"""The command line."""

from edgeprec.cli.group import main

__all__ = ["main"]
