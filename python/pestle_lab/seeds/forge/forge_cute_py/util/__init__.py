from .autotuner import AutotuneConfig, Autotuner
from .bench import do_bench, estimate_bandwidth, summarize_times

__all__ = ["AutotuneConfig", "Autotuner", "do_bench", "estimate_bandwidth", "summarize_times"]
