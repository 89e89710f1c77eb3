"""What operators do with quantised tensors, by family."""

from . import joins, moves, products, shapes

__all__ = ["joins", "moves", "products", "shapes"]
