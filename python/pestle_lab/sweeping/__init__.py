"""pestle-lab sweep: kernels x shapes x GPUs over a Ray cluster (docs/site/lab.md)."""
