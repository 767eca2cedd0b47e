"""RMSNorm, gate and up projection, SwiGLU, down projection, residual, bf16; in the language."""

from fusedsl.judge import Task

task = Task(
    name="swiglu_mlp",
    reference="""
kernel swiglu_mlp(x: bf16[M, 64], gain: weight bf16[64],
                  w_gate_up: weight bf16[256, 64], w_down: weight bf16[64, 128])
    -> (y: bf16[M, 64]) {
  h = rms_norm(x, gain, eps=1e-6);
  a = swiglu(linear(h, w_gate_up));
  y = linear(a, w_down) + x;
}
""",
    dims={"M": (1, 70)},
    shapes=({"M": 33},),
    timed={"M": 32},
)
