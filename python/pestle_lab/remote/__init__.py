"""pestle-lab run --on TARGET: jobs on other machines (docs/site/lab.md)."""
