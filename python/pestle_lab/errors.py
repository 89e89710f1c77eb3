"""What stops a command, with the exit code that says so (docs/site/lab.md lists them)."""

OK = 0
INTERNAL = 1
USAGE = 2
COMPILE_ERROR = 3
WRONG_RESULT = 4
CRASH = 5
TIMEOUT = 6
IMPOSSIBLE = 7
REGRESSION = 8
UNSUPPORTED = 9
TRANSPORT = 10
SANITIZER = 11

# Which one a command ends with when several happened: the first of these.
_PRIORITY = (
    COMPILE_ERROR,
    WRONG_RESULT,
    CRASH,
    TIMEOUT,
    IMPOSSIBLE,
    SANITIZER,
    REGRESSION,
    INTERNAL,
    TRANSPORT,
    UNSUPPORTED,
)

STATUS_CODES = {
    "ok": OK,
    "unsupported": OK,  # declared by the kernel: not a fault of this case
    "no_device": UNSUPPORTED,
    "compile_error": COMPILE_ERROR,
    "wrong_result": WRONG_RESULT,
    "wrong_shape": WRONG_RESULT,
    "wrong_dtype": WRONG_RESULT,
    "nonfinite": WRONG_RESULT,
    "poisoned": WRONG_RESULT,
    "out_of_bounds": WRONG_RESULT,
    "input_modified": WRONG_RESULT,
    "nondeterministic": WRONG_RESULT,
    "runtime_error": CRASH,
    "crash": CRASH,
    "timeout": TIMEOUT,
    "impossible_time": IMPOSSIBLE,
    "sanitizer": SANITIZER,
    "internal_error": INTERNAL,
    "lost": TRANSPORT,  # of a sweep: its worker died, or no node could run it
}


class LabError(Exception):
    """A sentence for the user and the exit code of the command."""

    def __init__(self, message: str, code: int = USAGE):
        super().__init__(message)
        self.code = code


class WrongShape(Exception):
    """Of what a kernel returned, where its harness has it return something."""


class WrongDtype(Exception):
    pass


def exit_code(statuses) -> int:
    codes = {STATUS_CODES[status] for status in statuses}
    return next((code for code in _PRIORITY if code in codes), OK)
