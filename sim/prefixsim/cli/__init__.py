"""The command line: wiring, no logic. Each command is one file `cmd_*.py` with `register(app)`; nothing else lists them.

Command files import heavy modules (numba, simpy, numpy) inside their functions: `prefixsim --help` must stay fast.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the `prefixsim` script."""
    from prefixsim.cli.app import run_app

    run_app()
