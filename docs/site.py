"""Hooks of MkDocs: the README is the first page, index.md is the navigation, and links to code become names."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
HOME, LIST, README = "index.md", "pages.md", "README.md"  # pages of the site; the file of the first
LISTED = ROOT / "docs" / "index.md"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Return the config with the groups of index.md as its navigation, and the pages of families and architectures."""
    groups = re.split(r"^## ", LISTED.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    config.nav = [{"txport": HOME}, {"All pages": LIST}]
    for group in groups:
        title, _, rest = group.partition("\n")
        pages = [{name: place} for _, name, place, _ in LINK.findall(rest) if place.endswith(".md") and place[0] != "."]
        config.nav.append({title: pages})
    for folder in ("families", "architectures"):
        pages = sorted(path.relative_to(LISTED.parent).as_posix() for path in (LISTED.parent / folder).glob("*.md"))
        config.nav.append({folder.title(): pages})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Return the files with the README as the first page; the list of all pages is another one."""
    listed = files.get_file_from_path(LISTED.name)
    assert listed is not None
    files.remove(listed)
    for name, path in ((HOME, ROOT / README), (LIST, LISTED)):
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page in which links to files outside of the documents are names of these files."""
    folder = "" if page.file.src_uri == HOME else posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def linked(found: re.Match[str]) -> str:
        mark, name, place, anchor = found.groups()
        if "://" in place or place.startswith("mailto:"):
            return found[0]
        target = posixpath.normpath(posixpath.join(folder, place))
        if target == README:
            return f"[{name}]({_relative(HOME, page)}{anchor or ''})"
        if target == LISTED.relative_to(ROOT).as_posix():
            return f"[{name}]({_relative(LIST, page)}{anchor or ''})"
        if target.startswith("docs/") and (ROOT / target).is_file():
            return f"{mark}[{name}]({_relative(target.removeprefix('docs/'), page)}{anchor or ''})"
        is_outside = (ROOT / target).exists() and (not target.startswith("docs/") or (ROOT / target).is_dir())
        return name if is_outside else found[0]

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(linked, part) for part in parts)


def _relative(target: str, page: Any) -> str:
    return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
