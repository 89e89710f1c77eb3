"""What a call raises that no backend takes: comfy-kitchen's class names and fields, and the words
that its callers look for in a message."""

from __future__ import annotations


class BackendError(RuntimeError):
    """The parent of the three below."""


class BackendNotFoundError(BackendError):
    """A backend was asked for by name that is not there, or switched off."""

    def __init__(self, backend_name: str, reason: str | None = None):
        self.backend_name = backend_name
        because = f": {reason}" if reason else ""
        super().__init__(f"Backend '{backend_name}' is not available{because}")


class BackendNotImplementedError(BackendError):
    """A backend was asked for by name that lacks the function."""

    def __init__(self, backend_name: str, func_name: str):
        self.backend_name = backend_name
        self.func_name = func_name
        super().__init__(f"Backend '{backend_name}' does not implement '{func_name}'")


class NoCapableBackendError(BackendError):
    """No backend takes the call; `failures` has each one's reason."""

    def __init__(self, func_name: str, failures: dict[str, str]):
        self.func_name = func_name
        self.failures = failures
        reasons = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
        said = f"No backend can handle '{func_name}': {reasons}"
        super().__init__(said if reasons else f"No backend available for '{func_name}'")


class FunctionNotServedError(BackendNotImplementedError, NoCapableBackendError):
    """No backend has the function at all, whatever the arguments."""

    def __init__(self, func_name: str, backend_name: str | None, reason: str):
        self.backend_name = backend_name or "pestle"
        self.func_name = func_name
        self.failures = {self.backend_name: reason}
        RuntimeError.__init__(
            self,
            f"No backend can handle '{func_name}': "
            f"Backend '{self.backend_name}' does not implement it: {reason}",
        )
