"""Links of README.md and CONTRIBUTING.md lead to files that are there, and to their headings; Sphinx looks at docs/."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors_of(page: Path) -> set[str]:
    """As GitHub and MyST make them of headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str):
    links = LINK.findall((ROOT / page).read_text())
    assert [path for path, _ in links if not (ROOT / (path or page)).exists()] == []
    anchored = [(path or page, anchor) for path, anchor in links if anchor]
    assert [each for each in anchored if each[1] not in anchors_of(ROOT / each[0])] == []
