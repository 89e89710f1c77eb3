"""Backends written in Python: one package each, one module per family of ops (see _backends.py).

A package says `unavailable()`: why it can't be used in this process, or None; and
`refuses_device(device)`: why it takes no tensors of a device, or None. Its modules register what
they implement by the decorator `pestle.implements`, and are all imported when the backend is first
needed; a module whose name starts with an underscore is left to the others.
"""
