"""Programs in the language, and how to read them at other sizes and dtypes.

`python -m examples.demo` runs two of them; `fusedsl explain examples/llama_mlp.fdsl` shows what
becomes of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent

#: For each program: sizes small enough for Triton's interpreter and for tests.
SMALL: dict[str, dict[int, int]] = {
    "llama_mlp": {4096: 64, 28672: 256, 14336: 128},
    "rmsnorm_qkv": {4096: 64, 6144: 96},
    "gpt2_mlp": {768: 64, 3072: 256},
    "nemotron_mlp": {4096: 64, 16384: 128},
    "bert_layer": {768: 64, 3072: 128},
    "decoder_stack": {4096: 64, 28672: 256, 14336: 128},
    "lm_head_loss": {2048: 64, 128256: 515},
    "minilm_embed": {384: 64, 1152: 192},
    "minilm_layer": {384: 64, 1536: 128, 1152: 192},
    "minilm_last": {384: 64, 1536: 128},
}


def read(name: str, *, dtype: str = "bf16", small: bool = False) -> str:
    """The text of `examples/<name>.fdsl`, in `dtype`, at the sizes of `SMALL` where asked."""
    text = (FOLDER / f"{name}.fdsl").read_text(encoding="utf-8")
    return resized(text, SMALL[name] if small else {}, dtype=dtype)


def resized(text: str, sizes: Mapping[int, int], *, dtype: str = "bf16") -> str:
    """The text with other integers and another dtype in its tensor types, comments left alone."""

    def one_type(match: re.Match[str]) -> str:
        dims = re.sub(r"\d+", lambda n: str(sizes.get(int(n[0]), int(n[0]))), match[2])
        return f"{dtype if match[1] == 'bf16' else match[1]}[{dims}]"

    lines = (line.split("#", 1) for line in text.split("\n"))
    pattern = re.compile(r"\b(bf16|fp16|fp32)\[([^\]]*)\]")
    return "\n".join("#".join([pattern.sub(one_type, code), *note]) for code, *note in lines)
