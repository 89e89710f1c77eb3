from .autotuner import Autotuner, Config
from .bench import do_bench, estimate_bandwidth, summarize_times

__all__ = ["Autotuner", "Config", "do_bench", "estimate_bandwidth", "summarize_times"]
