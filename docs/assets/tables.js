// Views of one encoding: its table, the clocks of its pairs, the similarity of two positions, and its spectrum under the
// scalings of longer contexts.
"use strict";
{
  const {TAU, geometric, angular, phase, sinusoidal, sinusoidalFloat32, offsetSimilarity, scalings} = posenc;
  const {define, count, fixed, svg, write, line, path, redBlue, tip, arc, ticks, frame, slider, choice} = views;

  const LABELS = {ntk: "NTK-aware", yarn: "YaRN", llama3: "Llama 3"};
  const drawn = Object.keys(scalings).filter((name) => name !== "none");

  const MAX_POSITION = 2 ** 31 - 1;
  const small = (x) => (x === 0 ? "0" : x < 0.01 ? x.toExponential(1) : x.toPrecision(3)).replace("-", "−");
  const twoDigits = (x) => Number(x.toPrecision(2));

  // A position's slider: every position to 128, then steps of two percent.
  const KNEE = 128;
  const GROWTH = Math.log(MAX_POSITION / KNEE) / (1000 - KNEE);

  const controls = {
    d: slider("d", "Width d", 4, 128, {step: 2}),
    base: slider("base", "Base b", 1, 7, {step: 0.05, value: (v) => twoDigits(10 ** v), from: Math.log10}),
    length: slider("length", "Length", 8, 512, {step: 8}),
    p: slider("p", "Position p", 0, 1000, {
      value: (v) => (v <= KNEE ? v : Math.round(KNEE * Math.exp((v - KNEE) * GROWTH))),
      from: (p) => (p <= KNEE ? p : KNEE + Math.log(p / KNEE) / GROWTH),
    }),
    k: slider("k", "Offset k", -64, 64),
    arithmetic: choice("arithmetic", "Computed with", {exact: "exact phases", float32: "textbook float32"}),
    scaling: choice("scaling", "Scaling", Object.fromEntries(drawn.map((name) => [name, LABELS[name] ?? name]))),
    factor: slider("factor", "Factor s", 0, 6, {
      step: 0.25,
      value: (v) => twoDigits(2 ** v),
      from: Math.log2,
      text: String,
    }),
    original: slider("original", "Original length L", 9, 17, {value: (v) => 2 ** v, from: Math.log2}),
  };

  // ------------------------------------------------------------------------------------------- the table

  // The first row: 0, or far out so that p is in the middle.
  const firstRow = ({p, length}) => (p < length ? 0 : Math.min(p - Math.floor(length / 2), MAX_POSITION - length + 1));

  // A pixel for each entry.
  function raster(view, {d, base, length, arithmetic}, start) {
    const key = [d, base, length, arithmetic, start].join();
    if (view.raster?.dataset.key === key) return view.raster;
    view.raster ??= document.createElement("canvas");
    Object.assign(view.raster, {width: d, height: length});
    const [image, turns] = [new ImageData(d, length), geometric(d, base)];
    const row = arithmetic === "exact" ? sinusoidal : sinusoidalFloat32;
    for (let p = 0; p < length; p++) {
      row(start + p, turns).forEach((value, j) => image.data.set([...redBlue(value), 255], 4 * (p * d + j)));
    }
    view.raster.getContext("2d").putImageData(image, 0, 0);
    view.raster.dataset.key = key;
    return view.raster;
  }

  // An image of at most so many pixels: averages where its own are smaller, each way by itself.
  function reduced(image, most) {
    const [width, height] = [Math.min(image.width, most[0]), Math.min(image.height, most[1])];
    if (width === image.width && height === image.height) return image;
    const made = Object.assign(document.createElement("canvas"), {width, height});
    made.getContext("2d").drawImage(image, 0, 0, width, height);
    return made;
  }

  // Frames a row, p's with a full line and the other's with a broken one, and points at it.
  function mark(g, {left, w, h, y, name}) {
    g.save();
    for (const [wide, ink] of [
      [3, "#fff"],
      [1.25, "#000"],
    ]) {
      g.setLineDash(name === "p" || ink === "#fff" ? [] : [4, 3]);
      Object.assign(g, {lineWidth: wide, strokeStyle: ink});
      g.strokeRect(left, y - h / 2, w, h);
    }
    g.restore();
    g.beginPath();
    g.moveTo(left + w + 3, y);
    g.lineTo(left + w + 11, y - 5);
    g.lineTo(left + w + 11, y + 5);
    g.fill();
  }

  define("table", {
    canvas: true,
    settings: {d: 64, base: 10_000, length: 128, p: 10, k: 5, arithmetic: "exact"},
    controls: [controls.p, controls.k, controls.arithmetic],
    height: (width) => (width < 600 ? 320 : 420),
    draw(canvas, settings, [width, height], view) {
      const {d, base, length, p, k, arithmetic} = settings;
      const start = firstRow(settings);
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
      g.imageSmoothingEnabled = false; // an entry that is larger than a pixel has edges
      g.drawImage(reduced(raster(view, settings, start), [w, h].map((size) => Math.floor(size * scale))), left, top, w, h);
      g.textBaseline = "middle";
      g.textAlign = "right";
      for (const row of rows) g.fillText(count(row), left - 6, Math.min(Math.max(y(row), 8), top + h - 6));
      g.textAlign = "center";
      for (const column of ticks(0, d - 1, 8)) g.fillText(column, left + ((column + 0.5) / d) * w, top + h + 11);
      g.fillText("feature", left + w / 2, top + h + 28);

      const marks = [
        [p, "p"],
        [p + k, "p + k"],
      ].filter(([at]) => at >= start && at < start + length);
      const near = marks.length === 2 && Math.abs(y(p) - y(p + k)) < 15;
      for (const [at, name] of marks) mark(g, {left, w, h: Math.max(h / length, 3), y: y(at), name});
      g.textAlign = "left";
      for (const [at, name] of marks) {
        const away = near && k ? (Math.sign(name === "p" ? -k : k) * (15 - Math.abs(y(p) - y(p + k)))) / 2 : 0;
        if (k || name === "p") g.fillText(name, left + w + 14, Math.min(Math.max(y(at) + away, 8), height - 8));
      }
      const how = arithmetic === "exact" ? "exact phases" : "textbook float32";
      const marked = marks.map(([at, name]) => `${name} at ${count(at)}`).join(", ");
      return {
        label:
          `Heatmap of positions ${count(start)} to ${count(start + length - 1)} by ${d} features, base ${count(base)}, ` +
          `${how}: red above zero, blue below. Marked: ${marked}.`,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- the clocks

  // Rows of about the same length.
  function clockRows(width, pairs) {
    const most = Math.min(Math.floor(width / (width > 600 && pairs <= 32 ? 68 : 52)), 16);
    const columns = Math.ceil(pairs / Math.ceil(pairs / most));
    const radius = Math.min(width / columns / 2 - 4, 32);
    return {columns, cell: width / columns, radius, row: 2 * radius + 26};
  }

  define("clocks", {
    // `ahead` is the part of a step that a motion has gone beyond p.
    settings: {d: 64, base: 10_000, p: 10, k: 5, ahead: 0},
    controls: [controls.p, controls.k],
    height(width, {d}) {
      const {columns, row} = clockRows(width, d / 2);
      return row * Math.ceil(d / 2 / columns);
    },
    draw(g, {d, base, p, k, ahead}, [width]) {
      const turns = geometric(d, base);
      const omega = angular(turns);
      const {columns, cell, radius, row} = clockRows(width, turns.length);
      omega.forEach((w, i) => {
        const centre = [((i % columns) + 0.5) * cell, Math.floor(i / columns) * row + radius + 2];
        const clock = svg(g, "g", {transform: `translate(${centre})`});
        const angle = phase(p, turns[i]) + ahead * w;
        svg(clock, "circle", {class: "face", r: radius});
        line(clock, "arc", arc(angle, w * k, radius * 0.55));
        line(clock, "second", `M0 0L${tip(angle + w * k, radius - 2)}`);
        line(clock, "first", `M0 0L${tip(angle, radius - 2)}`);
        write(clock, 0, radius + 15, i);
      });
      const made = (w) => small((p * w) / TAU);
      return {
        label:
          `${omega.length} clocks. From position 0 to ${count(p)} the hand of the first has made ${made(omega[0])} ` +
          `cycles, the hand of the last ${made(omega.at(-1))}. Second hands are at position ${count(p + k)}: the first ` +
          `is ${small(Math.abs(k * omega[0]) / TAU)} cycles ` +
          `from the first hand, the last ${small(Math.abs(k * omega.at(-1)) / TAU)}.`,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- curves

  const curve = (width) => (width < 600 ? 240 : 280);

  define("similarity", {
    settings: {d: 64, base: 10_000, length: 128, k: 5},
    controls: [controls.d, controls.base, controls.k],
    height: curve,
    draw(g, {d, base, length, k}, [width, height]) {
      const turns = geometric(d, base);
      const end = Math.max(length, Math.abs(k));
      const values = Array.from({length: end + 1}, (_, offset) => offsetSimilarity(offset, turns) / turns.length);
      const low = Math.min(0, Math.floor(Math.min(...values) * 5) / 5);
      const steps = Array.from({length: Math.round((1 - low) * 5) + 1}, (_, i) => low + i / 5);
      const at = frame(g, {
        width,
        height,
        x: [0, end],
        y: [low, 1.02],
        xLabel: "offset k",
        xTicks: ticks(0, end, 7).map((t) => [t, count(t)]),
        yTicks: steps.map((t) => [t, fixed(t, 1)]),
      });
      const value = values[Math.abs(k)];
      const [x, y] = [at.x(Math.abs(k)), at.y(value)];
      line(g, "rule", `M${x} ${at.y(low)}V${y}`);
      line(g, "first", path(values.map((v, offset) => [at.x(offset), at.y(v)])));
      svg(g, "circle", {class: "point", cx: x, cy: y, r: 5});
      return {
        label:
          `Similarity against offset, from 1 at offset 0 to ${fixed(values[end], 6)} at ${end}; ` +
          `at offset ${count(k)} it is ${fixed(value, 6)}.`,
        words: `PE(p) · PE(p + k) = ${fixed(value * turns.length, 6)} = ${fixed(value, 6)} × ${turns.length} pairs`,
      };
    },
  });

  const raised = (i) => [...String(i)].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");
  const power = (i) => (i < 4 ? count(10 ** i) : `10${raised(i)}`);

  // What a scaling makes of the spectrum, or why it cannot.
  function scaledBy(settings) {
    try {
      return scalings[settings.scaling](settings);
    } catch (error) {
      return {omega: [], problem: error.message};
    }
  }

  function wordsOf({omega, amplitude, problem}, plain, {d, original}) {
    if (problem) return problem;
    const slowest = (all) => count(Math.round(TAU / Math.min(...all.filter(Boolean))));
    const within = (all) => all.filter((w) => w * original >= TAU * (1 - 1e-12)).length;
    const resting = omega.filter((w) => !w).length;
    return (
      `The slowest rotating pair takes ${slowest(omega)} positions per cycle, unscaled ${slowest(plain)}. ` +
      "Within the original length " +
      `${within(omega)} of ${d / 2} pairs complete a cycle, unscaled ${within(plain)}.` +
      (amplitude ? ` The amplitude becomes ${amplitude.toFixed(6)}.` : "") +
      (resting ? ` ${resting} pairs do not rotate and are not drawn.` : "")
    );
  }

  define("spectrum", {
    settings: {d: 64, base: 10_000, scaling: "yarn", factor: 8, original: 8192},
    controls: [controls.factor, controls.original, controls.scaling],
    height: curve,
    draw(g, settings, [width, height]) {
      const {d, base, original} = settings;
      const [plain, scaled] = [angular(geometric(d, base)), scaledBy(settings)];
      const waves = [plain, scaled.omega].map((all) => all.map((w) => Math.log10(TAU / w)));
      const top = Math.ceil(Math.max(...waves.flat().filter(Number.isFinite), Math.log10(original)) + 0.05);
      const at = frame(g, {
        width,
        height,
        x: [0, d / 2 - 1],
        y: [0, top],
        xLabel: "pair i",
        xTicks: ticks(0, d / 2 - 1, 8).map((t) => [t, count(t)]),
        yTicks: Array.from({length: top + 1}, (_, i) => [i, power(i)]),
      });
      const seen = at.y(Math.log10(original));
      line(g, "rule", `M${at.x(0)} ${seen}H${at.x(d / 2 - 1)}`);
      write(g, at.x(0) + 6, seen < 22 ? seen + 16 : seen - 6, `original length ${count(original)}`, "start");
      waves.forEach((values, which) => {
        const points = values.map((v, i) => [at.x(i), at.y(v)]).filter(([, y]) => Number.isFinite(y));
        line(g, which ? "second" : "first", path(points));
        for (const [cx, cy] of which ? points : []) svg(g, "circle", {class: "dot", cx, cy, r: d > 64 ? 2 : 3});
      });
      const words = wordsOf(scaled, plain, settings);
      return {label: `Wavelengths of ${d / 2} pairs on a logarithmic axis, unscaled and scaled. ${words}`, words};
    },
  });

  Object.assign(views, {controls, small, MAX_POSITION});
}
