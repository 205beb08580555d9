"""The command line: one module a group of commands, imported when one of them runs.

In: arguments. Out: text on the terminal, files, an exit code. Everything else is done by the stages before.
`warplens --help` must import neither numpy nor polars nor matplotlib, so that this package imports click alone.
"""

from warplens.cli.app import main

__all__ = ["main"]
