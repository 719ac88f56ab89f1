// The explorer: sliders for an encoding, and pictures of it. The first half is mathematics without a page and is
// exposed as `posenc`; the second half draws. Nothing is loaded, so it runs from the file system too.
"use strict";
{
  // ---------------------------------------------------------------------------------------------- mathematics

  const TAU = 2 * Math.PI;
  const TURN_BITS = 128; // a frequency is held in units of 2^-128 turn a position, as the library holds it
  const BITS = 192n; // of fractions on the way there
  const ONE = 1n << BITS;
  const INVERSE_TAU = 0x28be60db9391054a7f09d5f47d4d377036d8a5664f10e410n; // 1/2π in units of 2^-192
  const MAX_POSITION = 2 ** 31 - 1;

  const times = (a, b) => (a * b) >> BITS;

  // ω_i / 2π for ω_i = b^(-2i/d), as integers in units of 2^-128 turn; b is an integer. The ratio of neighbours,
  // r = b^(-1/n) for n pairs, comes from float64 by Newton's method, which doubles the digits in every step.
  function geometricTurns(d, base) {
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
    return turns;
  }

  // ω_i in radians a position, as float64.
  const angular = (turns) => turns.map((t) => (Number(t) / 2 ** TURN_BITS) * TAU);

  // Position times frequency, as radians from -π to π: whole turns fall away before anything is rounded.
  const phase = (p, turn) => (Number(BigInt.asIntN(TURN_BITS, BigInt(p) * turn)) / 2 ** TURN_BITS) * TAU;

  // PE(p): sine and cosine of each pair in turn.
  function encode(p, turns) {
    return turns.flatMap((turn) => {
      const angle = phase(p, turn);
      return [Math.sin(angle), Math.cos(angle)];
    });
  }

  // PE(p) as most code computes it: float32 position × float32 frequency, a float32 angle.
  function encodeFloat32(p, turns) {
    const position = Math.fround(p);
    return angular(turns).flatMap((omega) => {
      const angle = Math.fround(position * Math.fround(omega));
      return [Math.fround(Math.sin(angle)), Math.fround(Math.cos(angle))];
    });
  }

  // M_k times an encoding: each pair turned by the sine and cosine in PE(k).
  function turned(encoding, byOffset) {
    return encoding.map((value, j) => {
      const [sine, cosine] = j % 2 ? [-byOffset[j - 1], byOffset[j]] : [byOffset[j], byOffset[j + 1]];
      return value * cosine + encoding[j ^ 1] * sine;
    });
  }

  // PE(p)·PE(p+k), the same at every p.
  const similarity = (k, turns) => turns.reduce((sum, turn) => sum + Math.cos(phase(k, turn)), 0);

  const largestDifference = (a, b) => a.reduce((most, value, j) => Math.max(most, Math.abs(value - b[j])), 0);

  const clip = (x) => Math.min(Math.max(x, 0), 1);
  const spectrum = (d, base) => Array.from({length: d / 2}, (_, i) => base ** ((-2 * i) / d));

  // The scalings as posenc_jax computes them: the new ω_i, and the amplitude where it is not 1. What the library
  // refuses throws here too.
  const scalings = {
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
      if (!turning) throw new RangeError(`A quarter of ${d / 2} pairs leaves none to turn: choose a larger width.`);
      return {omega: spectrum(d, base).map((w, i) => (i < turning ? w / factor : 0))};
    },
  };

  // All that the pictures show, from the settings.
  function compute(settings) {
    const {d, base, p, k} = settings;
    const turns = geometricTurns(d, base);
    const [here, there, offset] = [p, p + k, k].map((position) => encode(position, turns));
    const [here32, there32, offset32] = [p, p + k, k].map((position) => encodeFloat32(position, turns));
    const moved = turned(here, offset);
    return {
      ...settings, turns, here, there, moved, there32,
      omega: angular(turns),
      difference: largestDifference(moved, there),
      difference32: largestDifference(turned(here32, offset32), there32),
      error32: largestDifference(here32, here),
    };
  }

  window.posenc = {
    geometricTurns, angular, phase, encode, encodeFloat32, turned, similarity, scalings, compute, largestDifference,
  };

  // -------------------------------------------------------------------------------------------- settings

  const $ = (id) => document.getElementById(`explorer-${id}`);
  const root = document.querySelector(".explorer");
  const twoDigits = (x) => Number(x.toPrecision(2));
  const count = (x) => x.toLocaleString("en-US").replace("-", "−");
  const small = (x) => (x === 0 ? "0" : x < 0.01 ? x.toExponential(1) : x.toPrecision(3)).replace("-", "−");
  const fixed = (x) => x.toFixed(6).replace("-", "−");

  // A position's slider: every position to 128, then steps of two percent.
  const KNEE = 128;
  const GROWTH = Math.log(MAX_POSITION / KNEE) / (1000 - KNEE);
  const toPosition = (v) => (v <= KNEE ? v : Math.round(KNEE * Math.exp((v - KNEE) * GROWTH)));
  const fromPosition = (p) => (p <= KNEE ? p : KNEE + Math.log(p / KNEE) / GROWTH);

  // From a slider to its value, back, and how the value is written.
  const plain = {value: Number, slider: Number, text: count};
  const SLIDERS = {
    d: plain,
    base: {value: (v) => twoDigits(10 ** v), slider: Math.log10, text: count},
    length: plain,
    p: {value: toPosition, slider: fromPosition, text: count},
    k: plain,
    factor: {value: (v) => twoDigits(2 ** v), slider: Math.log2, text: String},
    original: {value: (v) => 2 ** v, slider: Math.log2, text: count},
  };
  const LIMITS = {d: [4, 128], base: [10, 1e7], length: [8, 512], p: [0, MAX_POSITION], k: [-64, 64], factor: [1, 64],
    original: [512, 131072]};
  const DEFAULTS = {d: 64, base: 10000, length: 128, p: 10, k: 5, factor: 8, original: 8192, arithmetic: "exact",
    scaling: "yarn"};
  const CHOICES = {arithmetic: ["exact", "float32"], scaling: Object.keys(scalings)};
  const settings = {...DEFAULTS};

  // Takes what is valid of "d=64&p=10"; limits the rest.
  function take(text) {
    for (const [name, given] of new URLSearchParams(text)) {
      if (CHOICES[name]?.includes(given)) settings[name] = given;
      if (!LIMITS[name] || given === "" || !Number.isFinite(Number(given))) continue;
      const [low, high] = LIMITS[name];
      const value = Math.min(Math.max(Number(given), low), high);
      settings[name] = name === "factor" ? value : name === "d" ? 2 * Math.round(value / 2) : Math.round(value);
    }
  }

  // What is not as it was at first, for the address.
  const changed = () => Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name]);

  function writeAddress() {
    const query = new URLSearchParams(changed()).toString();
    const current = location.hash.slice(1);
    if (query !== current && (query || current.includes("="))) history.replaceState(null, "", `#${query}`);
  }

  // Puts the settings into the controls.
  function showSettings() {
    for (const [name, {slider, text}] of Object.entries(SLIDERS)) {
      const input = $(name);
      input.value = slider(settings[name]);
      $(`${name}-value`).textContent = text(settings[name]);
      input.setAttribute("aria-valuetext", text(settings[name]));
    }
    if (document.activeElement !== $("p-number")) $("p-number").value = settings.p;
    $("scaling").value = settings.scaling;
    for (const radio of root.querySelectorAll("[name=arithmetic]")) radio.checked = radio.value === settings.arithmetic;
  }

  // -------------------------------------------------------------------------------------------- the heatmap

  // Red and blue of ColorBrewer's RdBu, from -1 to 1.
  const COLOURS = ["#053061", "#2166ac", "#4393c3", "#92c5de", "#d1e5f0", "#f7f7f7", "#fddbc7", "#f4a582", "#d6604d",
    "#b2182b", "#67001f"].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));

  function colour(value) {
    const at = (value + 1) * 5;
    const i = Math.min(Math.max(Math.floor(at), 0), 9);
    return COLOURS[i].map((channel, c) => channel + (at - i) * (COLOURS[i + 1][c] - channel));
  }

  // The first row: 0, or far out so that p is in the middle.
  const firstRow = ({p, length}) => (p < length ? 0 : Math.min(p - length / 2, MAX_POSITION - length + 1));

  const raster = document.createElement("canvas"); // a pixel an entry
  function paintRaster({d, base, length, arithmetic, turns}, start) {
    const key = [d, base, length, arithmetic, start].join();
    if (raster.dataset.key === key) return;
    Object.assign(raster, {width: d, height: length});
    const image = new ImageData(d, length);
    const row = arithmetic === "exact" ? encode : encodeFloat32;
    for (let p = 0; p < length; p++) {
      row(start + p, turns).forEach((value, j) => image.data.set([...colour(value), 255], 4 * (p * d + j)));
    }
    raster.getContext("2d").putImageData(image, 0, 0);
    raster.dataset.key = key;
  }

  // At most `most` round numbers from `low` to `high`.
  function ticks(low, high, most) {
    const rough = (high - low) / most;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max([1, 2, 5, 10].find((m) => m * power >= rough) * power, 1);
    const result = [];
    for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) result.push(tick);
    return result;
  }

  function drawHeatmap(model) {
    const {d, base, length, p, k} = model;
    const canvas = $("heatmap");
    const start = firstRow(model);
    paintRaster(model, start);
    const {clientWidth: width, clientHeight: height} = canvas;
    const scale = window.devicePixelRatio || 1;
    Object.assign(canvas, {width: Math.round(width * scale), height: Math.round(height * scale)});
    const g = canvas.getContext("2d");
    g.scale(scale, scale);
    const style = getComputedStyle(canvas);
    g.font = `12px ${style.fontFamily}`;
    g.fillStyle = g.strokeStyle = style.color;

    const rows = ticks(start, start + length - 1, 6);
    const [left, top, right, bottom] = [10 + g.measureText(count(rows.at(-1))).width, 4, 52, 38];
    const [w, h] = [width - left - right, height - top - bottom];
    const y = (position) => top + ((position - start + 0.5) / length) * h;
    g.imageSmoothingEnabled = length > h * scale || d > w * scale; // averages where entries are smaller than pixels
    g.drawImage(raster, left, top, w, h);
    g.textBaseline = "middle";
    g.textAlign = "right";
    for (const row of rows) g.fillText(count(row), left - 6, Math.min(Math.max(y(row), 8), top + h - 6));
    g.textAlign = "center";
    for (const column of ticks(0, d - 1, 8)) g.fillText(column, left + ((column + 0.5) / d) * w, top + h + 11);
    g.fillText("feature", left + w / 2, top + h + 28);

    const marks = [[p, "p"], [p + k, "p + k"]].filter(([at]) => at >= start && at < start + length);
    const near = marks.length === 2 && Math.abs(y(p) - y(p + k)) < 15;
    for (const [at, name] of marks) mark(g, {left, w, h: Math.max(h / length, 3), y: y(at), name});
    g.textAlign = "left";
    for (const [at, name] of marks) {
      const away = near && k ? (Math.sign(name === "p" ? -k : k) * (15 - Math.abs(y(p) - y(p + k)))) / 2 : 0;
      if (k || name === "p") g.fillText(name, left + w + 14, Math.min(Math.max(y(at) + away, 8), height - 8));
    }
    const how = model.arithmetic === "exact" ? "exact phases" : "textbook float32";
    const marked = marks.map(([at, name]) => `${name} at ${count(at)}`).join(", ");
    canvas.setAttribute("aria-label", `Heatmap of positions ${count(start)} to ${count(start + length - 1)} by ${d} `
      + `features, base ${count(base)}, ${how}: red above zero, blue below. Marked: ${marked}.`);
  }

  // Frames a row, p's with a full line and the other's with a broken one, and points at it.
  function mark(g, {left, w, h, y, name}) {
    g.save();
    for (const [line, ink] of [[3, "#fff"], [1.25, "#000"]]) {
      g.setLineDash(name === "p" || ink === "#fff" ? [] : [4, 3]);
      Object.assign(g, {lineWidth: line, strokeStyle: ink});
      g.strokeRect(left, y - h / 2, w, h);
    }
    g.restore();
    g.beginPath();
    g.moveTo(left + w + 3, y);
    g.lineTo(left + w + 11, y - 5);
    g.lineTo(left + w + 11, y + 5);
    g.fill();
  }

  // -------------------------------------------------------------------------------------------- the clocks

  function element(parent, tag, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return parent.appendChild(made);
  }

  // From twelve o'clock and clockwise: the sine to the right, the cosine upwards.
  const tip = (angle, radius) => `${(radius * Math.sin(angle)).toFixed(2)} ${(-radius * Math.cos(angle)).toFixed(2)}`;

  function arc(from, by, radius) {
    const half = tip(from + Math.PI, radius);
    const [r, start] = [`${radius} ${radius}`, tip(from, radius)];
    if (Math.abs(by) >= TAU) return `M${start}A${r} 0 1 1 ${half}A${r} 0 1 1 ${start}`;
    return `M${start}A${r} 0 ${Math.abs(by) > Math.PI ? 1 : 0} ${by > 0 ? 1 : 0} ${tip(from + by, radius)}`;
  }

  // `ahead` is the part of a step that an animation has gone beyond p.
  function drawClocks({turns, omega, p, k}, ahead = 0) {
    const svg = $("clocks");
    const width = svg.clientWidth;
    const most = Math.min(Math.floor(width / (width > 600 && omega.length <= 32 ? 68 : 52)), 16);
    const columns = Math.ceil(omega.length / Math.ceil(omega.length / most)); // rows of about the same length
    const cell = width / columns;
    const radius = Math.min(cell / 2 - 4, 32);
    const row = 2 * radius + 26;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${row * Math.ceil(omega.length / columns)}`);
    omega.forEach((w, i) => {
      const centre = [((i % columns) + 0.5) * cell, Math.floor(i / columns) * row + radius + 2];
      const clock = element(svg, "g", {transform: `translate(${centre})`});
      const angle = phase(p, turns[i]) + ahead * w;
      element(clock, "circle", {class: "face", r: radius});
      element(clock, "path", {class: "arc", d: arc(angle, w * k, radius * 0.55)});
      element(clock, "path", {class: "second", d: `M0 0L${tip(angle + w * k, radius - 2)}`});
      element(clock, "path", {class: "first", d: `M0 0L${tip(angle, radius - 2)}`});
      element(clock, "text", {y: radius + 15}, i);
    });
    const turnsOf = (w) => small((p * w) / TAU);
    svg.setAttribute("aria-label", `${omega.length} clocks. From position 0 to ${count(p)} the hand of the first has made `
      + `${turnsOf(omega[0])} turns, that of the last ${turnsOf(omega.at(-1))}. Second hands stand at position `
      + `${count(p + k)}: the first is ${small(Math.abs(k * omega[0]) / TAU)} turns from its fellow, the last `
      + `${small(Math.abs(k * omega.at(-1)) / TAU)}.`);
  }

  function showNumbers(model) {
    $("difference").textContent = small(model.difference);
    $("difference32").textContent = small(model.difference32);
    $("error32").textContent = small(model.error32);
    const columns = [model.here, model.moved, model.there, model.there32];
    $("numbers").innerHTML = model.here
      .map((_, j) => `<tr><th scope="row">${j}</th>${columns.map((c) => `<td>${fixed(c[j])}</td>`).join("")}</tr>`)
      .join("");
  }

  // -------------------------------------------------------------------------------------------- curves

  // Axes with their ticks; returns where a point of the data lies. Ticks are [value, text].
  function frame(svg, {x, y, xTicks, yTicks, xLabel}) {
    const {clientWidth: width, clientHeight: height} = svg;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const [left, right, top, bottom] = [10 + 6.5 * Math.max(...yTicks.map(([, text]) => text.length)), 12, 10, 40];
    const at = {
      x: (v) => left + ((v - x[0]) / (x[1] - x[0])) * (width - left - right),
      y: (v) => height - bottom - ((v - y[0]) / (y[1] - y[0])) * (height - top - bottom),
    };
    const [x0, x1, y0, y1] = [at.x(x[0]), at.x(x[1]), at.y(y[0]), at.y(y[1])];
    for (const [value, text] of yTicks) {
      element(svg, "path", {class: "grid", d: `M${x0} ${at.y(value)}H${x1}`});
      element(svg, "text", {class: "end", x: x0 - 6, y: at.y(value) + 4}, text);
    }
    for (const [value, text] of xTicks) element(svg, "text", {x: at.x(value), y: y0 + 17}, text);
    element(svg, "path", {class: "axis", d: `M${x0} ${y1}V${y0}H${x1}`});
    element(svg, "text", {x: (x0 + x1) / 2, y: height - 4}, xLabel);
    return at;
  }

  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

  function drawSimilarity({turns, length, k}) {
    const svg = $("similarity");
    const end = Math.max(length, Math.abs(k));
    const values = Array.from({length: end + 1}, (_, offset) => similarity(offset, turns) / turns.length);
    const low = Math.min(0, Math.floor(Math.min(...values) * 5) / 5);
    const steps = Array.from({length: Math.round((1 - low) * 5) + 1}, (_, i) => low + i / 5);
    const at = frame(svg, {
      x: [0, end], y: [low, 1.02], xLabel: "offset k",
      xTicks: ticks(0, end, 7).map((t) => [t, count(t)]),
      yTicks: steps.map((t) => [t, t.toFixed(1).replace("-0.0", "0.0").replace("-", "−")]),
    });
    const [x, y] = [at.x(Math.abs(k)), at.y(values[Math.abs(k)])];
    element(svg, "path", {class: "rule", d: `M${x} ${at.y(low)}V${y}`});
    element(svg, "path", {class: "first", d: path(values.map((value, offset) => [at.x(offset), at.y(value)]))});
    element(svg, "circle", {class: "point", cx: x, cy: y, r: 5});
    const value = values[Math.abs(k)];
    $("similarity-value").textContent = `${fixed(value * turns.length)} = ${fixed(value)} × ${turns.length}`;
    svg.setAttribute("aria-label", `Similarity against offset, from 1 at offset 0 to ${fixed(values[end])} at ${end}; `
      + `at offset ${count(k)} it is ${fixed(value)}.`);
  }

  function drawSpectrum({d, omega, original, scaling, ...rest}) {
    const svg = $("spectrum");
    let scaled = {omega: []};
    let problem = "";
    try {
      scaled = scalings[scaling]({d, original, ...rest});
    } catch (error) {
      problem = error.message;
    }
    const waves = [omega, scaled.omega].map((all) => all.map((w) => Math.log10(TAU / w)));
    const finite = waves.flat().filter(Number.isFinite);
    const top = Math.ceil(Math.max(...finite, Math.log10(original)) + 0.05);
    const powers = Array.from({length: top + 1}, (_, i) => [i, i < 4 ? count(10 ** i) : `10${[..."" + i]
      .map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`]);
    const at = frame(svg, {
      x: [0, d / 2 - 1], y: [0, top], yTicks: powers, xLabel: "pair i",
      xTicks: ticks(0, d / 2 - 1, 8).map((t) => [t, count(t)]),
    });
    const lineAt = at.y(Math.log10(original));
    element(svg, "path", {class: "rule", d: `M${at.x(0)} ${lineAt}H${at.x(d / 2 - 1)}`});
    element(svg, "text", {class: "start", x: at.x(0) + 6, y: lineAt - 6}, `original length ${count(original)}`);
    waves.forEach((values, which) => {
      const points = values.map((v, i) => [at.x(i), at.y(v)]).filter(([, y]) => Number.isFinite(y));
      element(svg, "path", {class: which ? "second" : "first", d: path(points)});
      for (const [cx, cy] of which ? points : []) element(svg, "circle", {class: "dot", cx, cy, r: d > 64 ? 2 : 3});
    });
    const resting = scaled.omega.filter((w) => !w).length;
    const within = (all) => all.filter((w) => w * original >= TAU * (1 - 1e-12)).length;
    const words = problem || `The slowest pair that turns takes ${count(Math.round(10 ** Math.max(...waves[1]
      .filter(Number.isFinite))))} positions a turn, unscaled ${count(Math.round(TAU / omega.at(-1)))}. Within the original `
      + `length ${within(scaled.omega)} of ${d / 2} pairs make a full turn, unscaled ${within(omega)}.`
      + (scaled.amplitude ? ` The amplitude becomes ${scaled.amplitude.toFixed(6)}.` : "")
      + (resting ? ` ${resting} pairs rest and are not drawn.` : "");
    $("spectrum-words").textContent = words;
    svg.setAttribute("aria-label", `Wavelengths of ${d / 2} pairs on a logarithmic axis, unscaled and scaled. ${words}`);
  }

  // -------------------------------------------------------------------------------------------- the loop

  let model;
  let settled;
  let waiting = false;
  let playing = false;

  function draw() {
    waiting = false;
    model = compute(settings);
    showSettings();
    drawHeatmap(model);
    drawClocks(model);
    showNumbers(model);
    drawSimilarity(model);
    drawSpectrum(model);
    clearTimeout(settled);
    if (!playing) settled = setTimeout(settle, 500);
  }

  // What needs no haste: the address, and a sentence for those who listen.
  function settle() {
    writeAddress();
    $("status").textContent = `Position ${count(settings.p)}: M k times P E of p differs from P E of p plus k by at most `
      + `${small(model.difference)}; with textbook float32 by ${small(model.difference32)}.`;
  }

  function redraw() {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const POSITIONS_A_SECOND = 3;

  // One position further; from the last one back to 0.
  function step(by) {
    settings.p = (settings.p + by) % (MAX_POSITION + 1);
    draw();
  }

  // `ahead`: how far the hands are beyond p. A page that was hidden goes on from where it was.
  function play(before, ahead = 0) {
    requestAnimationFrame((now) => {
      if (!playing) return draw();
      const next = ahead + Math.min((now - before) / 1000, 0.1) * POSITIONS_A_SECOND;
      if (next >= 1) step(1);
      drawClocks(model, next % 1);
      play(now, next % 1);
    });
  }

  function namePlay() {
    if (still.matches) playing = false;
    $("play").textContent = still.matches ? "Next position" : playing ? "Pause" : "Play";
  }

  // Without motion, if the reader wants none: then a press is one step.
  function press() {
    if (still.matches) return step(1);
    playing = !playing;
    namePlay();
    if (playing) play(performance.now());
  }

  function takeInput({target}) {
    const name = target.id.replace("explorer-", "");
    if (SLIDERS[name]) settings[name] = SLIDERS[name].value(Number(target.value));
    else take(name === "p-number" ? `p=${target.value}` : `${target.name}=${target.value}`);
    redraw();
  }

  if (root) {
    root.hidden = false;
    take(location.hash.slice(1));
    root.addEventListener("input", takeInput);
    root.addEventListener("submit", (event) => event.preventDefault());
    root.addEventListener("click", ({target}) => {
      if (target.dataset.set) take(target.dataset.set);
      if (target.dataset.set) redraw();
    });
    $("play").addEventListener("click", press);
    $("p-number").addEventListener("blur", redraw);
    still.addEventListener("change", namePlay);
    addEventListener("hashchange", () => {
      if (!location.hash.includes("=")) return;
      Object.assign(settings, DEFAULTS);
      take(location.hash.slice(1));
      redraw();
    });
    new ResizeObserver(redraw).observe($("heatmap"));
    new MutationObserver(redraw).observe(document.body, {attributeFilter: ["data-md-color-scheme"]});
    namePlay();
    draw();
  }
}
