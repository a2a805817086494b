"""The command line: the methods of the library as commands. Needs the extra `cli`.

`main` is the entry point, `loading` lists the module of each command, `render` writes tables or JSON.
"""

from __future__ import annotations

import json
import os
import sys

from acms.errors import MissingExtraError

__all__ = ["main"]


def main() -> None:
    """Run the command line; exit with 0 on success, 1 after a typed error, 2 after wrong usage."""
    _open_closed_streams()
    try:
        import rich
        import typer
    except ImportError as missing:
        package = (missing.name or "typer").partition(".")[0]
        _report_missing_extra(MissingExtraError("cli", package))
        raise SystemExit(1) from None
    del rich, typer
    from acms.cli.loading import load_commands

    words = sys.argv
    if "_ACMS_COMPLETE" in os.environ:  # a shell completes the last of these words
        words = _read_completed_words()
    load_commands(words[1:])(prog_name="acms")


def _open_closed_streams() -> None:
    """Replace streams that a shell closed, so that no other file gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # stays open until the process ends


def _report_missing_extra(error: MissingExtraError) -> None:
    if "--json" not in sys.argv:
        print(f"error {error.code}: {error}", file=sys.stderr)
        for option in error.options:
            print(f"  try: {option}", file=sys.stderr)
        return
    value = {
        "code": error.code,
        "message": str(error),
        "options": list(error.options),
        "retryable": False,
    }
    print(json.dumps({"error": value}), file=sys.stderr)


def _read_completed_words() -> list[str]:
    count = os.environ.get("COMP_CWORD", "")
    words = os.environ.get("COMP_WORDS", "").split()
    return words[: int(count)] if count.isdecimal() else []
