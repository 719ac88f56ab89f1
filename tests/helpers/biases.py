"""Every attention bias with parameters of three heads, at positions near each other and at the ends of int32."""

import numpy as np

import posenc_jax as pe

RNG = np.random.default_rng(0)
HEADS = 3
NEAR = RNG.integers(0, 3000, 24).astype(np.int32)
FAR = np.concatenate([[0, 2**31 - 1, -(2**31), -1], RNG.integers(-(2**31), 2**31, 20)]).astype(np.int32)
SCALE, RATE = (RNG.uniform(0.1, 1.5, HEADS).astype(np.float32) for _ in range(2))
TABLE = RNG.normal(size=(32, HEADS)).astype(np.float32)
OFFSETS = np.random.default_rng(1).normal(size=(1999, HEADS)).astype(np.float32)  # of one axis, from −999 to 999
MLP = tuple(RNG.normal(size=n).astype(np.float32) for n in ((32,), (32,), (32, HEADS), (HEADS,)))
C, THRESHOLD = np.float32(0.1), np.float32(512)

# name → function of positions and parameters, the parameters
CASES = {
    "alibi": (lambda q, k: pe.alibi(q, k, HEADS), ()),
    "alibi, slopes": (pe.alibi, (SCALE,)),
    "t5": (pe.t5, (TABLE,)),
    "t5, causal": (lambda q, k, t: pe.t5(q, k, t, bidirectional=False), (TABLE,)),
    "relative": (lambda q, k, t: pe.relative_position_bias(q, k, t, out_of_range="zeros"), (OFFSETS,)),
    "kerple_log": (pe.kerple_log, (SCALE, RATE)),
    "kerple_power": (pe.kerple_power, (SCALE, RATE)),
    "fire": (lambda q, k, mlp, c, threshold: pe.fire(q, k, mlp, c=c, threshold=threshold), (MLP, C, THRESHOLD)),
    "sandwich": (lambda q, k: pe.sandwich(q, k, HEADS, 16), ()),
}
