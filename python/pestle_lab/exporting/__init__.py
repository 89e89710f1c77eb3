"""pestle-lab export: a checked kernel as a torch op, a node for ComfyUI or a package for Hugging
Face's hub (docs/site/lab.md). What stands in package/ is copied into each of them."""
