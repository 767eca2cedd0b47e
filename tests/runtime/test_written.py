"""The text of prepared calls, run with stand-ins for everything it knows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fusedsl.runtime.written import same_layouts, written


class Packed:
    def __init__(self, launches: int):
        self.calls = tuple((i, "function", "parameters") for i in range(launches))
        self.seen, self.base, self.moves = (), 0, []

    def move(self, pointers: tuple[int, ...]) -> None:
        self.seen = pointers
        self.moves.append(pointers)


def play(tensors=(), outputs=1, launches=1, held=(), large=False, status=()):
    """The function, and what it did."""
    done = SimpleNamespace(launched=[], again=[], packed=Packed(launches), placed=[], lanes={})
    chain = SimpleNamespace(calls=[])
    statuses = list(status)

    def launch(*args):
        done.launched.append(args)
        return statuses.pop(0) if statuses else 0

    names = {
        "again": lambda *args: done.again.append(args),
        "allocate": lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype),
        "capturing": lambda: False,
        "current": lambda: 0,
        "enter": chain,
        "epoch": "now",
        "graded": torch.is_grad_enabled,
        "hooked": lambda: bool(done.chain.calls),
        "index": 0,
        "lane_of": lambda stream: done.lanes.setdefault(stream, []) or "lane",
        "lanes": done.lanes,
        "launch": launch,
        "leave": chain,
        "packed_for": lambda lane: done.packed,
        "packed_of": {},
        "place": lambda packed, base: done.placed.append(base),
        "runtime": SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=chain),
        "same": same_layouts(tensors),
        "size": 1 << 20,
        "stream_of": lambda index: 7,
        "uint8": torch.uint8,
    }
    for i, t in enumerate(tensors):
        names |= {f"shape{i}": t.shape, f"stride{i}": t.stride(), f"dtype{i}": t.dtype}
        names |= {f"device{i}": t.device, f"phase{i}": t.data_ptr() & 15}
        names |= {f"held{i}": lambda t=t: t, f"place{i}": t.data_ptr(), f"version{i}": t._version}
    for i in range(outputs):
        names |= {f"new_shape{i}": (i + 1, 2), f"new_strides{i}": (2, 1)}
        names |= {f"new_dtype{i}": torch.float32}
    exec(written(len(tensors), held, outputs, launches, large=large), names)
    done.chain, done.names = chain, names
    return names["call"], done


def binding(**changes):
    known = {"watched": (), "epoch": "now", "graded": False, "ordered": {7}}
    return SimpleNamespace(**{**known, **changes})


@pytest.mark.parametrize("tensors", [0, 1, 3])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("launches", [1, 3])
@pytest.mark.parametrize("large", [False, True])
def test_any_number_of_tensors_outputs_and_launches(tensors, outputs, launches, large):
    given = tuple(torch.randn(4, 4) for _ in range(tensors))
    call, done = play(given, outputs, launches, large=large)
    first, second = call(binding(), given), call(binding(), given)
    assert [tuple(t.shape) for t in first] == [(i + 1, 2) for i in range(outputs)]
    assert len(done.launched) == 2 * launches and done.lanes[7] == ["lane"]
    pointers = tuple(t.data_ptr() for t in (*given, *second))
    assert done.packed.seen == pointers and len(done.placed) == 2 * large


X = torch.randn(4, 6)


@pytest.mark.parametrize(
    "other",
    [
        X[:3],
        X.double(),
        X.t().contiguous().t(),
        torch.randn(4 * 6 + 1)[1:].view(4, 6),
        torch.randn(4, 12)[:, :6],
        X.clone().requires_grad_(),
        X.to("meta"),
        None,
        "x",
    ],
)
def test_what_is_laid_out_otherwise_is_refused(other):
    call, done = play((X,))
    assert call(binding(), (other,)) is None and done.launched == []
    assert call(binding(), ()) is None and call(binding(), (X, X)) is None
    assert call(binding(), (X.clone(),)) is not None


def test_gradients_count_while_they_are_on():
    for prepared_with in (X, X.clone().requires_grad_()):
        call, _ = play((prepared_with,))
        needs = X.clone().requires_grad_()
        assert call(binding(), (needs,)) is None
        with torch.no_grad():
            assert call(binding(), (needs,)) is not None
            assert call(binding(graded=True), (X,)) is not None
        assert call(binding(graded=True), (X,)) is None


def test_tensors_of_other_kinds_are_compared_one_thing_at_a_time():
    call, _ = play((X,))
    with torch.inference_mode():
        inference = torch.randn(4, 6)
    assert call(binding(), (inference,)) is not None
    assert call(binding(), (torch.nn.Parameter(X, requires_grad=False),)) is not None
    with torch.autocast("cpu"):
        assert call(binding(), (X,)) is not None


def test_held_tensors_must_be_the_same_unchanged():
    held = X.clone()
    call, _ = play((X, held), held=(1,))
    assert call(binding(), (X, held)) is not None
    assert call(binding(), (X, held.clone())) is None
    held.add_(1)
    assert call(binding(), (X, held)) is None


@pytest.mark.parametrize(
    "name, value",
    [("index", 1), ("capturing", lambda: True), ("epoch", "before")],
)
def test_other_circumstances_are_refused(name, value):
    call, done = play((X,))
    done.names[name] = value
    assert call(binding(), (X,)) is None and done.launched == []


def test_hooks_are_noticed_however_they_are_set():
    call, done = play((X,))
    done.chain.calls.append(print)
    assert call(binding(), (X,)) is None
    done.chain.calls.clear()
    assert call(binding(), (X,)) is not None
    done.names["runtime"].launch_exit_hook = None
    assert call(binding(), (X,)) is not None
    done.names["hooked"] = lambda: True
    assert call(binding(), (X,)) is None


def test_weights_are_watched():
    weight = X.clone()
    watched = ((weight, weight.data_ptr(), weight._version),)
    call, _ = play((X,))
    assert call(binding(watched=watched), (X,)) is not None
    weight.add_(1)
    assert call(binding(watched=watched), (X,)) is None


def test_a_launch_that_fails_is_tried_again_and_the_lane_is_given_back():
    call, done = play((X,), launches=2, status=[201])
    assert call(binding(), (X,)) is not None
    assert done.again == [(201, 0, "function", "parameters")]

    def fail(*args):
        raise RuntimeError("700")

    done.names["launch"] = fail
    with pytest.raises(RuntimeError, match="700"):
        call(binding(), (X,))
    assert done.lanes[7] == ["lane"]
