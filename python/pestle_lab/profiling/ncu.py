"""What Nsight Compute measured, as figures, sentences and a checklist. Every metric may be missing:
sets and versions differ, and what was not measured is said to be so."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field

from ..errors import CRASH, LabError

FIGURES = {
    "gpu__time_duration.sum": "time, ns",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "maths, % of the limit",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory, % of the limit",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM, % of the limit",
    "dram__bytes_read.sum": "bytes read from DRAM",
    "dram__bytes_write.sum": "bytes written to DRAM",
    "lts__t_sector_hit_rate.pct": "L2 hits, %",
    "l1tex__t_sector_hit_rate.pct": "L1 hits, %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy, %",
    "sm__maximum_warps_per_active_cycle_pct": "occupancy that launches allow, %",
    "launch__grid_size": "blocks",
    "launch__block_size": "threads of a block",
    "launch__waves_per_multiprocessor": "waves",
    "launch__registers_per_thread": "registers of a thread",
    "launch__shared_mem_per_block": "shared bytes of a block",
}
LIMITS = ("registers", "shared_mem", "warps", "blocks")
STALL = "smsp__average_warps_issue_stalled_"
LOCAL = ("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum",
         "smsp__sass_inst_executed_op_local_ld.sum", "smsp__sass_inst_executed_op_local_st.sum",
         "sass__inst_executed_register_spilling")  # fmt: skip
USED = {
    "loads": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "stores": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
}
SECTORS = {
    "loads": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
              "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"),
    "stores": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
               "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum"),
}  # fmt: skip
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
# What a stall's name means for who reads it.
STALLS = {
    "long_scoreboard": "waits for memory beyond L1",
    "short_scoreboard": "waits for shared memory or special functions",
    "lg_throttle": "too many global or local memory instructions",
    "mio_throttle": "too many shared memory or special instructions",
    "math_pipe_throttle": "waits for arithmetic units",
    "barrier": "waits at a barrier",
    "wait": "waits for the fixed latency of its last instruction",
    "not_selected": "another warp was chosen: warps are enough",
    "drain": "waits for its stores at its end",
    "membar": "waits at a memory fence",
    "dispatch_stall": "waits for the dispatcher",
    "imc_miss": "waits for constants",
    "no_instruction": "waits for instructions",
    "tex_throttle": "too many texture instructions",
    "sleeping": "sleeps",
    "branch_resolving": "waits for a branch",
}


@dataclass
class Launch:
    """One launch of a device kernel."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    checklist: dict[str, bool | None] = field(default_factory=dict)  # None: was not measured

    def json(self) -> dict:
        return {"kernel": self.name, "figures": self.figures, "findings": self.findings,
                "checklist": self.checklist}  # fmt: skip


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def rows(text: str) -> list[dict]:
    """Of `ncu --page raw --csv --print-units base`; the second line has the units."""
    start = text.find('"ID"')
    if start < 0:
        raise LabError(
            "ncu profiled no kernel: the call launched none in the range `kernel`", CRASH
        )
    return list(csv.DictReader(io.StringIO(text[start:])))[1:]


class _Reader:
    """Turns one row into a Launch; `declared` is how many bytes the problem says are moved."""

    def __init__(self, row: dict, declared: int | None):
        self.row, self.declared = row, declared
        self.made = Launch(row.get("Kernel Name", "?"))

    def value(self, name: str) -> float | None:
        return _number(self.row.get(name))

    def note(self, item: str, good: bool | None, sentence: str = "") -> None:
        self.made.checklist[item] = good
        if good is False:
            self.made.findings.append(sentence)

    def traffic(self) -> None:
        read, write = self.value("dram__bytes_read.sum"), self.value("dram__bytes_write.sum")
        item = "moves no more bytes than the problem"
        if read is None or write is None or not self.declared:
            return self.note(item, None)
        ratio = (read + write) / self.declared
        self.made.figures["bytes moved / bytes declared"] = round(ratio, 3)
        self.note(item, ratio <= 1.1,
                  f"DRAM moved {ratio:.2f} times the bytes that the problem needs: something is "
                  "read again, or whole sectors are fetched for parts of them")  # fmt: skip

    def coalescing(self) -> None:
        for kind, metric in USED.items():
            item, used = f"{kind} use whole sectors", self.value(metric)
            sectors, requests = (self.value(name) for name in SECTORS[kind])
            if sectors is not None and requests:
                per = sectors / requests
                self.made.figures[f"sectors of a request, {kind}"] = round(per, 2)
                if used is None and per > 16:  # 32 lanes of 16 bytes need no more
                    used = 100 * 16 / per
            self.note(item, None if used is None else used >= 80,
                      f"global {kind} use {used or 0:.0f} % of what they fetch: let neighbouring "
                      "lanes take neighbouring addresses")  # fmt: skip

    def conflicts(self) -> None:
        found, all_ = self.value(CONFLICTS), self.value(WAVEFRONTS)
        share = None if found is None else (100 * found / all_ if all_ else 0.0)
        self.note("shared memory without bank conflicts", None if share is None else share <= 10,
                  f"bank conflicts are {share or 0:.0f} % of the accesses to shared memory: pad or "
                  "swizzle its rows")  # fmt: skip

    def spills(self) -> None:
        known = [v for v in map(self.value, LOCAL) if v is not None]
        self.note("no local memory (spills)", None if not known else sum(known) == 0,
                  f"{sum(known):.0f} instructions access local memory: registers are spilled, or "
                  "an array is indexed by a variable")  # fmt: skip

    def occupancy(self) -> None:
        allowed = self.value("sm__maximum_warps_per_active_cycle_pct")
        limits = {n: self.value(f"launch__occupancy_limit_{n}") for n in LIMITS}
        limits = {n: v for n, v in limits.items() if v is not None}
        by = min(limits, key=limits.get).replace("_", " ") if limits else "?"
        self.note("enough warps", None if allowed is None else allowed >= 25,
                  f"only {allowed or 0:.0f} % of the warps fit, limited by {by}")  # fmt: skip
        waves = self.value("launch__waves_per_multiprocessor")
        self.note("fills the GPU", None if waves is None else waves >= 1,
                  f"{waves or 0:.2f} waves: some multiprocessors have nothing to do")  # fmt: skip
        tail = waves is not None and waves >= 1 and waves < 4 and 0 < waves % 1 < 0.5
        self.note("whole waves", None if waves is None else not tail,
                  f"{waves or 0:.2f} waves: the last is mostly empty")  # fmt: skip

    def limit(self) -> None:
        shares = [self.value(f"{name}.avg.pct_of_peak_sustained_elapsed")
                  for name in ("sm__throughput", "gpu__compute_memory_throughput")]  # fmt: skip
        shares = [share for share in shares if share is not None]
        best = max(shares, default=None)
        self.note("near a limit", None if best is None else best >= 60,
                  f"neither memory nor maths is busy ({best or 0:.0f} % of a limit at most): the "
                  "kernel waits; see its stalls")  # fmt: skip

    def stalls(self) -> None:
        found = {}
        for name in self.row:
            value = self.value(name)
            if name.startswith(STALL) and "not_issued" not in name and value is not None:
                found[name.removeprefix(STALL).partition("_per_issue")[0]] = value
        top = sorted(found, key=found.get, reverse=True)[:3]
        for name in top:
            if found[name] > 0 and name not in ("selected",):
                meaning = STALLS.get(name, "see Nsight Compute's manual")
                self.made.findings.append(f"stall {name} {found[name]:.2f}: {meaning}")

    def read(self) -> Launch:
        for metric, title in FIGURES.items():
            if (value := self.value(metric)) is not None:
                self.made.figures[title] = value
        for part in (self.traffic, self.coalescing, self.conflicts, self.spills, self.occupancy,
                     self.limit, self.stalls):  # fmt: skip
            part()
        return self.made


def launches(text: str, declared: int | None) -> list[Launch]:
    return [_Reader(row, declared).read() for row in rows(text)]
