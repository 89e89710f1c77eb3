"""Results that are not what their samples say are rejected; docs/performance.md is made of them."""

import copy
import importlib.util
import json
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("performance", ROOT / "tools/performance.py")
performance = importlib.util.module_from_spec(spec)
spec.loader.exec_module(performance)


def timing(samples):
    return {"samples_us": samples}


GPU = {"name": "GPU", "driver": "580", "cuda": 13000}
BENCH = {
    "op": "negate",
    "impl": "cuda/negate_fast",
    "case": "M=8",
    "us": 20.0,
    "bytes": 40000,
    "gb_per_s": 2.0,
    "percent_of_ceiling": 95.0,
    "timing": timing([21.0, 20.0, 19.0]),
    "copy_timing": timing([19.0, 18.0, 20.0]),
    "peers": {"eager": 30.0, "compile": 25.0},
    "results_agree": True,
    "machine": {"commit": "c0ffee", "cpu": "CPU"},
    "gpu": GPU,
}
CHECK = {
    "op": "negate",
    "ok": True,
    "tags": {"smoke": {"run": 5, "refused": 1, "skipped": 0, "failed": 0, "not_run": 2}},
    "not_run": {"needs a second device": 2},
    "failures": [],
    "skips": [],
    "machine": {"commit": "c0ffee"},
    "gpu": GPU,
}
MUTANTS = {
    "op": "negate",
    "mutants": {"no-op": "caught", "wrong scale column": "does not apply"},
    "machine": {"commit": "c0ffee"},
    "gpu": GPU,
}


class AnyCommit:
    unknown = None

    @staticmethod
    def fault(_commit):
        return None


def faults_of(line, ancestors=AnyCommit):
    return performance.line_faults(line, ancestors)


def changed(line, **values):
    return {**copy.deepcopy(line), **values}


def test_right_lines_pass():
    assert [faults_of(line) for line in (BENCH, CHECK, MUTANTS)] == [[], [], []]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (changed(BENCH, us=19.0), "median 20"),
        (changed(BENCH, gb_per_s=2.1), "gb_per_s"),
        (changed(BENCH, percent_of_ceiling=99.0), "percent_of_ceiling"),
        (changed(BENCH, results_agree=False), "other results"),
        (changed(BENCH, timing=timing([])), "no samples"),
        (changed(BENCH, timing=timing([0.0, 20.0, 21.0])), "no time"),
        (changed(CHECK, ok=False, failures=[{}]), "1 checks failed"),
        (changed(CHECK, skips=[{"where": "M=1", "reason": "too big"}]), "skipped M=1: too big"),
        (changed(CHECK, not_run={}), "no named want"),
        (changed(MUTANTS, mutants={"no-op": "SURVIVED"}), "mutant survived: no-op"),
    ],
)
def test_wrong_lines_are_said(line, words):
    assert any(words in fault for fault in faults_of(line)), faults_of(line)


def test_commits_are_ancestors(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    first = git("rev-parse", "--short=12", "HEAD")
    git("checkout", "-q", "-b", "side")
    git("commit", "-q", "--allow-empty", "-m", "aside")
    aside = git("rev-parse", "--short=12", "HEAD")
    git("checkout", "-q", "-")
    git("checkout", "-q", "--detach", first)
    git("commit", "-q", "--allow-empty", "-m", "two")
    ancestors = performance.Ancestors(tmp_path)
    assert ancestors.unknown is None
    assert ancestors.fault(first) is None
    assert "no ancestor" in ancestors.fault(aside)
    assert "no ancestor" in ancestors.fault("0123456789ab")
    for unclear in ("", "unknown", first + "-dirty"):
        assert "does not say" in ancestors.fault(unclear)
    clone = tmp_path / "clone"
    git("clone", "-q", "--depth", "1", tmp_path.as_uri(), str(clone))
    shallow = performance.Ancestors(clone)
    assert shallow.unknown == "this is a shallow clone"
    assert shallow.fault(aside) is None


def test_unreadable_lines_are_said(tmp_path):
    (tmp_path / "a.jsonl").write_text("{\n" + json.dumps(BENCH) + "\n[]\n")
    lines, faults = performance.read_results(tmp_path, AnyCommit)
    assert len(lines) == 1
    assert [fault.split(": ")[0] for fault in faults] == ["a.jsonl:1", "a.jsonl:3"]


def test_page_shows_the_last_line_of_each():
    page = performance.render([changed(BENCH, us=99.0), BENCH, CHECK, MUTANTS])
    assert "## GPU, driver 580" in page
    assert "| negate_fast | 20 | 2 | 95 % | 1.25 x compile |" in page
    assert "99" not in page
    assert "| `negate` | 5 | 1 | 2 | 1 |" in page
    assert "Not run: needs a second device." in page


def test_committed_page_is_what_the_results_give():
    ancestors = performance.Ancestors()
    lines, faults = performance.read_results(ROOT / performance.RESULTS, ancestors)
    assert faults == []
    judged = performance.bars.read_bars(ROOT / performance.BARS)
    assert (ROOT / performance.PAGE).read_text() == performance.render(lines, judged)


SANITIZER = {**CHECK, "sanitizer": "memcheck", "findings": 0}


def test_findings_of_a_sanitizer_are_said():
    assert faults_of(SANITIZER) == []
    assert faults_of(changed(SANITIZER, findings=2)) == ["memcheck found 2 faults"]
    assert "| memcheck | 1 | 5 | 0 |" in performance.render([SANITIZER])


def test_tags_that_ran_apart_are_added_up():
    bar = changed(CHECK, tags={"bar": {"run": 7, "refused": 0, "skipped": 0, "failed": 0,
                                       "not_run": 0}}, not_run={})  # fmt: skip
    assert "| `negate` | 12 | 1 | 2 | 0 |" in performance.render([CHECK, bar])


def test_builds_have_a_table():
    build = {"build": "cuda-release", "architectures": "80;90a", "cuda_files": 62,
             "cuda_minutes": 61.5, "library_bytes": 39 << 20,
             "machine": {"commit": "c0ffee"}}  # fmt: skip
    assert faults_of(build) == []
    assert "| cuda-release | 80;90a | 62 | 61.5 | 39.0 MiB |" in performance.render([build, BENCH])
    # Of a build whose steps overlapped.
    build["cpu_minutes"] = 143.5
    assert "| cuda-release | 80;90a | 62 | 143.5 | 39.0 MiB |" in performance.render([build, BENCH])


def test_sweeps_are_on_the_page():
    point = {
        "sweep": "negate", "form": "M={rows} K={width}", "rows": 256, "width": 1000, "bytes": 8,
        "class": "plain", "impl": "cuda/negate_fast", "graph": True, "agree": True,
        "us": {"normal": 2.0}, "copy_us": {"normal": 1.0}, "machine": {"commit": "c0ffee"},
        "gpu": GPU,
    }  # fmt: skip
    page = performance.render([point], {})
    assert "Sweeps" in page and "256 x 1000" in page


def test_examples_with_tables_of_their_own_are_no_machine():
    example = {"date": "2026-01-01", "machine": {"commit": "c0ffee"}, "device": "NVIDIA H100",
               "versions": {"torch": "2.11.0"}, "rows": [{"way": "eager"}]}  # fmt: skip
    assert faults_of(example) == []
    assert performance.render([example, BENCH]) == performance.render([BENCH])


# ---- bars

ROW = changed(
    BENCH, dtype="bf16", bytes=512 << 20, graph=False, copy_gb_per_s=4000.0,
    gpu={**GPU, "portable": ""}, peers={"torch_eager": 30.0, "torch_compile": 22.0},
    reads=205 << 20, writes=307 << 20,
)  # fmt: skip
SHARE = {"bar": "share", "rows": [{"ops": ["negate"]}], "min_mib": 256, "figure": "share_of_copy",
         "every": 0.88, "geomean": 0.94}  # fmt: skip
TWICE = {**SHARE, "rows": [{"ops": ["negate"], "reads": 2}]}
SPEED = {"bar": "speed", "rows": [{"ops": ["*"], "case": "M="}], "figure": "speed",
         "peers": "best", "every": 1.2}  # fmt: skip


def verdict(bar, *bench, host=()):
    return performance.bars.judge([bar], list(bench), list(host))[0]


@pytest.mark.parametrize(
    ("bar", "line", "word"),
    [
        (SHARE, ROW, "met"),
        (SHARE, changed(ROW, percent_of_ceiling=93.0), "MISSED"),  # the geomean
        (SHARE, changed(ROW, percent_of_ceiling=87.0), "MISSED"),
        (SHARE, changed(ROW, bytes=1 << 20), "MISSING"),
        (SHARE, changed(ROW, op="other"), "MISSING"),
        (TWICE, changed(ROW, percent_of_ceiling=70.0), "met"),  # 1.4 times the bytes
        (TWICE, changed(ROW, percent_of_ceiling=60.0), "MISSED"),
        (SHARE, changed(ROW, gpu={**GPU, "portable": "80"}), "MISSING"),
        ({**SHARE, "portable": True}, changed(ROW, gpu={**GPU, "portable": "80"}), "met"),
        ({**SHARE, "but": [{"ops": ["negate"], "case": "M=8$"}]}, ROW, "MISSING"),
        ({**SHARE, "dtype": "f32"}, ROW, "MISSING"),
        ({**SHARE, "count": 2}, ROW, "MISSING"),
        (SPEED, ROW, "MISSED"),  # 1.1 times torch_compile
        ({**SPEED, "every": 1.05}, ROW, "met"),
        ({**SPEED, "peers": ["torch_eager"]}, ROW, "met"),
        ({**SPEED, "peers": ["quack"]}, ROW, "MISSING"),
        ({**SPEED, "every": 1.0, "peer_under": 0.9}, ROW, "met"),
        ({**SPEED, "every": 1.0, "peer_under": 0.8}, ROW, "MISSING"),
    ],
)
def test_bars_are_judged(bar, line, word):
    assert verdict(bar, line).word() == word


def test_small_calls_and_host_costs_are_judged():
    small = {"bar": "small", "rows": [{"ops": ["*"]}], "max_mib": 1, "graph": True,
             "figure": "time_ratio", "beyond_us": 0.1, "peers": ["torch_eager"],
             "every_at_most": 1.05}  # fmt: skip
    line = changed(ROW, bytes=1 << 19, graph=True, us=2.1, peers={"torch_eager": 2.0})
    assert verdict(small, line).word() == "met"
    assert verdict(small, changed(line, us=2.3)).word() == "MISSED"
    assert verdict(small, changed(line, graph=False)).word() == "MISSING"
    cost = {"bar": "host", "figure": "host_ns", "every_at_most": 400}
    host = {"host_cost": "negate", "case": "M=1", "call_ns": 4300.0, "launch_ns": 4000.0}
    assert verdict(cost, host=[host]).word() == "met"
    assert verdict(cost, host=[changed(host, call_ns=4500.0)]).word() == "MISSED"


def test_forced_rows_count_where_a_bar_names_their_implementation():
    forced = changed(ROW, impl="cuda/negate_slow", forced=True)
    by_impl = {**SPEED, "impl": "slow$", "every": 1.0}
    assert verdict(by_impl, ROW, forced).rows[0][2] is forced
    assert len(verdict(by_impl, ROW, forced).rows) == 1
    assert [row[2] for row in verdict(SPEED, ROW, forced).rows] == [ROW]
    assert verdict(by_impl, ROW).word() == "MISSING"


def test_rows_are_compared_with_rows_and_rated():
    over = {"bar": "over", "rows": [{"ops": ["negate"], "case": "fused"}], "figure": "over_row",
            "row": {"case": " fused", "by": ""}, "every_at_most": 1.05}  # fmt: skip
    fused = changed(ROW, case="M=8 fused", us=20.8)
    assert verdict(over, ROW, fused).word() == "met"
    assert verdict(over, ROW, changed(fused, us=21.2)).word() == "MISSED"
    assert verdict(over, fused).word() == "MISSING"
    assert verdict(over, changed(ROW, forced=True), fused).word() == "MISSING"
    by_impl = {**over, "row": {"case": " fused", "by": "", "impl": ROW["impl"]}}
    assert verdict(by_impl, changed(ROW, forced=True), fused).word() == "met"
    rate = {"bar": "rate", "rows": [{"ops": ["*"]}], "figure": "tera_per_s", "every": 1000}
    assert verdict(rate, changed(ROW, flops=2.1e10)).word() == "met"
    assert verdict(rate, changed(ROW, flops=1.9e10)).word() == "MISSED"


def test_launches_of_a_call_are_judged():
    fused = {"bar": "one launch", "rows": [{"ops": ["negate"]}], "figure": "launches",
             "every_at_most": 1}  # fmt: skip
    assert verdict(fused, changed(ROW, launches=["negate_kernel"])).word() == "met"
    two = changed(ROW, launches=["negate_kernel", "memset"])
    assert verdict(fused, two).word() == "MISSED"
    assert verdict(fused, two).worst()[1] == "negate_kernel memset"
    assert verdict(fused, ROW).word() == "MISSING"  # a line of before they were listed


def test_verdicts_name_the_worst_row():
    slow = changed(ROW, case="M=9", percent_of_ceiling=50.0)
    table = performance.bars.table([verdict(SHARE, ROW, slow)])
    assert "| 2 | 1 | 0.689 | 0.5 `negate 'M=9'` | copy at 4000 GB/s | MISSED |" in table[-1]
    text = performance.bars.text([verdict(SHARE, ROW, slow)])
    assert any("missed" in row and "M=9" in row for row in text)
    assert text[-1] == "0 met, 1 missed or missing"


def test_every_bar_is_well_formed():
    judged = performance.bars.read_bars(ROOT / performance.BARS)
    assert len(judged) > 10
    for v in performance.bars.judge(judged, [], []):
        assert v.word() == "MISSING"
        assert v.wanted(), v.bar
        assert v.bar["figure"] in performance.bars.FIGURES


# ---- the page with plots


def test_html_stands_alone_and_shows_every_case():
    page = performance.html_page([ROW, changed(ROW, case="M=9 <&")], [SHARE])
    assert "http" not in page
    assert "<script" not in page
    assert page.count("negate M=8: 20 us") == 3  # share, rate, speed
    assert "M=9 &lt;&amp;" in page
    assert 'class="met">met' in page
    body = page[page.index("<html") :].replace('<meta charset="utf-8">', "")
    ElementTree.fromstring(body)


def test_html_of_the_committed_results():
    lines, _ = performance.read_results(ROOT / performance.RESULTS, AnyCommit)
    judged = performance.bars.read_bars(ROOT / performance.BARS)
    page = performance.html_page(lines, judged)
    timed = {(x["op"], x["case"], x["impl"]) for x in lines if "timing" in x}
    assert page.count("<circle") >= 3 * len(timed)


def test_attention_has_a_table_of_its_peers():
    line = {
        "row": "wan",
        "direction": "forward",
        "shape": [1, 40, 40, 32760, 128],
        "dtype": "bfloat16",
        "us": {"pestle": 20.0, "cudnn": 25.0},
        "tflops": {"pestle": 600.0, "cudnn": 480.0},
        "gpu": "GPU",
        "machine": {"commit": "c0ffee"},
    }
    alone = line | {"row": "softcap 50", "tflops": {"pestle": 300.0}}
    page = performance.render([line | {"tflops": {"pestle": 1.0}}, line, alone])
    assert "| wan | 1, 40, 32760, 128 | forward | 600 |  |  |  | 480 |  |  | 1.25 |" in page
    assert "| softcap 50 | 1, 40, 32760, 128 | forward | 300 |  |  |  |  |  |  |  |" in page
    assert page.count("| wan |") == 1


def test_linears_have_tables_of_their_peers():
    line = {
        "linear": [16, 4096, 2048],
        "what": "dispatched",
        "us": {"torch bf16": 12.0, "pestle bf16": 10.0, "pestle int8, x quantised": 8.0},
        "gpu": "GPU",
        "machine": {"commit": "c0ffee"},
    }
    slow = line | {"linear": [32, 4096, 2048], "us": {"torch bf16": 9.0, "pestle bf16": 10.0}}
    weights = line | {
        "what": "weight_only",
        "us": {"torch bf16": 12.0, "pestle int4": 6.0, "pestle fp8": 7.0, "humming int4": 8.0},
    }
    page = performance.render([slow | {"us": {"torch bf16": 1.0}}, line, slow, weights])
    assert "| pestle bf16 | torch bf16 | 2 | 0.97 | 1 | 1.04 | 0.90 | 32 x 4096 x 2048 |" in page
    assert "| pestle int8, x quantised | torch bf16, pestle bf16 | 1 | 1 | 0 | 1.25 |" in page
    assert "fp8 x fp8" not in page
    assert "| N x K | weights | M = 16 |" in page
    assert "| 4096 x 2048 | int4 | 6 (8) |" in page
    assert "| 4096 x 2048 | fp8 | 7 |" in page
