"""Mistakes that people and models make, each one change of an example program.

A mistake is a program, the piece that is changed (its first occurrence after `after`), what it
becomes, and the piece of the changed text that a diagnostic must point at.
"""

from __future__ import annotations

from dataclasses import dataclass

from examples import read
from fusedsl.frontend import parse
from fusedsl.ir import Graph, Node, Param, Result


@dataclass(frozen=True)
class Mistake:
    """One mutation. `at` is what the diagnostic marks: by default the new piece itself."""

    name: str
    program: str
    old: str
    new: str
    at: str | None = None
    after: str = ""
    base: tuple[str, str] | None = None

    @property
    def correct(self) -> str:
        """The program before the mistake."""
        text = read(self.program)
        return text.replace(*self.base, 1) if self.base else text

    @property
    def offset(self) -> int:
        """Where the changed piece begins."""
        text = self.correct
        return text.index(self.old, text.index(self.after))

    @property
    def text(self) -> str:
        """The program with the mistake."""
        text, at = self.correct, self.offset
        return text[:at] + self.new + text[at + len(self.old) :]

    @property
    def place(self) -> tuple[int, int]:
        """Line and column, from 1, of the piece that a diagnostic must mark."""
        text = self.text
        at = text.index(self.new if self.at is None else self.at, self.offset)
        line = text.count("\n", 0, at) + 1
        return line, at - (text.rfind("\n", 0, at) + 1) + 1


def _m(name: str, program: str, old: str, new: str, at: str | None = None, **more: str) -> Mistake:
    return Mistake(name, program, old, new, at, **more)  # type: ignore[arg-type]


BODY = "{\n"

MISTAKES = (
    # Blocks
    _m("block: no underscore", "llama_mlp", "rms_norm", "rmsnorm", after=BODY),
    _m("block: one letter too many", "llama_mlp", "swiglu", "swiglue", after=BODY),
    _m("block: camel case", "bert_layer", "layer_norm", "LayerNorm", after=BODY),
    _m("block: a letter missing", "gpt2_mlp", "matmul", "matul", after=BODY),
    _m("block: letters swapped", "bert_layer", "gelu", "gleu", after=BODY),
    _m("block: another system's name", "rmsnorm_qkv", "linear", "dense", after=BODY),
    _m("block: shortened", "nemotron_mlp", "squared_relu", "square_relu", after=BODY),
    # Names
    _m("name: no underscore", "llama_mlp", "w_gate_up", "w_gateup", after=BODY),
    _m("name: index run together", "decoder_stack", "w_down_2", "w_down2", after=BODY),
    _m("name: index forgotten", "minilm_layer", "gain_2", "gain", after=BODY),
    _m("name: letter doubled", "llama_mlp", "a,", "aa,", "aa", after="y = "),
    _m("name: assigned twice", "gpt2_mlp", "a =", "h =", "h", after=BODY),
    _m("name: reassigned", "nemotron_mlp", "z = linear(a, w_down);\n  y = relu(z)",
       "h = linear(a, w_down);\n  y = relu(h)", "h =",
       base=("y = linear(a, w_down)", "z = linear(a, w_down);\n  y = relu(z)")),
    _m("name: parameter declared twice", "bert_layer", "gain_2", "gain_1"),
    _m("name: output under another name", "llama_mlp", "y =", "out =", "out", after=BODY),
    _m("name: output only renamed", "llama_mlp", "y = linear(a, w_down) + x;",
       "t = linear(a, w_down) + x;\n  y = t;", "t;"),
    _m("name: used above its assignment", "llama_mlp",
       "h = rms_norm(x, gain, eps=1e-6);\n  a = swiglu(linear(h, w_gate_up));",
       "a = swiglu(linear(h, w_gate_up));\n  h = rms_norm(x, gain, eps=1e-6);", "h, w_gate_up"),
    # What nobody reads
    _m("unused: a value", "gpt2_mlp", "  a =", "  z = relu(x);\n  a =", "z"),
    _m("unused: a parameter", "rmsnorm_qkv", "w_qkv:", "b_qkv: weight bf16[6144],\n    w_qkv:",
       "b_qkv"),
    # Calls
    _m("call: attribute by position", "llama_mlp", "eps=1e-6", "1e-6"),
    _m("call: attribute by position behind a bias", "gpt2_mlp", "eps=1e-5", "1e-5"),
    _m("call: attribute's other name", "llama_mlp", "eps", "epsilon", after=BODY),
    _m("call: attribute misspelt", "gpt2_mlp", "approximate", "aproximate", after=BODY),
    _m("call: optional operand misspelt", "gpt2_mlp", "b_up)", "bais=b_up)", "bais", after=BODY),
    _m("call: choice misspelt", "gpt2_mlp", "tanh", "tahn", after=BODY),
    _m("call: cast order misspelt", "rmsnorm_qkv", "cast=llama", "cast=lama", "lama",
       base=("eps=1e-5", "eps=1e-5, cast=llama")),
    _m("call: an operand too many", "nemotron_mlp", "linear(h, w_up)", "linear(h, w_up), h", "h)"),
    _m("call: an operand forgotten", "nemotron_mlp", "linear(a, w_down)", "linear(a)", "linear"),
    _m("call: an attribute forgotten", "llama_mlp", "softcap(s, cap=30)", "softcap(s)", "softcap",
       base=("y = linear(a, w_down) + x", "s = linear(a, w_down) + x;\n  y = softcap(s, cap=30)")),
    # Types
    _m("type: weight lies the other way", "llama_mlp", "linear(a, w_down)", "matmul(a, w_down)",
       "matmul"),
    _m("type: weight lies the other way, with a bias", "gpt2_mlp", "matmul(h, w_up",
       "linear(h, w_up", "linear"),
    _m("type: torch's dtype", "llama_mlp", "bf16", "bfloat16"),
    _m("type: a weight in another dtype", "decoder_stack", "bf16", "fp16", after="w_down_1"),
    _m("type: a gain of another width", "nemotron_mlp", "4096", "4095", after="gain: weight"),
    _m("type: output in another dtype", "llama_mlp", "bf16", "fp32", "fp32[", after="-> (y: "),
    _m("type: output with an unknown dimension", "rmsnorm_qkv", "bf16[M", "bf16[N",
       after="-> (qkv: "),
    _m("type: three dimensions", "rmsnorm_qkv", "bf16[M, 4096]", "bf16[B, M, 4096]"),
    # Syntax
    _m("syntax: no semicolon", "llama_mlp", "eps=1e-6);", "eps=1e-6)", "\n  a ="),
    _m("syntax: a parenthesis too few", "llama_mlp", "w_gate_up));", "w_gate_up);", ";",
       after=BODY),
    _m("syntax: no comma between parameters", "gpt2_mlp", "bf16[768],\n", "bf16[768]\n", "shift",
       after="gain"),
)  # fmt: skip


def shape_of(graph: Graph) -> tuple[object, ...]:
    """A graph up to the names of parameters and values: what two graphs that compute the same
    have in common."""
    names: dict[str, str] = {}

    def plain(name: object) -> object:
        return names.setdefault(name, f"v{len(names)}") if isinstance(name, str) else name

    params = [Param(str(plain(p.name)), p.type, p.weight) for p in graph.params]
    nodes = [
        Node(
            n.block,
            tuple(plain(op) for op in n.operands),  # type: ignore[misc]
            n.attrs,
            tuple(Result(str(plain(r.name)), r.type) for r in n.results),
        )
        for n in graph.nodes
    ]
    return (tuple(params), tuple(nodes), tuple(plain(o) for o in graph.outputs))


def same(text: str, correct: str) -> bool:
    """Whether two texts mean the same program, up to names."""
    return shape_of(parse(text)) == shape_of(parse(correct))
