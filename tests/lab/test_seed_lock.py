"""A seeded forge project is one of uv's: its lock file, and the wheel of Pestle in it."""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uv
from pestle_lab import packing, seeding
from pestle_lab.errors import LabError

tomllib = pytest.importorskip("tomllib", reason="the project needs Python 3.11, as this does")
ROOT = Path(__file__).parents[2]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lock") / "forge"
    seeding.write("forge", folder)
    return folder


@pytest.fixture(scope="module")
def packages(project):
    return tomllib.loads((project / "uv.lock").read_text())["package"]


def run_uv(folder, *arguments, code=0, env=None):
    """uv as the environment has it, or the one beside the packages that the tests read."""
    beside = Path(uv.__file__).parents[4] / "bin/uv"
    program = str(beside) if beside.exists() else uv.find_uv_bin()
    there = {"UV_OFFLINE": "1", "UV_NO_CACHE": "1", "UV_PYTHON_DOWNLOADS": "never",
             "UV_PYTHON": sys.executable}  # fmt: skip
    done = subprocess.run(
        [program, *arguments], cwd=folder, capture_output=True, text=True,
        env=os.environ | there | (env or {}),
    )  # fmt: skip
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def test_every_package_is_pinned_and_from_pypi(project, packages):
    asked = tomllib.loads((project / "pyproject.toml").read_text())
    named = {package["name"]: package for package in packages}
    (wheel,) = (project / "wheels").iterdir()
    for package in packages:
        assert package["version"], package["name"]
        files = [*package.get("wheels", []), package.get("sdist", {})]
        for file in filter(None, files):
            assert re.fullmatch("sha256:[0-9a-f]{64}", file["hash"]), package["name"]
        if package["name"] not in ("pestle", "forge-cute-py"):
            assert package["source"] == {"registry": "https://pypi.org/simple"}
            hosts = {urlsplit(file["url"]).netloc for file in files if file}
            assert hosts == {"files.pythonhosted.org"}, package["name"]
        for needed in package.get("dependencies", []):
            assert needed["name"] in named, (package["name"], needed)
    assert named["pestle"]["source"] == {"path": f"wheels/{wheel.name}"}
    (file,) = named["pestle"]["wheels"]
    assert file["filename"] == wheel.name
    assert file["hash"] == f"sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    for text in (
        *asked["project"]["dependencies"],
        *(one for extra in asked["project"]["optional-dependencies"].values() for one in extra),
        *asked["dependency-groups"]["dev"],
    ):
        assert normal(re.match(r"[\w.-]+", text)[0]) in named, text
    text = (project / "uv.lock").read_text() + (project / "pyproject.toml").read_text()
    assert "@" not in text and str(project) not in text and "file:" not in text


def test_its_versions_are_those_that_the_tests_run_with(packages):
    locked = {package["name"]: package["version"] for package in packages}
    lists = (ROOT / f"tools/requirements/{n}.txt" for n in ("constraints", "lint"))
    tested = dict(
        line.split("==")
        for line in "\n".join(path.read_text() for path in lists).splitlines()
        if "==" in line
    )
    tested = {normal(name): version for name, version in tested.items()}
    both = locked.keys() & tested.keys()
    assert {"torch", "numpy", "pytest", "ruff", "typer"} <= both
    assert {name: locked[name] for name in both} == {name: tested[name] for name in both}


def test_uv_takes_the_lock(project, tmp_path):
    run_uv(project, "lock", "--check")
    done = run_uv(project, "sync", "--locked", "--dry-run", "--no-install-project",
                  env={"UV_PROJECT_ENVIRONMENT": str(tmp_path / "new")})  # fmt: skip
    assert "+ pestle" in done.stderr and "+ torch==" in done.stderr, done.stderr
    stale = tmp_path / "stale"
    shutil.copytree(project, stale)
    pyproject = (stale / "pyproject.toml").read_text()
    (stale / "pyproject.toml").write_text(pyproject.replace('"pyyaml>=6"', '"pyyaml>=99"'))
    run_uv(stale, "lock", "--check", code=1)


def test_uv_run_works_from_the_lock(project):
    """In the environment of these tests, which stands for that of `uv sync`."""
    here = {"UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_NO_SYNC": "1"}
    done = run_uv(project, "run", "--locked", "python", "-m", "forge_cute_py.env_check", env=here)
    assert "is right" in done.stdout


def test_the_wheel_is_what_is_installed(project, tmp_path):
    (wheel,) = (project / "wheels").iterdir()
    assert packing.place(tmp_path / "again", None).path.read_bytes() == wheel.read_bytes()
    installed = importlib.metadata.distribution("pestle")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in names - {f"pestle-{installed.version}.dist-info/RECORD"}:
            assert archive.read(name) == Path(installed.locate_file(name)).read_bytes(), name
    assert {"pestle/libpestle_torch.so", "pestle_lab/seeds/forge/uv.lock"} <= names
    assert not any("__pycache__" in name or name.startswith("..") for name in names)
    target = tmp_path / "installed"
    run_uv(tmp_path, "pip", "install", "--no-deps", "--target", str(target), str(wheel))
    shown = "import pestle, torch; pestle.rms_norm(torch.ones(2, 8)); print(pestle.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", shown], env=os.environ | {"PYTHONPATH": str(target)}, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(str(target)), done.stderr
    assert os.access(target / "bin/pestle-lab", os.X_OK)


def test_a_wheel_that_is_given(project, tmp_path):
    (wheel,) = (project / "wheels").iterdir()
    other = tmp_path / "pestle-0.2.0-py3-none-manylinux_2_35_aarch64.whl"
    shutil.copyfile(wheel, other)
    written = seeding.write("forge", tmp_path / "arm", other)
    assert tmp_path / "arm/uv.lock" not in written
    assert other.name in (text := (tmp_path / "arm/pyproject.toml").read_text())
    assert "platform_machine == 'aarch64'" in text
    newer = tmp_path / other.name.replace("aarch64", "x86_64")
    shutil.copyfile(wheel, newer)
    seeding.write("forge", tmp_path / "newer", newer)
    assert 'name = "pestle"\nversion = "0.2.0"' in (tmp_path / "newer/uv.lock").read_text()


def test_what_is_no_wheel_is_said(tmp_path, monkeypatch):
    (tmp_path / "pestle-1-py3-none-any.whl").write_text("no archive")
    for wrong in ("pestle-1-py3-none-any.whl", "torch-2-py3-none-any.whl", "missing.whl"):
        with pytest.raises(LabError, match="no wheel pestle-"):
            seeding.write("forge", tmp_path / "new", tmp_path / wrong)
    with pytest.raises(LabError, match="no use to the seed gemv"):
        seeding.write("gemv", tmp_path / "new", tmp_path / "pestle-1-py3-none-any.whl")
    monkeypatch.setattr(packing, "__file__", str(tmp_path / "tree/pestle_lab/packing.py"))
    with pytest.raises(LabError, match="is not installed: name the wheel"):
        seeding.write("forge", tmp_path / "new")
    assert not (tmp_path / "new").exists()
