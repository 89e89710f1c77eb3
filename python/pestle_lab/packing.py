"""The wheel that a seeded project takes along, so that uv installs Pestle from the project itself:
a file that is named, or the installed package packed again."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError

_NAME = re.compile(r"pestle-(?P<version>[^-]+)-py3-none-(?P<platform>[\w.]+)\.whl")
# What an installer writes beside a wheel's own files.
_INSTALLERS = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files make equal wheels
_ASK = "name the wheel that the project takes along with --wheel FILE"


@dataclass(frozen=True)
class Wheel:
    path: Path

    @property
    def _parts(self) -> re.Match:
        return _NAME.fullmatch(self.path.name)

    @property
    def version(self) -> str:
        return self._parts["version"]

    @property
    def machine(self) -> str:
        """As `platform.machine()` says it."""
        return "aarch64" if self._parts["platform"].endswith("aarch64") else "x86_64"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def place(folder: Path, given: Path | None) -> Wheel:
    """A wheel in `folder`, which is made if all is well: `given`, else what is installed."""
    return _copied(folder, given) if given else _packed(folder)


def _copied(folder: Path, given: Path) -> Wheel:
    if not _NAME.fullmatch(given.name) or not zipfile.is_zipfile(given):
        raise LabError(f"--wheel {given}: no wheel pestle-VERSION-py3-none-PLATFORM.whl")
    folder.mkdir(parents=True)
    return Wheel(Path(shutil.copyfile(given, folder / given.name)))


def _packed(folder: Path) -> Wheel:
    installed = _installed()
    names = sorted(str(name) for name in installed.files or [] if _is_content(name))
    tag = re.search(r"^Tag: (\S+)", installed.read_text("WHEEL") or "", re.MULTILINE)
    wheel = f"pestle-{installed.version}-{tag[1] if tag else ''}.whl"
    if not names or not _NAME.fullmatch(wheel):
        raise LabError(f"the installed package pestle has no list of its files: {_ASK}")
    folder.mkdir(parents=True)
    _write(folder / wheel, {name: Path(installed.locate_file(name)) for name in names})
    return Wheel(folder / wheel)


def _installed() -> importlib.metadata.Distribution:
    """That of this very code, and not of another place."""
    try:
        found = importlib.metadata.distribution("pestle")
    except importlib.metadata.PackageNotFoundError:
        found = None
    here = Path(__file__).resolve()
    if found is None or Path(found.locate_file("pestle_lab/packing.py")).resolve() != here:
        raise LabError(f"Pestle runs from {here.parents[1]} and is not installed: {_ASK}")
    return found


def _is_content(name: importlib.metadata.PackagePath) -> bool:
    """Not what lies outside, as scripts do, nor what was written after installing."""
    return not (
        ".." in name.parts
        or "__pycache__" in name.parts
        or (name.parent.suffix == ".dist-info" and name.name in _INSTALLERS)
    )


def _write(path: Path, files: dict[str, Path]) -> None:
    info = next(name.partition("/")[0] for name in files if name.endswith(".dist-info/METADATA"))
    record = []
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in files.items():
            data = source.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            _add(archive, name, data, source.stat().st_mode)
        name = f"{info}/RECORD"
        _add(archive, name, "\n".join([*record, f"{name},,\n"]).encode(), 0o644)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100000 | (mode & 0o755)) << 16
    archive.writestr(entry, data)
