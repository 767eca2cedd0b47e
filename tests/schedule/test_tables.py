"""Shipped tables: every entry is legal, unique, better than the model, and found again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fusedsl.schedule import (
    ROW_CLASSES,
    Extent,
    Target,
    TileConfig,
    choose,
    family,
    hopper,
    problem,
    row_class,
    tables,
)
from tests.fuse.harness import plan_of

FILES = sorted(Path(tables.__file__).parent.glob("*.json"))
PROGRAMS = {
    "gemm bf16 tiles=2": "y = linear(x, w);",
    "gemm bf16 paired tiles=2": "y = swiglu(linear(x, g));",
    "gemm bf16 tiles=2,2": "y = linear(x, w) + r;",
}
TEXT = """
kernel k(x: bf16[M, {k}], w: weight bf16[{n}, {k}], g: weight bf16[{n2}, {k}], r: bf16[M, {n}])
    -> (y: bf16[M, {n}]) {{ {body} }}
"""


def planned(name: str, n: int, k: int):
    body = PROGRAMS[name]
    unused = {"w": "w: weight bf16[{n}, {k}], ", "g": "g: weight bf16[{n2}, {k}], "}
    text = TEXT
    for letter, declared in unused.items():
        if f", {letter})" not in body:
            text = text.replace(declared, "")
    if " r" not in body:
        text = text.replace(", r: bf16[M, {n}]", "")
    plan = plan_of(text.format(n=n, n2=2 * n, k=k, body=body))
    return plan, plan.kernels[-1]


def placed(entry: tables.Entry, target: Target) -> TileConfig:
    return replace(entry.config, programs=entry.config.programs * target.sms)


def test_the_programs_are_of_the_families() -> None:
    for name in PROGRAMS:
        assert family(*planned(name, 64, 64)) == name


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_entry_is_legal_and_worth_its_place(file: Path) -> None:
    record = json.loads(file.read_text())
    assert set(record["versions"]) == {"python", "torch", "triton", "fusedsl"}
    target = Target.parse(file.stem)
    entries = [tables.entry_of(row) for row in record["rows"]]
    assert entries and len({entry.key for entry in entries}) == len(entries)
    for entry in entries:
        plan, kernel = planned(entry.family, entry.cols, entry.depth)
        assert entry.rows in ROW_CLASSES
        assert problem(plan, kernel, placed(entry, target), target, entry.main_loop) is None
        assert 0 < entry.ms < entry.default_ms


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_entries_are_what_is_chosen(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(file.read_text())
    monkeypatch.setattr(tables, "triton_version", lambda: record["versions"]["triton"])
    tables._read.cache_clear()
    target = Target.parse(file.stem)
    used = 0
    for entry in tables.table(file.stem).values():
        plan, kernel = planned(entry.family, entry.cols, entry.depth)
        found = choose(plan, kernel, {"M": entry.rows}, target, entry.main_loop)
        used += replace(found, fast=entry.config.fast) == placed(entry, target)
        with tables.unused():
            alone = choose(plan, kernel, {"M": entry.rows}, target, entry.main_loop)
        assert problem(plan, kernel, alone, target, entry.main_loop) is None
    assert used > 0.5 * len(record["rows"])
    tables._read.cache_clear()


ODD_CONFIG = TileConfig(64, 64, 64, group_m=3, warps=4, stages=3, programs=1)


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch):
    """Put one entry in the table of sm_90."""

    def put(config: TileConfig, n: int = 512, k: int = 512) -> None:
        entry = tables.Entry("gemm bf16 tiles=2", "tma", 1024, n, k, config, 0.5, 1.0)
        monkeypatch.setattr(tables, "_read", lambda arch: {entry.key: entry})

    return put


def chosen(n: int, k: int, rows: int = 1000) -> TileConfig:
    plan, kernel = planned("gemm bf16 tiles=2", n, k)
    return choose(plan, kernel, {"M": rows}, Target.parse("sm_90"), "tma")


def test_an_entry_stands_for_its_bucket(shipped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "_TRUST", 5.0)
    shipped(ODD_CONFIG)
    assert row_class(1000) == 1024
    assert chosen(512, 512).group_m == chosen(500, 490).group_m == 3
    assert chosen(512, 512).programs == 132
    assert chosen(512, 1024).group_m != 3 and chosen(512, 512, rows=5000).group_m != 3


@pytest.mark.parametrize("change", [{"stages": 40}, {"block_m": 96}, {"warps": 64}])
def test_an_entry_that_is_not_legal_is_never_chosen(shipped, change: dict[str, int]) -> None:
    shipped(replace(ODD_CONFIG, **change))
    assert chosen(512, 512).group_m != 3


def test_an_entry_that_the_model_finds_much_slower_is_not_trusted(shipped) -> None:
    shipped(replace(ODD_CONFIG, block_n=16, block_k=16, stages=2), n=16384, k=16384)
    assert chosen(16384, 16384).group_m != 3


def test_tables_of_another_triton_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tables.Entry("gemm bf16 tiles=2", "tma", 1024, 512, 512, ODD_CONFIG, 0.5, 1.0)
    record = {"versions": {"triton": "3.6.0"}, "rows": [entry.to_json()]}
    (tmp_path / "sm_90.json").write_text(json.dumps(record))
    monkeypatch.setattr(tables, "__file__", str(tmp_path / "__init__.py"))
    for version, count in (("3.6.0", 1), ("3.7.0", 0), ("", 0)):
        monkeypatch.setattr(tables, "triton_version", lambda version=version: version)
        tables._read.cache_clear()
        assert len(tables.table("sm_90")) == count
        assert tables.table("sm_80") == {}
    tables._read.cache_clear()


def test_buckets() -> None:
    assert tables.bucket(4096) == 24 == tables.bucket(3500) == tables.bucket(4800)
    assert tables.bucket(3400) == 23 and tables.bucket(0) == tables.bucket(1) == 0
    assert Extent(1, 2).depth == 0
