"""Pages of the site as the generator wants them: the README is its home, the decisions are listed by themselves.

Links to what is in the repository and not on the site become its path; a link to a page that is not there stays one,
and the build says so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
_ROLE = re.compile(r":(?:class|meth|mod|func|attr|data|exc):(?=<code>)")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]+)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the decisions in their order."""
    decisions = ["decisions/README.md", *sorted(f"decisions/{page.name}" for page in _decisions())]
    config.nav = _filled(config.nav, decisions)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make the README the home page."""
    text = (ROOT / "README.md").read_text().replace("](docs/decisions)", "](docs/decisions/README.md)")
    files.append(File.generated(config, "index.md", content=_repository_links(text, ROOT).replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Say where in the repository a file is that the site does not have."""
    if page.file.src_uri == "index.md":
        return markdown
    return _repository_links(markdown, (Path(config.docs_dir) / page.file.src_uri).parent)


def on_page_content(html: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Leave out the roles that docstrings give to names."""
    return _ROLE.sub("", html)


def _repository_links(text: str, base: Path) -> str:
    def changed(link: re.Match[str]) -> str:
        target = base / link[2]
        if "://" in link[2] or not target.exists() or target.resolve().is_relative_to(ROOT / "docs"):
            return link[0]
        path = target.resolve().relative_to(ROOT)
        return link[1] if str(path) in link[1] else f"{link[1]} (`{path}`)"

    return _LINK.sub(changed, text)


def _decisions() -> list[Path]:
    return [page for page in (ROOT / "docs" / "decisions").glob("*.md") if page.name != "README.md"]


def _filled(nav: Any, decisions: list[str]) -> Any:
    if isinstance(nav, list):
        return [_filled(one, decisions) for one in nav]
    if isinstance(nav, dict):
        return {name: decisions if one == "decisions/" else _filled(one, decisions) for name, one in nav.items()}
    return nav
