"""No nodes: prestartup_script.py is what counts."""

NODE_CLASS_MAPPINGS = {}
