"""Kernels for c = A b in NVFP4, found, checked, timed and compared:
python -m kernel_utils.smoke_test. The checks and clocks are the workbench's (pestle-lab)."""
