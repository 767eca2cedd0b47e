"""One grammar, three readers: `python -m benchmarks.grammar_fuzz`

Mutated programs are given to lark (the parser of the language, syntax only), to llguidance (the
grammar as it is, and the form without `%ignore`) and to xgrammar (the EBNF form), byte by byte. All
must give the same verdict. Blanks and comments at both ends are taken off first: decoders start and
stop with the program. Exits with 1 on the first difference. No GPU is needed.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable
from importlib.metadata import version

from lark import Lark, UnexpectedInput

from benchmarks.common import write
from examples import FOLDER
from fusedsl.agents import export_grammar

TOKEN = re.compile(r"#[^\n]*\n|\w+(?:\.\w*)?(?:[eE][-+]?\d+)?|\s+|->|.", re.DOTALL)
WORDS = """
kernel weight bf16 fp16 fp32 fp8 kernelx weightbf16 bf16M x y h M F 2*M 0 1 00 1. .5 1e-6 1e 1.e+3
-1 - -- + * / -> - > ( ) () [ ] { } {} , ; = == : x=y f(x) relu(x) f(x=1,) f(,) y=x; y=f(); # @ .
"""
SPARE = [
    *WORDS.split(),
    " ",
    "\n",
    "\t",
    "\r",
    "# c\n",
    "# c",
    "#\n",
    "\u00e9",
    "\u2212",
    "\0",
    "\f",
]

#: Programs with what the examples lack.
MORE = (
    "kernel f(x:fp32[2*M,F,],)->(y:fp32[2*M,F]){y=-x*(x+.5)/3-x;}",
    "kernel f(x: bf16[M, 8],) -> (y: bf16[M, 8], z: bf16[M, 1],) {\n"
    "  a, b = row_moments(x);  # two\n  y = f(x, k=1e-6,);\n  z = g(a=b, c=-1);\n}",
    "kernel weight(weight: weight bf16[bf16, kernel]) -> (kernel: fp16[1]) {kernel = weight;}",
)

Verdict = Callable[[str], bool]


def programs() -> list[str]:
    """What the mutations start from."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.fdsl"))]
    return [*texts, *MORE]


def mutated(text: str, rng: random.Random) -> str:
    """The program after no, one or a few changes of its tokens."""
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        at = rng.randrange(len(tokens)) if tokens else 0
        kind = rng.randrange(7)
        if kind == 0:
            del tokens[at : at + 1]
        elif kind == 1:
            tokens.insert(at, rng.choice([*tokens, *SPARE]))
        elif kind == 2:
            tokens[at : at + 1] = [rng.choice([*tokens, *SPARE])]
        elif kind == 3:
            other = rng.randrange(len(tokens)) if tokens else 0
            tokens[at : at + 1], tokens[other : other + 1] = (
                tokens[other : other + 1],
                tokens[at : at + 1],
            )
        elif kind == 4:  # inside a token
            word = tokens[at] if tokens else ""
            cut = rng.randint(0, len(word))
            tokens[at : at + 1] = [word[:cut] + rng.choice(SPARE) + word[cut:]]
        elif kind == 5:  # blanks and comments where they change nothing, mostly
            tokens.insert(at, rng.choice([" ", "\n", "\t ", "\r\n", " # c ;}\n", "\n\n#\n"]))
        else:
            blanks = [i for i, t in enumerate(tokens) if t.isspace()]
            for index in reversed(blanks[at % 3 :: 3]):
                del tokens[index]
    return "".join(tokens)


def core(text: str) -> str:
    """Without blanks and comments at both ends."""
    text = re.sub(r"\A([ \t\r\n]|#[^\n]*\n)*", "", text)
    end = len(text)
    while True:  # from the right: a comment is a line's rest, and what is before it may be blank
        end = len(text[:end].rstrip(" \t\r\n"))
        line = text.rfind("\n", 0, end) + 1
        mark = text.find("#", line, end)
        if mark < 0 or "\n" not in text[end:]:
            return text[:end]
        end = mark


def lark_verdict() -> Verdict:
    """The grammar as any reader of it would load it."""
    reader = Lark(export_grammar("lark"), parser="lalr")

    def verdict(text: str) -> bool:
        try:
            reader.parse(text)
        except UnexpectedInput:
            return False
        return True

    return verdict


def llguidance_verdict(engine: str = "llguidance", layout: str = "free") -> Verdict:
    """A matcher over single bytes."""
    from llguidance import LLMatcher, LLTokenizer

    form = LLMatcher.grammar_from_lark(export_grammar(engine, layout=layout))
    first = LLMatcher(LLTokenizer("byte"), form)
    assert not first.is_error(), first.get_error()

    def verdict(text: str) -> bool:
        data = list(text.encode())
        matcher = first.deep_copy()
        return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()

    return verdict


def xgrammar_verdict(engine: str = "xgrammar", layout: str = "free") -> Verdict:
    """A matcher over single bytes."""
    import xgrammar

    info = xgrammar.TokenizerInfo(
        [bytes([b]) for b in range(256)] + [b"</s>"], stop_token_ids=[256]
    )
    form = xgrammar.GrammarCompiler(info).compile_grammar(export_grammar(engine, layout=layout))
    matcher = xgrammar.GrammarMatcher(form, terminate_without_stop_token=True)

    def verdict(text: str) -> bool:
        matcher.reset()
        return bool(text) and matcher.accept_string(text.encode()) and matcher.is_terminated()

    return verdict


def engines() -> dict[str, Verdict]:
    """Every reader beside lark, by name. Raises ImportError where one is not installed."""
    return {
        "llguidance, the .lark file": llguidance_verdict("lark"),
        "llguidance, explicit blanks": llguidance_verdict("llguidance"),
        "xgrammar, EBNF": xgrammar_verdict("xgrammar"),
    }


def differential(count: int, seed: str, readers: dict[str, Verdict]) -> dict[str, int]:
    """Hold `count` mutated programs against every reader; how many each way.

    Raises AssertionError with the first program that two readers judge otherwise.
    """
    rng = random.Random(seed)
    bases, reference = programs(), lark_verdict()
    counts = {"accepted": 0, "refused": 0}
    for _ in range(count):
        text = core(mutated(rng.choice(bases), rng))
        expected = reference(text)
        counts["accepted" if expected else "refused"] += 1
        for name, reader in readers.items():
            assert reader(text) == expected, f"lark: {expected}, {name}: {not expected}\n{text!r}"
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", default="grammar")
    arguments = parser.parse_args()
    readers = engines()
    started = time.perf_counter()
    counts = differential(arguments.count, arguments.seed, readers)
    found = {
        "name": f"{arguments.count} mutated programs, seed {arguments.seed}",
        **counts,
        "differences": 0,
        "readers": ["lark", *readers],
        "seconds": round(time.perf_counter() - started, 1),
        "holds": True,
    }
    engine_versions = {n: version(n) for n in ("lark", "llguidance", "xgrammar")}
    print(write("grammar_fuzz", [found], engines=engine_versions))


if __name__ == "__main__":
    main()
