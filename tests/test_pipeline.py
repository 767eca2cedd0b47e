"""Every way into the pipeline, every option, every stage."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fusedsl
from fusedsl import FusedslError, frontend, pipeline
from fusedsl.fuse import fuse
from fusedsl.rewrite import RewriteOptions, expand, rewrite

TEXT = """kernel f(x: bf16[M, 64], gain: weight bf16[64], w: weight bf16[32, 64])
    -> (y: bf16[M, 32]) {
  y = linear(rms_norm(x, gain, eps=1e-06), w);
}
"""


def test_text_json_path_graph_and_builder_are_one_program(tmp_path: Path):
    graph = fusedsl.parse(TEXT)
    data = frontend.to_json(graph)
    text_file, json_file = tmp_path / "f.fdsl", tmp_path / "f.json"
    text_file.write_text(TEXT)
    json_file.write_text(json.dumps(data))
    ways = [TEXT, data, json.dumps(data), text_file, str(text_file), json_file, graph]
    programs = [fusedsl.compile(way) for way in ways]
    assert all(p.graph() == graph for p in programs)
    assert all(p.plan == programs[0].plan for p in programs)


def test_one_line_of_text_is_text():
    line = "kernel f(x: bf16[M, 16]) -> (y: bf16[M, 16]) { y = relu(x); }"
    assert fusedsl.compile(line).name == "f"


def test_a_path_that_does_not_exist():
    with pytest.raises(FusedslError) as caught:
        fusedsl.compile("no/such/file.fdsl")
    assert caught.value.codes == ("F0102",)


@pytest.mark.parametrize("program", [3, None, 2.5, b"kernel"])
def test_what_is_no_program(program):
    with pytest.raises(FusedslError) as caught:
        fusedsl.compile(program)
    assert caught.value.codes == ("F0507",)
    assert type(program).__name__ in str(caught.value)


def test_mistakes_in_the_text_come_out_of_compile():
    with pytest.raises(FusedslError) as caught:
        fusedsl.compile(TEXT.replace("rms_norm", "rms_nrom").replace(", w)", ", v)"))
    assert set(caught.value.codes) >= {"F0201", "F0202"}


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ({"numerics": "move"}, "did you mean 'moved'?"),
        ({"numerics": True}, "moved"),
        ({"fp32_shift": "yes"}, "True"),
        ({"tf32": 1}, "True"),
        ({"fp32_shift": torch.ones(2)}, "one of: False, True"),
        ({"numerics": []}, "one of: as_written, moved"),
    ],
)
def test_an_unknown_option_value(option, fix):
    with pytest.raises(FusedslError) as caught:
        fusedsl.compile(TEXT, **option)
    assert caught.value.codes == ("F0507",)
    assert fix in str(caught.value)


def test_every_unknown_option_value_comes_at_once():
    with pytest.raises(FusedslError) as caught:
        fusedsl.compile(TEXT, numerics="fast", tf32="on")
    assert caught.value.codes == ("F0507", "F0507")


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda p: p.verify({"Q": 3}), "F0404", "no dimension 'Q'"),
        (lambda p: p.verify({"M": -1}), "F0105", "dimension 'M' is no size"),
        (lambda p: p.verify({"M": 5}, seeds=()), "F0507", "at least one integer"),
        (lambda p: p.verify({"M": 5}, seeds=5), "F0507", "at least one integer"),
        (lambda p: p.verify({"M": 5}, device="nope"), "F0507", "no device 'nope'"),
        (lambda p: p.verify({"M": 5}, device="meta"), "F0507", "no device 'meta'"),
        (lambda p: p.explain({"M": "5"}), "F0105", "dimension 'M' is no size"),
        (lambda p: p.explain({"M": 2.5}), "F0105", "an integer from 0"),
        (lambda p: p.explain({"q": 5}), "F0404", "no dimension 'q'"),
        (lambda p: p.explain([5]), "F0404", "no dimension 'dims'"),
        (lambda p: p.explain(device="nope"), "F0507", "no device 'nope'"),
        (lambda p: p.graph([]), "F0507", "unknown stage"),
        (lambda p: p.bind([torch.ones(3)]), "F0507", "a mapping, a module"),
        (lambda p: p.bind({3: torch.ones(3)}), "F0501", "no parameter '3'"),
    ],
)
def test_wrong_arguments_are_coded_mistakes(call, code, words):
    with pytest.raises(FusedslError) as caught:
        call(fusedsl.compile(TEXT))
    assert code in caught.value.codes
    assert words in str(caught.value)


def test_each_stage_can_be_called_alone():
    source = pipeline.read(TEXT)
    expanded = expand(source)
    rewritten = rewrite(expanded, RewriteOptions())
    plan = fuse(rewritten.graph)
    program = fusedsl.compile(TEXT)
    assert program.graph("source") == source
    assert program.graph("expand") == expanded
    assert program.graph("rewrite") == rewritten.graph
    assert program.plan == plan


def test_a_chain_longer_than_the_stack_is_deep():
    steps = "".join(f"v{i + 1} = v{i} + 1.0;\n" for i in range(600))
    program = fusedsl.compile(
        f"kernel k(x: bf16[M, 8]) -> (y: bf16[M, 8]) {{ v0 = relu(x); {steps} y = v600 * x; }}"
    )
    assert len(program.kernels) == 1


def test_as_written_keeps_the_roundings():
    moved, written = fusedsl.compile(TEXT), fusedsl.compile(TEXT, numerics="as_written")
    fired = {e.rule for e in moved.stages.rewritten.fired}
    kept = {e.rule for e in written.stages.rewritten.fired}
    assert "commute_row_scale" in fired
    assert "commute_row_scale" not in kept
    assert moved.source != written.source


def test_compiling_is_deterministic():
    assert fusedsl.compile(TEXT).source == fusedsl.compile(TEXT).source


def test_the_version_is_that_of_the_package():
    text = (Path(fusedsl.__file__).parents[1] / "pyproject.toml").read_text()
    assert f'version = "{fusedsl.__version__}"' in text


def test_the_public_face():
    assert set(fusedsl.__all__) >= {"compile", "parse", "Graph", "Program", "FusedslError"}
    for name in fusedsl.__all__:
        assert hasattr(fusedsl, name)


def test_fast_math_is_an_option_of_the_tiles(monkeypatch):
    import fusedsl.runtime.configure as configure
    import fusedsl.runtime.engine as engine

    used = []
    monkeypatch.setattr(
        configure, "choose", lambda *a, real=configure.choose: replace(real(*a), fast=True)
    )

    def launcher(self, kernel, loop, config):
        used.append(config.fast)
        raise NotImplementedError  # the interpreter has no approximate tanh

    monkeypatch.setattr(engine.Engine, "launcher", launcher)
    text = "kernel f(x: bf16[M, 16]) -> (y: bf16[M, 16]) { y = silu(x); }"
    for wanted in (True, False):
        with pytest.raises(NotImplementedError):
            fusedsl.compile(text, fast_math=wanted)(torch.ones(4, 16).bfloat16())
    assert used == [True, False]
