"""The sets that a bench rotates over: on a GPU each lies at several places, and is judged once."""

from types import SimpleNamespace

import numpy as np
import pytest
from pestle_lab import benching


class Stand:
    """A session whose kernels double; what it is given, and what is asked."""

    def __init__(self, device: str):
        self.device, self.placed, self.copied, self.asked = device, [], [], []
        self.poisoned: set[int] = set()

    def open(self, case) -> None:
        pass

    def place(self, index: int, raws: dict, same_as: int | None = None, are_buffers=False) -> None:
        self.placed.append(raws["x"])
        self.copied.append(same_as)

    def ask(self, do: str, **request) -> dict:
        self.asked.append((do, request["set"], request.get("which")))
        return {}

    def fetch(self, index: int) -> dict:
        return {"x": self.placed[index], "out": self.placed[index] * 2}


class Content:
    def __init__(self, number: int):
        self.inputs, self.right = {"x": np.array([100 + number])}, []

    def buffers(self) -> dict:
        return self.inputs

    def truth(self) -> None:
        pass


def prepared(monkeypatch, device: str) -> tuple[Stand, list[int], benching.Bench]:
    judged = []
    monkeypatch.setattr(benching, "judge", lambda case, session, masters, *rest: judged.append(
        int(masters["x"][0])))  # fmt: skip
    plans = {
        name: SimpleNamespace(name=name, nbytes=1 << 9, role=role)
        for name, role in (("x", "input"), ("out", "output"))
    }
    case = SimpleNamespace(plans=plans, text="a case", of_role=lambda role: [plans["out"]])
    known = [Content(i) for i in range(3)]
    contents = SimpleNamespace(seed=100, first=known, get=known.__getitem__, finish=lambda: None)
    stand = Stand(device)
    bench = benching.Bench(stand, benching.Sets(stand, case, contents))
    bench.prepare()
    return stand, judged, bench


@pytest.mark.parametrize(("device", "places"), [("cuda", 3), ("cpu", 1)])
def test_a_set_lies_at_several_places_of_a_gpu_and_is_judged_once(monkeypatch, device, places):
    stand, judged, _ = prepared(monkeypatch, device)
    assert [int(x[0]) for x in stand.placed] == [100, 101, 102] * places
    assert stand.copied == [None] * 3 + [0, 1, 2] * (places - 1)
    assert judged == [100, 101, 102]


def test_a_second_kernel_of_a_process_does_not_find_the_answers_of_the_first(monkeypatch):
    stand, judged, first = prepared(monkeypatch, "cuda")
    stand.asked.clear()
    second = benching.Bench(stand, first.sets, which=1)
    second.check_before()
    calls = [i for i, (do, _, _) in enumerate(stand.asked) if do == "call"][1:]
    assert [stand.asked[i][1:] for i in calls] == [(index, 1) for index in range(9)]
    assert all(stand.asked[i - 1][:2] == ("poison", stand.asked[i][1]) for i in calls)
    assert judged == [100, 101, 102], "the same bits need no second look"


def test_changed_inputs_are_judged_although_the_outputs_are_known(monkeypatch):
    _, judged, bench = prepared(monkeypatch, "cpu")
    judged.clear()
    bench._judge("while timing", 1, {"x": np.array([7]), "out": np.array([202])})
    assert judged == [101]


def test_modules_that_one_process_would_mix_up_are_named(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"of = {folder!r}")
        (tmp_path / folder / "mine.py").write_text(f"# {folder}")
    one, two = (SimpleNamespace(path=tmp_path / f / "mine.py") for f in ("one", "two"))
    assert benching.shared_names(one, two) == "helper"
    assert benching.shared_names(one, one) == ""
    (tmp_path / "two" / "helper.py").write_text("of = 'one'")
    assert benching.shared_names(one, two) == ""


def test_places_end_where_sets_or_memory_do():
    assert benching.places_of(16, 1 << 20, "cuda") == 1
    assert benching.places_of(5, 1 << 20, "cuda:1") == 3
    assert benching.places_of(2, 1 << 29, "cuda") == 2
    assert benching.places_of(2, 1 << 33, "cuda") == 1
