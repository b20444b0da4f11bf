"""The threat model names tests that exist, and every attack in it names one."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)


def functions_of(path):
    tree = ast.parse((ROOT / path).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_every_named_test_exists():
    assert len(NAMED) > 20
    missing = [
        f"{path}::{name}"
        for path, name in NAMED
        if not (ROOT / path).is_file() or (name and name not in functions_of(path))
    ]
    assert missing == []


def test_every_attack_names_a_test():
    section = PAGE.partition("## Attacks and defences")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    assert [row for row in rows if "`tests/" not in row.rsplit("|", 2)[1]] == []


def test_the_security_page_links_to_it():
    assert "../docs/threat-model.md" in (ROOT / "k8s" / "README.md").read_text()
