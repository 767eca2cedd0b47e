"""The source cache under concurrency, death and damage (concurrency_43)."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
import traceback
import warnings

import pytest

from fusedsl.runtime import cache, load

TEXT = "def answer():\n    return 42\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(tmp_path))
    return tmp_path


def files(folder):
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_the_same_source_is_one_file_that_is_not_written_twice(folder):
    first = cache.place("demo", TEXT, {"numerics": "moved"})
    stamp = os.stat(first.path).st_mtime_ns
    assert cache.place("demo", TEXT, {"numerics": "moved"}) == first
    assert os.stat(first.path).st_mtime_ns == stamp
    assert len(files(folder)) == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (TEXT, {"numerics": "as_written"}),
        (TEXT, {"numerics": "moved", "target": "sm_90"}),
        (TEXT + "# changed\n", {"numerics": "moved"}),
    ],
)
def test_everything_that_matters_is_in_the_key(text, parts):
    assert cache.key_of(text, parts) != cache.key_of(TEXT, {"numerics": "moved"})


def test_versions_and_the_block_library_are_in_the_key(monkeypatch):
    before = cache.key_of(TEXT, {})
    monkeypatch.setattr(cache, "library_digest", lambda: "another library")
    assert cache.key_of(TEXT, {}) != before
    monkeypatch.undo()
    monkeypatch.setattr(cache.triton, "__version__", "9.9.9")
    assert cache.key_of(TEXT, {}) != before


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace("42", "43"),
        lambda text: text[:-5],
        lambda text: text + "answer = None\n",
    ],
    ids=["truncated", "empty", "edited", "digest cut", "appended"],
)
def test_a_damaged_entry_is_written_anew(folder, damage):
    entry = cache.place("demo", TEXT, {})
    with open(entry.path, "w") as file:
        file.write(damage(entry.text))
    assert cache.place("demo", TEXT, {}) == entry
    with open(entry.path) as file:
        assert file.read() == entry.text


def test_an_entry_that_is_not_text_is_written_anew(folder):
    entry = cache.place("demo", TEXT, {})
    with open(entry.path, "wb") as file:
        file.write(b"\xff\xfe\x00garbage")
    assert cache.read(cache.Path(entry.path)) is None
    cache.place("demo", TEXT, {})
    assert cache.read(cache.Path(entry.path)) == entry.text


def test_concurrency_43_a_folder_that_cannot_be_written_costs_one_warning(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(blocked))
    cache._warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entry = cache.place("blocked", TEXT, {})
        cache.place("blocked", TEXT, {})
    assert len(caught) == 1
    assert "FUSEDSL_CACHE_DIR" in str(caught[0].message)
    module = load.load(entry)
    assert module.answer() == 42
    assert "return 42" in inspect.getsource(module.answer)


def test_a_traceback_shows_the_emitted_line(folder):
    text = "def fail():\n    raise ValueError('here')  # the emitted line\n"
    module = load.load(cache.place("fail", text, {}))
    try:
        module.fail()
    except ValueError:
        shown = traceback.format_exc()
    assert "# the emitted line" in shown


def test_a_module_is_loaded_once_and_leaves_no_bytecode(folder):
    entry = cache.place("once", TEXT, {})
    assert load.load(entry) is load.load(entry)
    assert [p.suffix for p in files(folder)] == [".py"]


#: Forks workers after the slow imports; each writes `rounds` entries as soon as all are there.
WORKERS = """
    import os, sys
    from fusedsl.runtime import cache, load
    text = "def answer():\\n    return 42\\n" + "# filler\\n" * 20000
    def work():
        for i in range({rounds}):
            assert load.load(cache.place("shared", text, {{"round": i}})).answer() == 42
    read, write = os.pipe()
    children = []
    for _ in range({count}):
        pid = os.fork()
        if pid == 0:
            os.close(write)
            os.read(read, 1)  # returns when the parent closes the other end
            work()
            os._exit(0)
        children.append(pid)
    print(*children, flush=True)
    os.close(write)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(*codes, flush=True)
"""


def start(folder, *, count: int, rounds: int) -> subprocess.Popen[str]:
    env = {**os.environ, "FUSEDSL_CACHE_DIR": str(folder), "TRITON_INTERPRET": "1"}
    code = textwrap.dedent(WORKERS.format(count=count, rounds=rounds))
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, text=True
    )


def test_concurrency_43_eight_processes_start_on_one_empty_folder(tmp_path):
    folder = tmp_path / "empty"
    with start(folder, count=8, rounds=10) as parent:
        out, _ = parent.communicate(timeout=120)
    assert out.splitlines()[1] == " ".join("0" * 8)
    left = files(folder)
    assert len(left) == 10
    assert all(cache.read(path) for path in left)


def test_concurrency_43_a_process_dies_while_writing(tmp_path, monkeypatch):
    """Killed at any moment it leaves whole entries and at most one temporary file."""
    with start(tmp_path, count=1, rounds=100_000) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        while len(list(tmp_path.rglob("*.py"))) < 5:
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        assert parent.stdout.readline().strip() == str(-signal.SIGKILL)
    entries = [p for p in files(tmp_path) if p.suffix == ".py"]
    assert len(entries) >= 5
    assert len(files(tmp_path)) - len(entries) <= 1
    assert all(cache.read(path) for path in entries)
    monkeypatch.setenv("FUSEDSL_CACHE_DIR", str(tmp_path))
    entry = cache.place("shared", TEXT, {})
    assert load.load(entry).answer() == 42
