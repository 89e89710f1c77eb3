#!/usr/bin/env python3
"""usage: tools/seed_lock.py: makes python/pestle_lab/seeds/forge/uv.lock anew, which is needed when
the dependencies of pyproject.toml or of that seed change. Its versions are those that Pestle is
tested with (tools/requirements), and of packages that are not among these the newest; it names PyPI
and no other index. Needs tools/setup.sh lab and a wheel in dist/ (make wheel)."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from pestle_lab import packing, seeding  # noqa: E402

SEED = seeding.TEMPLATES / "forge"
HOSTS = {"https://pypi.org", "https://files.pythonhosted.org"}


def pins() -> list[str]:
    """`NAME==VERSION` of every package that the tests run with."""
    found = []
    for name in ("constraints", "lint"):
        text = (ROOT / f"tools/requirements/{name}.txt").read_text()
        found += re.findall(r"^[\w.-]+==[^\s;]+", text, re.MULTILINE)
    return found


def lock(project: Path) -> str:
    command = ["uv", "lock", "--no-config", "--default-index", "https://pypi.org/simple"]
    for pin in pins():
        command += ["--upgrade-package", pin]
    (project / "uv.lock").unlink()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UV_")}
    subprocess.run(command, cwd=project, env=environment, check=True)
    return (project / "uv.lock").read_text()


def main() -> None:
    wheels = sorted((ROOT / "dist").glob("pestle-*manylinux*_x86_64.whl"))
    if not wheels:
        sys.exit("seed_lock: no wheel in dist/: make wheel")
    (SEED / "uv.lock").touch()
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "forge"
        seeding.write("forge", project, wheels[-1])
        made = lock(project)
    marks = seeding.marks_of(packing.Wheel(wheels[-1]))
    for mark in ("@WHEEL@", "@SHA256@"):
        made = made.replace(marks[mark], mark)
    # Other packages may have the same version.
    made = re.sub(r'(name = "pestle"\nversion = )"[^"]*"', r'\1"@VERSION@"', made)
    if others := set(re.findall(r"\w+://[^/\"]+", made)) - HOSTS:
        sys.exit(f"seed_lock: uv wrote other places than PyPI's: {', '.join(sorted(others))}")
    (SEED / "uv.lock").write_text(made)
    print(f"{SEED / 'uv.lock'}: {made.count('[[package]]')} packages")


if __name__ == "__main__":
    main()
