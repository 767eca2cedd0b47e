"""all-MiniLM-L6-v2 with every norm, projection, activation and residual in fusedsl programs.

    python -m examples.minilm [--dtype fp32|bf16|fp16] [--device cpu|cuda]

Three programs cover the encoder; attention between them is torch's. On a GPU kernels are compiled,
elsewhere Triton's interpreter runs them. The result is held against plain torch in fp32.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

import fusedsl
from examples import minilm_reference as plain
from examples import read
from examples.counting import Counts, counting_table

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

#: The least cosine between a sentence's embedding here and in plain fp32 torch.
BAR = {"fp32": 0.99999, "fp16": 0.9999, "bf16": 0.999}


@dataclass(frozen=True)
class Encoder:
    """The three programs, and each bound to the weights of the layers it serves."""

    model: plain.Model
    programs: dict[str, fusedsl.Program]
    embed: fusedsl.BoundProgram
    layers: tuple[fusedsl.BoundProgram, ...]

    def __call__(self, batch: plain.Batch) -> torch.Tensor:
        """The sentences' embeddings, [sentences, hidden] in fp32."""
        first = self.model.embed(batch)
        x, qkv = self.embed(first["word"], first["position"], first["segment"])
        for layer in self.layers[:-1]:
            x, qkv = layer(plain.attention(qkv, batch.mask, self.model.heads), x)
        x = self.layers[-1](plain.attention(qkv, batch.mask, self.model.heads), x)
        return plain.pool(x, batch.sentence)


def build(model: plain.Model, dtype: str) -> Encoder:
    """Compile the programs once and bind every layer's weights to them."""
    names = ("minilm_embed", "minilm_layer", "minilm_last")
    programs = {name: fusedsl.compile(read(name, dtype=dtype)) for name in names}
    weights = [model.layer(index) for index in range(model.layers)]
    norm = {k: model.weights[f"embeddings.LayerNorm.{w}"] for k, w in plain.NORM}
    inner = [
        programs["minilm_layer"].bind({**_without_qkv(w), **_qkv(after)})
        for w, after in itertools.pairwise(weights)
    ]
    last = programs["minilm_last"].bind(_without_qkv(weights[-1]))
    embed = programs["minilm_embed"].bind({**norm, **_qkv(weights[0])})
    return Encoder(model, programs, embed, (*inner, last))


def _qkv(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: weights[name] for name in ("w_qkv", "b_qkv")}


def _without_qkv(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.endswith("_qkv")}


def kernel_table(encoder: Encoder, tokens: int) -> Table:
    """Launches and bytes of each program, by operator and fused, with how often it runs."""
    table = counting_table(f"MiniLM, {tokens} tokens, attention not counted", "runs")
    total = Counts()
    for name, program in encoder.programs.items():
        runs = encoder.model.layers - 1 if name == "minilm_layer" else 1
        counts = Counts.of(program, {"M": tokens})
        table.add_row(name, str(runs), *counts.cells())
        total = total.plus(counts, runs)
    table.add_section()
    table.add_row("whole encoder", "", *total.cells())
    return table


def run(dtype: str, device: str, console: Console) -> bool:
    """Encode the sentences both ways and print how close they are; whether the bar is met."""
    batch = plain.tokenize(plain.SENTENCES, device)
    tokens = len(batch.tokens)
    console.print(f"MiniLM: {len(plain.SENTENCES)} sentences, {tokens} tokens, {dtype} on {device}")
    expected = plain.encode(plain.load(torch.float32, device), batch)
    model = plain.load(DTYPES[dtype], device)
    eager = plain.encode(model, batch)
    started = time.perf_counter()
    encoder = build(model, dtype)
    console.print(f"compiled and bound in {time.perf_counter() - started:.1f} s; encoding ...")
    started = time.perf_counter()
    got = encoder(batch)
    console.print(f"encoded in {time.perf_counter() - started:.1f} s")
    cosine = torch.cosine_similarity(got.double(), expected.double())
    eager_cosine = torch.cosine_similarity(eager.double(), expected.double())
    table = Table(title="cosine with plain torch in fp32", title_justify="left")
    for name in ("sentence", "fusedsl", "largest difference", f"torch in {dtype}"):
        table.add_column(name, justify="left" if name == "sentence" else "right")
    apart = (got - expected).abs().amax(1)
    for row in zip(plain.SENTENCES, cosine, apart, eager_cosine, strict=True):
        sentence, ours, largest, theirs = row
        table.add_row(f"{sentence[:24]}...", f"{ours:.7f}", f"{largest:.1e}", f"{theirs:.7f}")
    console.print(table)
    console.print(kernel_table(encoder, tokens))
    worst = float(cosine.min())
    met = worst >= BAR[dtype]
    console.print(f"least cosine {worst:.7f}, bar {BAR[dtype]}: {'met' if met else 'MISSED'}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    with torch.no_grad():
        met = run(args.dtype, args.device, Console())
    raise SystemExit(0 if met else 1)


if __name__ == "__main__":
    main()
