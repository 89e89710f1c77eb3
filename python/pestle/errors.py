"""What Pestle raises: one class per status of the library, each carrying the library's sentence."""

import re


class PestleError(RuntimeError):
    """Any failure of a call; `str(error)` says op, argument, value, rule and next step."""


class InvalidArgumentError(PestleError, ValueError):
    """The arguments break the op's contract."""


class UnsupportedError(PestleError, NotImplementedError):
    """Within the contract, but no implementation here takes the call; every reason is given."""


class NotCompiledError(UnsupportedError):
    """This build lacks the backend."""


class NoCapableBackendError(UnsupportedError):
    """No backend that may be used takes the call; every candidate's reason is given."""


class OutOfMemoryError(PestleError, MemoryError):
    """Memory for an output or a workspace could not be had."""


class DeviceError(PestleError):
    """The device or its driver failed."""


class FileError(PestleError, OSError):
    """The operating system refused: permission, disk full, missing file."""


class CorruptFileError(PestleError, ValueError):
    """A file breaks its format's rules."""


class InterruptedByCallerError(PestleError):
    """Stopped on request; nothing half-written is left."""


class NoGradientError(PestleError, NotImplementedError):
    """A gradient was asked for that the op does not have; the contract says why."""


# By pestle_status, and by the name that kernels put before their sentence.
BY_STATUS = {
    1: InvalidArgumentError,
    2: UnsupportedError,
    3: NotCompiledError,
    4: OutOfMemoryError,
    5: DeviceError,
    6: FileError,
    7: CorruptFileError,
    8: InterruptedByCallerError,
    9: PestleError,
}
STATUS_NAMES: dict[str, int] = {}  # filled from the library, which has the names

_MARK = re.compile(r"\[pestle ([a-z ]+)\] (.*)", re.DOTALL)


def typed(error: BaseException) -> BaseException:
    """The error that a kernel's RuntimeError stands for; other errors as they are."""
    found = _MARK.search(str(error))
    if found is None:
        return error
    return BY_STATUS[STATUS_NAMES.get(found[1], 9)](found[2])
