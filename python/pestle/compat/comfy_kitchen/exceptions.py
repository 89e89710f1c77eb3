"""What a call raises that no backend takes: comfy-kitchen's class names and fields."""

from __future__ import annotations


class BackendError(RuntimeError):
    """The parent of the three below."""


class BackendNotFoundError(BackendError):
    """A backend was asked for by name that is not there, or switched off."""

    def __init__(self, backend_name: str, reason: str | None = None):
        self.backend_name = backend_name
        because = f": {reason}" if reason else ""
        super().__init__(f"backend '{backend_name}' cannot be used{because}")


class BackendNotImplementedError(BackendError):
    """A backend was asked for by name that lacks the function."""

    def __init__(self, backend_name: str, func_name: str):
        self.backend_name = backend_name
        self.func_name = func_name
        super().__init__(f"backend '{backend_name}' has no function '{func_name}'")


class NoCapableBackendError(BackendError):
    """No backend takes the call; `failures` has each one's reason."""

    def __init__(self, func_name: str, failures: dict[str, str]):
        self.func_name = func_name
        self.failures = failures
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        super().__init__(f"no backend takes '{func_name}': {reasons or 'none is registered'}")
