"""What GitHub shows as it stands, and a site must be told: links to files outside docs/, and names of functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")
_NAME = re.compile(r"(?<!\[)`(ta_grpo(?:\.\w+)+)`")
_WITH_FUNCTIONS = ("method.md",)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Links that leave docs/ go to the repository, or without a ``repo_url`` become text; one to nothing stays, so that
    a strict build fails. On the page of the method, names of functions link to the reference.
    """
    folder = Path(page.file.abs_src_path).parent
    docs = Path(config["docs_dir"])

    def moved(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(docs) or not target.exists():
            return found[0]
        if not config["repo_url"]:
            return found[1]
        return f"[{found[1]}]({config['repo_url'].rstrip('/')}/blob/main/{target.relative_to(_ROOT)})"

    markdown = _LINK.sub(moved, markdown)
    if page.file.src_uri in _WITH_FUNCTIONS:
        markdown = _NAME.sub(r"[`\1`][\1]", markdown)
    return markdown
