"""Hooks of MkDocs (mkdocs.yml): the site has the pages of ``docs/`` and the README files of the project, from one text each.

Links in the files are relative to the repository, so that they work where the repository is browsed. Here they become links between
pages; what they name besides pages (sources, tests) becomes text. Lists and tables follow their introduction at once, as they may where
the repository is browsed; Python-Markdown wants an empty line between.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {  # pages of the site that are not in docs/, by their address there
    "index.md": "README.md",
    "contributing-first.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "examples/glucose.md": "examples/glucose/README.md",
    "examples/stocks.md": "examples/stocks/README.md",
    "examples/clickstream.md": "examples/clickstream/README.md",
    "examples/nexmark.md": "examples/nexmark/README.md",
}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)]*)?\)")
_ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
_PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<target>[^)\s:]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decisions in the navigation, by number."""
    decisions = [f"decisions/{path.name}" for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))]
    config.nav = [*(config.nav or []), {"Decisions": decisions}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in ``docs/``."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Turns links of the repository into links of the site."""
    here = page.file.src_uri
    source = OUTSIDE.get(here, f"docs/{here}")
    pages = {origin: address for address, origin in OUTSIDE.items()}

    def address(target: str) -> str | None:
        """Where the site has ``target``, relative to this page."""
        named = normpath(str(PurePosixPath(source).parent / target))
        if (ROOT / named).is_dir() and f"{named}/README.md" in pages:
            named = f"{named}/README.md"
        at = pages.get(named) or (named.removeprefix("docs/") if named.startswith("docs/") else None)
        return None if at is None or files.get_file_from_path(at) is None else relpath(at, str(PurePosixPath(here).parent))

    def link(found: re.Match[str]) -> str:
        at = address(found["target"])
        if at is None and not (ROOT / PurePosixPath(source).parent / found["target"]).exists():
            return found[0]  # names nothing at all: MkDocs says so
        return found["text"] if at is None else f"[{found['text']}]({at}{found['anchor'] or ''})"

    def picture(found: re.Match[str]) -> str:
        return f"![{found['text']}]({address(found['target']) or found['target']})"

    return _PICTURE.sub(picture, _LINK.sub(link, separated(markdown)))


def separated(markdown: str) -> str:
    """The text with an empty line before each list and each table, outside of code."""
    lines: list[str] = []
    coded, block = False, ""
    for line in markdown.split("\n"):
        coded ^= line.lstrip().startswith("```")
        found = "" if coded else "list" if _ITEM.match(line) else "table" if line.startswith("|") else ""
        if found and found != block and lines and lines[-1].strip():
            lines.append("")
        # A list goes on through indented lines, and ends with an empty one as far as this matters.
        block = found or (block if line.startswith(" ") else "")
        lines.append(line)
    return "\n".join(lines)
