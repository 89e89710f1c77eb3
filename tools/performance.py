#!/usr/bin/env python3
"""Makes docs/performance.md from bench/results/*.jsonl, after checking every line.

usage: tools/performance.py               fails when a line is wrong or the page not what they give
       tools/performance.py --write       writes the page
       tools/performance.py --bars        judges bench/bars_cuda.json; --every-row shows all rows
       tools/performance.py --sweep       judges the sweeps of `pestle bench --sweep`, form by form
       tools/performance.py --html FILE   writes one self-contained page with plots
       ... --results FOLDER               other results than the committed ones

A line is wrong when its median, rate or share of the ceiling is not what its raw samples give, when
its commit is edited, unknown or no ancestor of this one, when timed calls left differing results,
when a check failed or skipped something without saying what it needs, or when a mutant survived.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import performance_attention as attention  # noqa: E402
import performance_bars as bars  # noqa: E402
import performance_html  # noqa: E402
import performance_linear as linear  # noqa: E402
import performance_sweep as sweep  # noqa: E402

PAGE = "docs/performance.md"
RESULTS = "bench/results"
BARS = "bench/bars_cuda.json"


def git(*arguments, root=ROOT):
    try:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None


class Ancestors:
    """Is a commit an ancestor of HEAD? Where history is not here, `unknown` says why."""

    def __init__(self, root=ROOT):
        self.root = root
        self.known = {}
        self.unknown = None
        shallow = git("rev-parse", "--is-shallow-repository", root=root)
        if shallow is None or shallow.returncode != 0:
            self.unknown = "this is no git repository"
        elif shallow.stdout.strip() == "true":
            self.unknown = "this is a shallow clone"

    def fault(self, commit):
        if not commit or commit == "unknown" or commit.endswith("-dirty"):
            return f"commit '{commit}' does not say what was measured"
        if self.unknown:
            return None
        if commit not in self.known:
            result = git("merge-base", "--is-ancestor", commit, "HEAD", root=self.root)
            self.known[commit] = result.returncode == 0
        return None if self.known[commit] else f"commit {commit} is no ancestor of this one"


def near(a, b):
    return math.isfinite(a) and math.isclose(a, b, rel_tol=1e-6)


def timing_faults(line):
    samples = line["timing"]["samples_us"]
    copies = line["copy_timing"]["samples_us"]
    if not samples or min(samples) <= 0:
        return ["has no samples, or some that take no time"]
    us = statistics.median(samples)
    faults = []
    if not near(line["us"], us):
        faults.append(f"us is {line['us']}, the samples' median {us}")
    rate = line["bytes"] / us * 1e-3
    if not near(line["gb_per_s"], rate):
        faults.append(f"gb_per_s is {line['gb_per_s']}, bytes over the median {rate}")
    if "gpu" in line:
        share = statistics.median(copies) / us * 100 if copies else math.nan
        if not near(line["percent_of_ceiling"], share):
            faults.append(
                f"percent_of_ceiling is {line['percent_of_ceiling']}, samples give {share}"
            )
        if not line.get("results_agree", False):
            faults.append("timed calls on the same inputs left other results")
    return faults


def check_faults(line):
    faults = [] if line["ok"] else [f"{len(line['failures'])} checks failed"]
    faults += [f"skipped {skip['where']}: {skip['reason']}" for skip in line["skips"]]
    for tag, counts in line["tags"].items():
        if counts["not_run"] and not line.get("not_run"):
            faults.append(f"{counts['not_run']} of {tag} were not run, for no named want")
    return faults


def line_faults(line, ancestors):
    faults = []
    if sweep.is_sweep(line):
        faults += sweep.sweep_faults(line)
    elif "timing" in line:
        faults += timing_faults(line)
    elif "mutants" in line:
        faults += [
            f"mutant survived: {m}" for m, word in line["mutants"].items() if word == "SURVIVED"
        ]
    elif "tags" in line and "failures" in line:
        faults += check_faults(line)
        if line.get("findings"):
            faults.append(f"{line['sanitizer']} found {line['findings']} faults")
    commit = line.get("machine", {}).get("commit", "")
    return faults + list(filter(None, [ancestors.fault(commit)]))


def read_results(folder, ancestors):
    """All right lines, in order, and a sentence for each wrong one."""
    lines, faults = [], []
    for path in sorted(Path(folder).glob("*.jsonl")):
        for number, text in enumerate(path.read_text().splitlines(), 1):
            where = f"{path.name}:{number}"
            try:
                line = json.loads(text)
                found = line_faults(line, ancestors)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found = [f"is no result: {type(error).__name__} {error}"]
            if found:
                faults += [f"{where}: {fault}" for fault in found]
            else:
                lines.append(line)
    return lines, faults


def machine_name(line):
    if "gpu" in line:
        gpu = line["gpu"]
        name = f"{gpu['name']}, driver {gpu['driver'] or gpu['cuda']}"
        portable = gpu.get("portable")
        return f"{name}, portable code of {portable}" if portable else name
    return line["machine"]["cpu"]


def best_peer(line):
    """Of the peers that do the op's work; a plain copy is what the share beside it is of."""
    times = {
        name: peer["us"] if isinstance(peer, dict) else peer
        for name, peer in (line.get("peers") or {}).items()
        if not name.endswith("_copy")
    }
    if not times:
        return ""
    name, us = min(times.items(), key=lambda item: item[1])
    return f"{us / line['us']:.2f} x {name}"


def bench_table(lines):
    table = [
        "| op | case | implementation | us | GB/s | of copy | speed beside the best peer |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for line in sorted(lines, key=lambda line: (line["op"], line["case"], line["impl"])):
        mode = " (graph)" if line.get("graph") else ""
        table.append(
            f"| `{line['op']}` | `{line['case']}` | {line['impl'].split('/')[-1]}{mode} | "
            f"{line['us']:.4g} | {line['gb_per_s']:.0f} | {line['percent_of_ceiling']:.0f} % | "
            f"{best_peer(line)} |"
        )
    return table


def check_table(checks, mutants):
    table = ["| op | run | refused | not run | mutants caught |", "|---|--:|--:|--:|--:|"]
    for op in sorted(checks):
        counts = [c for tag, c in checks[op]["tags"].items() if tag != "contract"]
        total = {key: sum(c[key] for c in counts) for key in ("run", "refused", "not_run")}
        words = mutants.get(op, {}).get("mutants", {}).values()
        caught = sum(word == "caught" for word in words)
        table.append(
            f"| `{op}` | {total['run']} | {total['refused']} | {total['not_run']} | {caught} |"
        )
    wants = sorted({want for line in checks.values() for want in line["not_run"]})
    return [*table, "", f"Not run: {', '.join(wants)}."] if wants else table


def by_machine(lines):
    """The last line of an op and case on a machine counts; where an implementation was asked for by
    name, the last one with it."""
    machines = {}
    for line in lines:
        # Of build_cost.py, gpu_torch_log.py, gpu_evidence.py; of examples with tables of their own.
        others = {"library_bytes", "torch_tests", "part", "rows", "direction", "figures", "linear"}
        if not sweep.is_sweep(line) and others & line.keys():
            continue
        empty = {"bench": {}, "check": {}, "mutants": {}, "sanitizer": {}, "host": {}, "sweep": []}
        machine = machines.setdefault(machine_name(line), empty)
        if sweep.is_sweep(line):
            machine["sweep"].append(line)
        elif "timing" in line:
            asked = line["impl"] if line.get("forced", False) else ""
            machine["bench"][line["op"], line["case"], asked] = line
        elif "mutants" in line:
            machine["mutants"][line["op"]] = line
        elif "sanitizer" in line:
            machine["sanitizer"][line["op"], line["sanitizer"]] = line
        elif "host_cost" in line:
            machine["host"][line["host_cost"]] = line
        elif "tags" in line:
            # Tags may have been run apart: the last run of each counts.
            known = machine["check"].setdefault(line["op"], {"tags": {}, "not_run": {}})
            known["tags"] |= line["tags"]
            known["not_run"] |= line.get("not_run", {})
    return dict(sorted(machines.items()))


def verdicts_of(machines, name, judged):
    """Of a GPU, with what ran there as portable code; none for other machines."""
    if "portable code" in name or not any("gpu" in x for x in machines[name]["bench"].values()):
        return []
    bench = [
        line
        for other, found in machines.items()
        if other == name or other.startswith(f"{name}, portable")
        for line in found["bench"].values()
    ]
    return bars.judge(judged, bench, list(machines[name]["host"].values()))


def sanitizer_table(lines):
    """By tool: ops, what was found in all, what ran under it."""
    table = ["| compute-sanitizer | ops | checks run | findings |", "|---|--:|--:|--:|"]
    for tool in sorted({tool for _, tool in lines}):
        own = [line for (_, name), line in lines.items() if name == tool]
        run = sum(counts["run"] for line in own for counts in line["tags"].values())
        table.append(f"| {tool} | {len(own)} | {run} | {sum(x['findings'] for x in own)} |")
    return table


def build_table(builds):
    table = ["| build | architectures | CUDA files | minutes of one core | library |"]
    table.append("|---|---|--:|--:|--:|")
    for name, line in sorted(builds.items()):
        minutes = line.get("cpu_minutes", line["cuda_minutes"])
        table.append(
            f"| {name} | {line['architectures']} | {line['cuda_files']} | {minutes:.1f} | "
            f"{line['library_bytes'] / 2**20:.1f} MiB |"
        )
    return table


def torch_table(line):
    """Of the PyTorch package's tests on a GPU: the last run."""
    table = ["| tests/torch | passed | failed | skipped | s |", "|---|--:|--:|--:|--:|"]
    for file, counts in sorted(line["torch_tests"].items()):
        row = [counts.get(key, 0) for key in ("passed", "failed", "skipped", "seconds")]
        table.append(f"| `{file}` | {' | '.join(map(str, row))} |")
    where = f"{line['gpu']['name']}, driver {line['gpu']['driver']}, torch {line['torch']}"
    page = [f"{where}, commit {line['machine']['commit']}:", "", *table]
    if line["failed"]:
        page += ["", f"Failed: {', '.join(f'`{name}`' for name in line['failed'])}."]
    return page


def render(lines, judged=()):
    page = [
        "# Performance",
        "",
        "Made by `tools/performance.py --write` from `bench/results/*.jsonl`, which hold the raw",
        "samples; CI fails when the two disagree. Figures are medians; a share of copy is against",
        "a copy that reads and writes as much, timed in turn. [harness.md](harness.md) says how.",
        "`tools/performance.py --html FILE` makes one page with plots of the same.",
        "",
    ]
    machines = by_machine(lines)
    for name, found in machines.items():
        page += [f"## {name}", ""]
        if verdicts := verdicts_of(machines, name, judged):
            page += ["Bars (`bench/bars_cuda.json`):", "", *bars.table(verdicts), ""]
        if found["bench"]:
            page += [*bench_table(found["bench"].values()), ""]
        if found["sweep"]:
            page += ["Sweeps (`pestle bench --sweep`):", "", *sweep.table(found["sweep"]), ""]
        if found["check"]:
            page += ["Checks:", "", *check_table(found["check"], found["mutants"]), ""]
        if found["sanitizer"]:
            page += [*sanitizer_table(found["sanitizer"]), ""]
    if not machines:
        page += ["Nothing has been measured yet.", ""]
    if of_attention := [line for line in lines if attention.is_attention(line)]:
        about = "TFLOP/s, in turns in one process on one GPU (`bench/attention_peers.py`):"
        page += ["## Attention beside its peers", "", f"{of_attention[-1]['gpu']}, {about}", ""]
        page += [*attention.table(of_attention), ""]
    if of_linears := [line for line in lines if linear.is_linear(line)]:
        about = "CUDA graphs over rotating weights (`bench/linear_peers.py`)"
        page += [
            "## Linear layers beside their peers",
            "",
            f"{of_linears[-1]['gpu']}, {about}.",
            "",
        ]
        page += linear.tables(of_linears)
    builds = {line["build"]: line for line in lines if "library_bytes" in line}
    if builds:
        page += ["## Builds", "", *build_table(builds), ""]
    if torch_runs := [line for line in lines if "torch_tests" in line]:
        page += ["## The PyTorch package on a GPU", "", *torch_table(torch_runs[-1]), ""]
    return "\n".join(page)


def html_page(lines, judged):
    machines = by_machine(lines)
    return performance_html.render(
        (name, list(found["bench"].values()), verdicts_of(machines, name, judged))
        for name, found in machines.items()
    )


def print_bars(lines, judged, every_row):
    """One command's answer: 1 unless every bar of every GPU is met."""
    machines = by_machine(lines)
    all_met = True
    for name in machines:
        verdicts = verdicts_of(machines, name, judged)
        if verdicts:
            print("\n".join([name, *bars.text(verdicts, every_row)]))
            all_met &= all(v.met() for v in verdicts)
    return 0 if all_met else 1


def print_sweeps(lines):
    """1 unless every form of every machine meets its bars."""
    met = True
    for name, found in by_machine(lines).items():
        if found["sweep"]:
            print("\n".join([name, *sweep.text(found["sweep"])]))
            met &= sweep.all_met(found["sweep"])
    return 0 if met else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--bars", action="store_true", help="judge every bar")
    parser.add_argument("--every-row", action="store_true", help="with --bars: met rows, too")
    parser.add_argument("--sweep", action="store_true", help="judge sweeps")
    parser.add_argument("--html", type=Path, help="write one self-contained page with plots")
    parser.add_argument("--results", type=Path, default=ROOT / RESULTS)
    arguments = parser.parse_args()
    ancestors = Ancestors()
    lines, faults = read_results(arguments.results, ancestors)
    judged = bars.read_bars(ROOT / BARS)
    if ancestors.unknown:
        print(f"performance: commits were not looked at, since {ancestors.unknown}")
    if arguments.bars:
        print("\n".join(faults))
        return print_bars(lines, judged, arguments.every_row)
    if arguments.sweep:
        print("\n".join(faults))
        return print_sweeps(lines)
    if arguments.html:
        arguments.html.write_text(html_page(lines, judged))
        return 1 if faults else 0
    page = render(lines, judged)
    target = ROOT / PAGE
    if arguments.write and not faults:
        target.write_text(page)
    elif not arguments.write and (not target.exists() or target.read_text() != page):
        faults.append(f"{PAGE} is not what the results give: tools/performance.py --write")
    print("\n".join(faults) if faults else f"performance: {len(lines)} results, no fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
