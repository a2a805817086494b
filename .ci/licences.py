"""Add licences to CycloneDX files, from the metadata of the installed packages: python .ci/licences.py FILE...

A licence is written as the package states it. Packages that are not installed here, such as those for another operating
system, keep none and are printed.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

_CLASSIFIER = "License :: "
_MAX_NAME_CHARS = 100
"""Longer values of the field `License` are the text of a licence, not its name."""


def find_licences(package: str) -> list[dict[str, Any]]:
    """Return the licences of an installed package as CycloneDX has them; none if it states none."""
    try:
        fields = metadata(package)
    except PackageNotFoundError:
        return []
    expression = fields.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    name = (fields.get("License") or "").strip()
    if name and name != "UNKNOWN" and "\n" not in name and len(name) <= _MAX_NAME_CHARS:
        return [{"license": {"name": name}}]
    classifiers = [line for line in fields.get_all("Classifier") or () if line.startswith(_CLASSIFIER)]
    return [{"license": {"name": line.rpartition(" :: ")[2]}} for line in classifiers]


def add_licences(document: dict[str, Any]) -> list[str]:
    """Add licences to the components of a document; return the names of those without one."""
    missing: list[str] = []
    for component in (document["metadata"]["component"], *document["components"]):
        licences = find_licences(component["name"])
        if licences:
            component["licenses"] = licences
        else:
            missing.append(component["name"])
    return missing


def main() -> None:
    """Add licences to the files that are named on the command line."""
    for name in sys.argv[1:]:
        file = Path(name)
        document = json.loads(file.read_text(encoding="utf-8"))
        missing = add_licences(document)
        file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        print(
            f"{file.name}: {len(document['components'])} components, without a licence: {missing or 'none'}"
        )


if __name__ == "__main__":
    main()
