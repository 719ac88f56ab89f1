// Positional encodings in the browser, under the names of posenc_jax. Phases are exact: a frequency is an integer in
// units of 2^-128 turn a position, as the library holds it, and whole turns fall away before anything is rounded.
"use strict";
globalThis.posenc = (() => {
  const TAU = 2 * Math.PI;
  const TURN_BITS = 128;
  const BITS = 192n; // of fractions on the way there
  const ONE = 1n << BITS;
  const INVERSE_TAU = 0x28be60db9391054a7f09d5f47d4d377036d8a5664f10e410n; // 1/2π in units of 2^-192

  const times = (a, b) => (a * b) >> BITS;
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const dot = (x, y) => sum(x.map((value, i) => value * y[i]));
  const clip = (x) => Math.min(Math.max(x, 0), 1);

  // ω_i / 2π for ω_i = b^(-2i/d), as integers in units of 2^-128 turn; b is an integer. The ratio of neighbours,
  // r = b^(-1/n) for n pairs, comes from float64 by Newton's method, which doubles the digits in every step.
  const known = new Map();
  function geometric(d, base = 10_000) {
    const key = `${d} ${base}`;
    if (known.has(key)) return known.get(key);
    const n = d / 2;
    let ratio = BigInt(Math.round(base ** (-1 / n) * 2 ** 53)) << (BITS - 53n);
    for (let step = 0; step < 3; step++) {
      let power = ONE;
      for (let i = 0; i < n; i++) power = times(power, ratio);
      ratio += times(ratio, ONE - BigInt(base) * power) / BigInt(n);
    }
    const turns = [];
    for (let i = 0, omega = ONE; i < n; i++, omega = times(omega, ratio)) {
      turns.push((omega * INVERSE_TAU) >> (2n * BITS - BigInt(TURN_BITS)));
    }
    known.set(key, turns);
    return turns;
  }

  // Turns of frequencies in radians a position, and back.
  const turnsOf = (omega) => omega.map((w) => BigInt(Math.round((w / TAU) * 2 ** TURN_BITS)));
  const angular = (turns) => turns.map((turn) => (Number(turn) / 2 ** TURN_BITS) * TAU);

  // Position times frequency, as radians from -π to π.
  const phase = (p, turn) => (Number(BigInt.asIntN(TURN_BITS, BigInt(p) * turn)) / 2 ** TURN_BITS) * TAU;

  // PE(p): sine and cosine of each pair in turn.
  function sinusoidal(p, turns) {
    return turns.flatMap((turn) => {
      const angle = phase(p, turn);
      return [Math.sin(angle), Math.cos(angle)];
    });
  }

  // PE(p) as most code computes it: float32 position × float32 frequency, a float32 angle.
  function sinusoidalFloat32(p, turns) {
    const position = Math.fround(p);
    return angular(turns).flatMap((omega) => {
      const angle = Math.fround(position * Math.fround(omega));
      return [Math.fround(Math.sin(angle)), Math.fround(Math.cos(angle))];
    });
  }

  // M_k times an encoding: each pair turned by the sine and cosine in PE(k).
  function shift(encoding, byOffset) {
    return encoding.map((value, j) => {
      const [sine, cosine] = j % 2 ? [-byOffset[j - 1], byOffset[j]] : [byOffset[j], byOffset[j + 1]];
      return value * cosine + encoding[j ^ 1] * sine;
    });
  }

  // PE(p)·PE(p+k), the same at every p.
  const offsetSimilarity = (k, turns) => sum(turns.map((turn) => Math.cos(phase(k, turn))));

  // The features of pair i.
  const pair = (i, n, layout) => (layout === "half" ? [i, i + n] : [2 * i, 2 * i + 1]);

  // RoPE: pair i of x turned by the angle ω_i p.
  function rotary(x, p, turns, layout = "half") {
    const y = [...x];
    turns.forEach((turn, i) => {
      const [a, b] = pair(i, turns.length, layout);
      const [sine, cosine] = [Math.sin(phase(p, turn)), Math.cos(phase(p, turn))];
      [y[a], y[b]] = [x[a] * cosine - x[b] * sine, x[a] * sine + x[b] * cosine];
    });
    return y;
  }

  // PE of a position with several coordinates, each with features of its own, and the product of two such encodings.
  const axial = (position, turns) => position.flatMap((p) => sinusoidal(p, turns));
  const axialSimilarity = (offset, turns) => sum(offset.map((k) => offsetSimilarity(k, turns)));

  // Weights softmax(x xᵀ/√d) of attention among the rows of x.
  function selfAttention(x) {
    return x.map((query) => {
      const powers = x.map((key) => Math.exp(dot(query, key) / Math.sqrt(query.length)));
      return powers.map((power) => power / sum(powers));
    });
  }

  const spectrum = (d, base) => Array.from({length: d / 2}, (_, i) => base ** ((-2 * i) / d));

  // The scalings as posenc_jax computes them: the new ω_i, and the amplitude where it is not 1. What the library
  // refuses throws here too.
  const scalings = {
    none: ({d, base}) => ({omega: spectrum(d, base)}),
    linear: ({d, base, factor}) => ({omega: spectrum(d, base).map((w) => w / factor)}),
    ntk: ({d, base, factor}) => ({omega: spectrum(d, base * factor ** (d / (d - 2)))}),
    yarn({d, base, factor, original, fast = 32, slow = 1}) {
      const index = (beta) => (d * Math.log(original / (TAU * beta))) / (2 * Math.log(base));
      const low = Math.max(Math.floor(index(fast)), 0);
      const high = Math.min(Math.ceil(index(slow)), d - 1);
      const gamma = (i) => clip((i - low) / (high - low || 0.001));
      const omega = spectrum(d, base).map((w, i) => w * (1 - gamma(i) + gamma(i) / factor));
      return {omega, amplitude: 0.1 * Math.log(factor) + 1};
    },
    llama3({d, base, factor, original, low = 1, high = 4}) {
      const sigma = (w) => clip(((original * w) / TAU - low) / (high - low));
      return {omega: spectrum(d, base).map((w) => w * ((1 - sigma(w)) / factor + sigma(w)))};
    },
    proportional({d, base, factor, fraction = 0.25}) {
      const turning = Math.floor((fraction * d) / 2);
      if (!turning) throw new RangeError(`A quarter of ${d / 2} pairs leaves none to rotate: choose a larger width.`);
      return {omega: spectrum(d, base).map((w, i) => (i < turning ? w / factor : 0))};
    },
  };

  return {
    TAU, dot, geometric, turnsOf, angular, phase, sinusoidal, sinusoidalFloat32, shift, offsetSimilarity, rotary,
    axial, axialSimilarity, selfAttention, scalings,
  };
})();
