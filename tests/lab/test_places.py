"""The sets that a bench rotates over: on a GPU each lies at several places, and is judged once."""

from types import SimpleNamespace

import numpy as np
import pytest
from pestle_lab import benching


class Stand:
    """A session whose kernel doubles; what it is given, and what is asked."""

    def __init__(self, device: str):
        self.device, self.placed = device, []

    def open(self, case) -> None:
        pass

    def place(self, index: int, masters: dict) -> None:
        self.placed.append(masters["x"])

    def ask(self, do: str, **request) -> dict:
        return {}

    def fetch(self, index: int) -> dict:
        return {"x": self.placed[index], "out": self.placed[index] * 2}


def prepared(monkeypatch, device: str) -> tuple[Stand, list[int]]:
    judged = []
    monkeypatch.setattr(benching, "last_level_cache", lambda device: 1 << 10)
    monkeypatch.setattr(benching.reference, "truth", lambda case, masters: None)
    monkeypatch.setattr(benching, "judge", lambda case, session, masters, *rest: judged.append(
        int(masters["x"][0])))  # fmt: skip
    case = SimpleNamespace(
        plans={"x": SimpleNamespace(nbytes=1 << 10)}, text="a case",
        inputs=lambda seed: {"x": np.array([seed])},
    )  # fmt: skip
    stand = Stand(device)
    bench = benching.Bench(stand, case, benching.Settings(seed=100))
    bench.prepare()
    return stand, judged


@pytest.mark.parametrize(("device", "places"), [("cuda", 3), ("cpu", 1)])
def test_a_set_lies_at_several_places_of_a_gpu_and_is_judged_once(monkeypatch, device, places):
    stand, judged = prepared(monkeypatch, device)
    assert [int(x[0]) for x in stand.placed] == [100, 101, 102] * places
    assert judged == [100, 101, 102]


def test_places_end_where_sets_or_memory_do():
    assert benching.places_of(16, 1 << 20, "cuda") == 1
    assert benching.places_of(5, 1 << 20, "cuda:1") == 3
    assert benching.places_of(2, 1 << 29, "cuda") == 2
    assert benching.places_of(2, 1 << 33, "cuda") == 1
