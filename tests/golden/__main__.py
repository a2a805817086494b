"""Record the golden outputs, compare with them, or store a database of today's state."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from . import book, stored
from .areas import areas


def main() -> int:
    """Do what the arguments say; 1 when something is not as recorded."""
    os.environ["ACMS_EMBEDDER"] = "none"  # as in the tests
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("what", choices=("record", "compare", "store"))
    parser.add_argument("name", nargs="?", default="", help="of the database to store")
    parser.add_argument(
        "--only", default="", help="areas with this in their names, such as recall or recall/locomo"
    )
    parser.add_argument("--slow", action="store_true", help="compare the slow areas too; record always does")
    given = parser.parse_args()
    if given.what == "store":
        print(asyncio.run(stored.write(given.name)))
        return 0
    failed = 0
    for area in areas():
        if given.only not in str(area) or (area.slow and given.what == "compare" and not given.slow):
            continue
        began = time.process_time()
        found = book.normal(area.records())
        took = f"{len(found)} results, {time.process_time() - began:.1f} s"
        if given.what == "record":
            book.write(area.family, area.source, found)
            print(f"{area}: {took}", flush=True)
            continue
        apart = book.differences(book.read(area.family, area.source), found)
        failed += bool(apart)
        print(f"{area}: {apart or 'as recorded'} ({took})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
