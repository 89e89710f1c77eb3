#!/usr/bin/env python3
"""usage: tools/docs.py: builds the site into build/site: the pages of docs/site, one for every op
from docs/ops.md, the Python API from the stub, and plots of bench/results. Warnings are errors.
Needs tools/setup.sh docs only."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "docs"


def _without_links(text: str) -> str:
    """Links to files that are not on the site become plain words."""
    return re.sub(r"\[([^][]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def _notes(name: str) -> str:
    """The op's own page: maths, floor, what was measured; one level of headings below ours."""
    (page,) = (ROOT / "ops").glob(f"**/{name}/{name}.md")
    text = page.read_text()
    body = re.sub(r"^# .*\n", "", text, count=1)
    body = re.sub(r"^(#+) ", r"#\1 ", body, flags=re.MULTILINE)
    return f"\n## Notes\n\n{_without_links(body)}"


def op_pages() -> None:
    """docs/ops.md is one section for each op; here each is a page, behind an index."""
    text = (ROOT / "docs" / "ops.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    (PAGES / "ops").mkdir()
    lines = ["# Ops", "", "| op | |", "|---|---|"]
    for section in sections:
        name, _, body = section.partition("\n")
        body = _without_links(re.sub(r" \[Notes\]\([^)]*\)", "", body)).strip()
        (PAGES / "ops" / f"{name}.md").write_text(f"# {name}\n\n{body}\n{_notes(name)}")
        doc = re.sub(r" Source: .*", "", body.split("\n")[0])
        lines.append(f"| [{name}](ops/{name}.md) | {doc} |")
    (PAGES / "ops.md").write_text("\n".join(lines) + "\n")


def _entry(node: ast.AST) -> str:
    doc = ast.get_docstring(node) or ""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign)]
        code = f"class {node.name}({bases})" if bases else f"class {node.name}"
        code += "".join(f"\n    {field}" for field in fields)
    else:
        arguments = ast.unparse(node.args).replace(", *, ", ",\n    *,\n    ", 1)
        code = f"{node.name}({arguments}) -> {ast.unparse(node.returns)}"
    body = f"\n```text\n{doc}\n```\n" if doc else ""
    return f"### {node.name}\n\n```python\n{code}\n```\n{body}"


def api_page() -> None:
    path = ROOT / "python" / "pestle" / "__init__.pyi"
    kinds = (ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, kinds)]
    parts = ["# Python API", "", "Made from the type stub, which is made from the table.", ""]
    parts += [_entry(node) for node in nodes]
    (PAGES / "api.md").write_text("\n".join(parts))


def performance_page() -> None:
    """Plots of the committed results, one file that stands alone."""
    tool = [sys.executable, str(ROOT / "tools" / "performance.py")]
    subprocess.run([*tool, "--html", str(PAGES / "performance.html")], check=True)


def main() -> None:
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "site", PAGES, ignore=shutil.ignore_patterns("mkdocs.yml"))
    op_pages()
    api_page()
    performance_page()
    config = str(ROOT / "docs" / "site" / "mkdocs.yml")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", config]
    subprocess.run(command, check=True)
    print(f"build/site/index.html and {len(list((ROOT / 'build/site').rglob('*.html'))) - 1} more")


if __name__ == "__main__":
    main()
