"""Holds the functions that _functions.py makes from contracts."""
