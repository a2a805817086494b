"""What the site has beyond docs/: the examples, the changelog, and every decision in the navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def on_config(config: Any) -> Any:
    """List the decisions, by number, and the modules of the reference in the navigation."""
    for entry in config["nav"]:
        if "Decisions" in entry:
            entry["Decisions"] = _list_pages("decisions")
        for page in entry.get("Look up", []):
            if "Modules" in page:
                page["Modules"] = _list_pages("reference")
    return config


def _list_pages(folder: str) -> list[str]:
    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}/{page.name}" for page in pages]


def on_files(files: Any, config: Any) -> Any:
    """Add the examples as files and the changelog as a page."""
    from mkdocs.structure.files import File

    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=changelog))
    for example in sorted((ROOT / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{example.name}", abs_src_path=str(example)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links to the examples, written for the repository, lead to those of the site."""
    return markdown.replace("](../examples/", "](examples/")
