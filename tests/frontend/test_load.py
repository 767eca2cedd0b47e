"""Programs from files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fusedsl.diagnostics import FusedslError
from fusedsl.frontend import load, parse, to_json
from tests.frontend.programs import LLAMA_MLP


def test_text_and_json(tmp_path: Path):
    graph = parse(LLAMA_MLP)
    text, data = tmp_path / "mlp.fdsl", tmp_path / "mlp.json"
    text.write_bytes(b"\xef\xbb\xbf" + LLAMA_MLP.replace("\n", "\r\n").encode())
    data.write_text(json.dumps(to_json(graph)))
    assert load(text) == load(str(data)) == graph


def test_mistakes_name_the_file(tmp_path: Path):
    path = tmp_path / "mlp.fdsl"
    path.write_text(LLAMA_MLP.replace("swiglu", "swigul"))
    with pytest.raises(FusedslError) as caught:
        load(path)
    assert caught.value.codes == ("F0201",)
    assert f"{path}:6:7" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "got"),
    [
        ("nosuch.fdsl", None, "no such file"),
        ("latin.fdsl", b"# caf\xe9\n", "the byte 0xe9 at offset 5"),
        ("wide.fdsl", LLAMA_MLP.encode("utf-16"), "the byte 0xff at offset 0"),
        ("mlp.txt", LLAMA_MLP.encode(), "another kind"),
        ("nul\0.fdsl", None, "null"),
    ],
)
def test_f0102(tmp_path: Path, name: str, content: bytes | None, got: str):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FusedslError) as caught:
        load(path)
    (item,) = caught.value.diagnostics
    assert item.code == "F0102"
    assert got in (item.got or "")
    assert item.fix


def test_f0102_a_folder(tmp_path: Path):
    folder = tmp_path / "a.fdsl"
    folder.mkdir()
    with pytest.raises(FusedslError) as caught:
        load(folder)
    assert caught.value.codes == ("F0102",)
