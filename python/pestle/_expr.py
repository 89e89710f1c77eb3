"""The expressions of contracts (docs/contract.md) as Python: the same text is evaluated over
integers and over the symbolic integers of torch.compile."""

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|==|!=|<=|>=|&&|\|\||[-+*/%()!<>,])")
# Loosest first; Python has the same order among these.
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_PYTHON = {"||": "or", "&&": "and", "/": "//"}


class _Translator:
    def __init__(self, text: str, name: Callable[[str], str], has: Callable[[str], str]):
        self.text, self.name, self.has = text, name, has
        self.tokens = _TOKEN.findall(text)
        if "".join(self.tokens) != re.sub(r"\s", "", text):
            raise ValueError(f"cannot read the expression {text!r}")

    def take(self, wanted: str | None = None) -> str:
        token = self.tokens.pop(0) if self.tokens else ""
        if wanted not in (None, token):
            raise ValueError(f"expected {wanted!r} in the expression {self.text!r}")
        return token

    def level(self, depth: int = 0) -> str:
        if depth == len(_LEVELS):
            return self.unary()
        left = self.level(depth + 1)
        while self.tokens and self.tokens[0] in _LEVELS[depth]:
            operator = self.take()
            right = self.level(depth + 1)
            left = f"({left} {_PYTHON.get(operator, operator)} {right})"
        return left

    def unary(self) -> str:
        token = self.take()
        if token == "!":
            return f"(not {self.unary()})"
        if token == "-":
            return f"(-{self.unary()})"
        if token == "(":
            inner = self.level()
            self.take(")")
            return inner
        if token.isdigit():
            return token
        if self.tokens and self.tokens[0] == "(":
            return self.call(token)
        return self.name(token)

    def call(self, function: str) -> str:
        self.take("(")
        if function in ("size", "broadcasts"):
            tensor = self.take()
            self.take(",")
            other = self.level() if function == "size" else repr(self.take())
            self.take(")")
            return f"_{function}({tensor!r}, {other})"
        if function in ("has", "bytes", "numel", "rank"):
            argument = self.take()
            self.take(")")
            return self.has(argument) if function == "has" else f"_{function}({argument!r})"
        arguments = [self.level()]
        while self.tokens[:1] == [","]:
            self.take()
            arguments.append(self.level())
        self.take(")")
        if function == "if":
            condition, then, otherwise = arguments
            return f"({then} if {condition} else {otherwise})"
        if function == "cdiv":
            return f"(-(-({arguments[0]}) // ({arguments[1]})))"
        if function == "round_up":
            return f"(-(-({arguments[0]}) // ({arguments[1]})) * ({arguments[1]}))"
        return f"_{function}({', '.join(arguments)})"  # min, max


def to_python(text: str, name: Callable[[str], str], has: Callable[[str], str]) -> str:
    """Python source of an expression; `name` and `has` say how a name and has(x) are written."""
    translator = _Translator(text, name, has)
    result = translator.level()
    if translator.tokens:
        raise ValueError(f"more than an expression: {text!r}")
    return result
