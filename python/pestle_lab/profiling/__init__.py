"""pestle-lab sanitize and profile: a kernel's calls under another program (docs/site/lab.md)."""
