"""The command line: the same verbs as the library, for a shell. Needs the extra `cli`.

`main` is the door; `loading` says where each command is, `render` writes for people or as JSON.
"""

from __future__ import annotations

import json
import os
import sys

from acms.errors import MissingExtraError

__all__ = ["main"]


def main() -> None:
    """Run the command line; leaves with 0 when done, 1 after a typed error, 2 for wrong usage."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by a shell: no file of ours may come by its number
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for the whole process
    try:
        import rich
        import typer
    except ImportError as missing:
        package = (missing.name or "typer").partition(".")[0]
        error = MissingExtraError("cli", package)
        if "--json" in sys.argv:
            plain = {
                "code": error.code,
                "message": str(error),
                "options": list(error.options),
                "retryable": False,
            }
            print(json.dumps({"error": plain}), file=sys.stderr)
        else:
            print(f"error {error.code}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    del rich, typer
    from acms.cli.loading import load

    words = sys.argv
    if "_ACMS_COMPLETE" in os.environ:  # a shell completes the last of these
        place = os.environ.get("COMP_CWORD", "")
        words = os.environ.get("COMP_WORDS", "").split()[: int(place) if place.isdecimal() else 0]
    load(words[1:])(prog_name="acms")
