"""Plain PyTorch: runs wherever torch does, with the codes of the library bit for bit."""


def unavailable() -> None:
    return None


def refuses_device(device) -> None:
    return None
