// The scenes of "Positions from nothing" that rotate queries and keys: RoPE, longer texts, and two dimensions.
"use strict";
{
  const {TAU, dot, geometric, angular, rotary, scalings, axialSimilarity, offsetSimilarity} = posenc;
  const {
    define, count, fixed, percent, degrees, svg, write, line, path, redBlue, viridis, rgb, arc, arrow, frame, slider,
    choice, play, handle,
  } = views;
  const range = (n, of = (i) => i) => Array.from({length: n}, (_, i) => of(i));

  // ------------------------------------------------------------------------------------------- 5: RoPE

  const TURN = geometric(16).slice(1, 2); // 18° a word
  const [OMEGA] = angular(TURN);
  const [SHORTEST, LONGEST] = [0.3, 1.4];
  const MOST = 24; // words between key and query
  const FIRST = 1; // where the sentence puts the key, dog ①
  const turned = (x, p) => rotary(x, p, TURN);
  const places = ({before, apart}) => [before + FIRST, before + FIRST + apart];
  const angleOf = ([x, y]) => Math.atan2(y, x);
  const inWords = (n) => `${n} ${n === 1 ? "word" : "words"}`;

  // Where the plane lies in the picture, and how many pixels are one.
  function plane([width]) {
    const narrow = width < 560;
    const radius = narrow ? Math.min(width * 0.3, 112) : Math.min(width * 0.22, 150);
    return {narrow, radius, x: narrow ? width / 2 : radius + 8, y: radius + 6, unit: radius / LONGEST};
  }

  // Where a vector points in the picture: its first number up and its second to the right, so that it rotates like the
  // hands of the clocks, clockwise from twelve.
  const onScreen = ([u, v], unit) => [unit * v, -unit * u];

  // The arrow that an address says, if it is one that can be dragged to.
  function arrowOf(said) {
    const arrow = said.split(",").map(Number);
    const length = Math.hypot(...arrow);
    return arrow.length === 2 && length > SHORTEST - 0.001 && length < LONGEST + 0.001 ? arrow : undefined;
  }

  // The arrow of the query or the key, which can be dragged after its rotation.
  function vector(name, which, label) {
    // The arrow at another angle, and longer.
    function at(settings, angle, more = 0) {
      const length = Math.min(Math.max(Math.hypot(...settings[name]) + more, SHORTEST), LONGEST);
      return {[name]: [length * Math.cos(angle), length * Math.sin(angle)]};
    }
    return handle({
      label,
      kind: which ? "query" : "key",
      grab(settings, [x, y], size) {
        const {x: cx, y: cy, unit} = plane(size);
        const [u, v] = [(cy - y) / unit, (x - cx) / unit];
        const length = Math.hypot(u, v) || 1;
        const scale = Math.min(Math.max(length, SHORTEST), LONGEST) / length;
        return {[name]: turned([u * scale, v * scale], -places(settings)[which])};
      },
      step: (settings, [across, up]) => at(settings, angleOf(settings[name]) + (across * TAU) / 72, up * 0.05),
      keys: {
        Home: (settings) => at(settings, -TAU / 2),
        End: (settings) => at(settings, TAU / 2),
        PageUp: (settings) => at(settings, angleOf(settings[name]) + TAU / 8),
        PageDown: (settings) => at(settings, angleOf(settings[name]) - TAU / 8),
      },
      place(settings, size) {
        const {x, y, unit} = plane(size);
        const [across, down] = onScreen(turned(settings[name], places(settings)[which]), unit);
        return [x + across, y + down];
      },
      value(settings) {
        const angle = Math.round((angleOf(settings[name]) * 360) / TAU);
        return {
          now: angle,
          min: -180,
          max: 180,
          text: `${degrees(angleOf(settings[name]))} before the rotation, length ${fixed(Math.hypot(...settings[name]), 2)}`,
        };
      },
    });
  }

  function drawPlane(g, {q, k}, [at, to], {radius, unit}) {
    svg(g, "circle", {class: "face", r: radius});
    line(g, "grid", `M${-radius} 0H${radius}M0 ${-radius}V${radius}`);
    const [query, key] = [turned(q, to), turned(k, at)];
    const [a, b] = [angleOf(key), angleOf(query)];
    const opening = b - a - TAU * Math.ceil((b - a) / TAU - 0.5); // from -π, open, to π
    line(g, "wedge", `M0 0L${arc(a, opening, unit * 0.5).slice(1)}Z`);
    for (const [kind, start, p, r] of [
      ["key", k, at, 0.62],
      ["query", q, to, 0.74],
    ]) {
      arrow(g, `${kind} before`, [0, 0], onScreen(start, unit));
      if (p) line(g, `${kind} way`, arc(angleOf(start), OMEGA * p, unit * r));
    }
    for (const [kind, end, name] of [
      ["key", key, "k"],
      ["query", query, "q"],
    ]) {
      const [x, y] = onScreen(end, unit);
      const length = Math.hypot(x, y);
      arrow(g, kind, [0, 0], [x, y]);
      const out = (length - 22) / length;
      const side = ((kind === "query") === opening > 0 ? 12 : -12) / length; // away from the other arrow
      write(g, out * x - side * y, out * y + side * x + 4, name, `${kind} name`);
    }
    return dot(query, key);
  }

  function drawScores(g, {q, k, apart}, score, box) {
    const at = frame(g, {
      ...box,
      x: [0, MOST],
      y: [-2, 2],
      xLabel: "words from key to query",
      xTicks: [0, 6, 12, 18, 24].map((t) => [t, count(t)]),
      yTicks: [-2, -1, 0, 1, 2].map((t) => [t, count(t)]),
    });
    const scores = range(MOST * 4 + 1, (i) => [
      i / 4,
      Math.hypot(...q) * Math.hypot(...k) * Math.cos(angleOf(q) - angleOf(k) + (OMEGA * i) / 4),
    ]);
    line(g, "scores", path(scores.map(([x, y]) => [at.x(x), at.y(y)])));
    line(g, "rule", `M${at.x(apart)} ${at.y(0)}V${at.y(score)}`);
    svg(g, "circle", {
      class: "point",
      cx: at.x(apart),
      cy: at.y(score),
      r: 7,
      style: `fill:${rgb(redBlue(score / 2))}`,
    });
    write(g, at.x(0) + 8, 20, "score q · k", "start");
  }

  define("rope", {
    settings: {before: 0, apart: 3, q: [1.1, -0.4], k: [0.02, 1]},
    controls: [
      slider("before", "Move both", 0, 100, {text: (n) => `${inWords(n)} further on`}),
      slider("apart", "Move the query", 0, MOST, {text: (n) => `${inWords(n)} after the key`}),
      play(5, "before"),
    ],
    takes: {q: arrowOf, k: arrowOf},
    handles: [vector("k", 0, "Key, the first dog's arrow"), vector("q", 1, "Query, the second dog's arrow")],
    height: (width) => (plane([width]).narrow ? 2 * plane([width]).radius + 150 : 2 * plane([width]).radius + 12),
    draw(g, settings, [width, height]) {
      const at = plane([width]);
      const [key, query] = places(settings);
      const score = drawPlane(svg(g, "g", {transform: `translate(${at.x} ${at.y})`}), settings, [key, query], at);
      const left = at.narrow ? 0 : 2 * at.radius + 40;
      const top = at.narrow ? 2 * at.radius + 16 : 8;
      drawScores(svg(g, "g", {transform: `translate(${left} ${top})`}), settings, score, {
        width: width - left,
        height: height - top,
      });
      for (const [y, part] of [
        [12, "faint: before"],
        [27, "the rotation"],
      ])
        write(g, 0, y, part, "start");
      const words = `Key at position ${count(key)}, query at ${count(query)}: the score is ${fixed(score, 3)}.`;
      return {
        label:
          `Two arrows in a plane, rotated by ${degrees(OMEGA)} per position, and the curve of their score. ` + words,
        words,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- 6: longer texts

  const TRAINED = {d: 16, base: 10_000, original: 512};
  const SCALINGS = {none: "none", linear: "linear", ntk: "NTK", yarn: "YaRN"};

  function donut(g, radius, seen, used) {
    const ring = (kind, from, to) =>
      to > from + 1e-9 && line(g, `ring ${kind}`, arc(from * TAU, (to - from) * TAU, radius));
    ring("never", 0, 1);
    ring("seen", 0, Math.min(seen, 1));
    ring("unseen", Math.min(seen, 1), Math.min(used, 1));
  }

  define("stretch", {
    settings: {factor: 1, scaling: "none"},
    controls: [
      slider("factor", "Length of the text", 1, 8, {step: 0.5, text: (s) => `${s} × 512 = ${count(512 * s)} words`}),
      choice("scaling", "Slow the arrows down", SCALINGS),
      play(2, "factor"),
    ],
    height: (width) => (width < 600 ? 2 : 1) * (2 * Math.min(width / (width < 600 ? 9.4 : 18.6), 46) + 58),
    draw(g, {factor, scaling}, [width]) {
      const columns = width < 600 ? 4 : 8;
      const radius = Math.min(width / (columns * 2.33), 46);
      const [plain, slowed] = ["none", scaling].map((name) => scalings[name]({...TRAINED, factor}).omega);
      const shares = plain.map((w, i) => {
        const [seen, used] = [w * 512, slowed[i] * 512 * factor].map((angle) => angle / TAU);
        const unseen = Math.max(Math.min(used, 1) - Math.min(seen, 1) - 1e-9, 0);
        const centre = [
          ((i % columns) + 0.5) * (width / columns),
          Math.floor(i / columns) * (2 * radius + 58) + radius + 4,
        ];
        const cell = svg(g, "g", {transform: `translate(${centre})`});
        donut(cell, radius - 6, seen, used);
        if (unseen) (write(cell, 0, 0, percent(unseen), "strong"), write(cell, 0, 14, "new"));
        write(cell, 0, radius + 18, i === 0 ? "arrow 0, fast" : i === 7 ? "arrow 7, slow" : `arrow ${i}`);
        const slower = w / slowed[i];
        write(cell, 0, radius + 34, slower > 1.005 ? `${fixed(slower, 1)} × slower` : "as trained", "faint");
        return unseen;
      });
      const bad = shares.filter(Boolean).length;
      const blur = slowed[0] < plain[0] ? `, no longer ${degrees(plain[0])}: neighbours blur` : "";
      const words =
        `${bad ? `${bad} of 8 arrows reach` : "No arrow reaches"} angles that never occurred in training. ` +
        `One more word rotates the fastest by ${degrees(slowed[0])}${blur}.`;
      return {
        label:
          `Eight rings, one per arrow: grey-blue marks the angles of ${count(512)} positions, orange the new ` +
          `angles of ${count(512 * factor)}. ${words}`,
        words,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- 7: two dimensions

  const SIDE = 16;
  const WIDTH = 32; // features of a coordinate; twice as many where there is one coordinate
  const AXIS = geometric(WIDTH, 100);
  const LINE = geometric(2 * WIDTH, 100);
  // A dog chases another dog, from left to right.
  const PICTURE = [
    ...Array(5).fill("."),
    "......#.......#.",
    "#....###.#...###",
    "#######..#######",
    ".#####....#####.",
    ".#####....#####.",
    "#.#..#.#.#.#..#.",
    ...Array(2).fill("g".repeat(16)),
    ...Array(3).fill("."),
  ].map((row) => row.padEnd(16, "."));

  function grids([width]) {
    const size = Math.min((width - 16) / 2, 290);
    const left = Math.max((width - 2 * size - 16) / 2, 0);
    return {size, cell: size / SIDE, left, right: left + size + 16, top: 24};
  }
  const within = (n) => Math.min(Math.max(n, 0), SIDE - 1);
  const sideOf = (said) => (/^\d+$/.test(said) ? within(Number(said)) : undefined);
  // The next patch of the line, at last the first.
  const next = ({row, column}) => ({row: (row + Math.floor((column + 1) / SIDE)) % SIDE, column: (column + 1) % SIDE});
  // From the same pairs: of one coordinate, the number of the patch, or of row and column.
  const likeness = {
    one: (rows, columns) => offsetSimilarity(rows * SIDE + columns, LINE) / WIDTH,
    two: (rows, columns) => axialSimilarity([rows, columns], AXIS) / WIDTH,
  };

  define("grid", {
    settings: {row: 8, column: 3, count: "one"},
    controls: [choice("count", "Number the patches", {one: "in one line", two: "by row and column"}), play(5, next)],
    takes: {row: sideOf, column: sideOf},
    handles: [
      handle({
        label: "Patch",
        wide: true,
        grab(settings, [x, y], size) {
          const {cell, left, right, top} = grids(size);
          const from = x > right - 8 ? right : left;
          return {row: within(Math.floor((y - top) / cell)), column: within(Math.floor((x - from) / cell))};
        },
        step: ({row, column}, [across, up]) => ({row: within(row - up), column: within(column + across)}),
        keys: {
          Home: () => ({row: 0, column: 0}),
          End: () => ({row: SIDE - 1, column: SIDE - 1}),
          PageUp: ({row}) => ({row: within(row - 4)}),
          PageDown: ({row}) => ({row: within(row + 4)}),
        },
        place({row, column}, size) {
          const {cell, right, top} = grids(size);
          return [right + (column + 0.5) * cell, top + (row + 0.5) * cell];
        },
        value: ({row, column}) => ({
          now: row * SIDE + column,
          min: 0,
          max: SIDE * SIDE - 1,
          text: `row ${row}, column ${column}`,
        }),
      }),
    ],
    height: (width) => grids([width]).size + 28,
    draw(g, {row, column, count: how}, [width]) {
      const {size, cell, left, right, top} = grids([width]);
      write(g, left + size / 2, 14, width < 500 ? "the picture" : "the picture, cut into patches");
      write(g, right + size / 2, 14, width < 500 ? "similarity" : "similarity to every other patch");
      PICTURE.forEach((pixels, r) =>
        [...pixels].forEach((pixel, c) => {
          const at = {y: top + r * cell, width: cell - 0.7, height: cell - 0.7};
          svg(g, "rect", {
            ...at,
            x: left + c * cell,
            class: pixel === "#" ? (c < 8 ? "patch key" : "patch query") : pixel === "g" ? "patch ground" : "patch",
          });
          svg(g, "rect", {...at, x: right + c * cell, fill: rgb(viridis(likeness[how](r - row, c - column)))});
        }),
      );
      for (const [from, kind] of [[left, "chosen"], [right, "chosen on-colours"]]) {
        svg(g, "rect", {
          class: kind,
          x: from + column * cell - 1,
          y: top + row * cell - 1,
          width: cell + 1.3,
          height: cell + 1.3,
        });
      }
      const [below, beside] = [likeness[how](1, 0), likeness[how](0, 1)].map((value) => fixed(value, 2));
      const words = `Similarity to the patch beside it: ${beside}; to the patch below: ${below}.`;
      return {
        label:
          `Two grids of ${SIDE} by ${SIDE} patches: a dog chasing a dog, and the similarity of the encoding of ` +
          `row ${row}, column ${column} to all others, ` +
          `${how === "one" ? "a bright band along its row" : "a bright cross along its row and column"}. ${words}`,
        words,
      };
    },
  });
}
