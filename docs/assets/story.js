// The scenes of "Positions from nothing", from words without positions to the rotation of a clock's hand.
"use strict";
{
  const {geometric, angular, phase, selfAttention} = posenc;
  const {
    define, count, fixed, percent, degrees, svg, write, line, path, redBlue, magma, rgb, inkOn, tip, arc, slider,
    button, play,
  } = views;

  const WORDS = ["The", "dog", "chased", "another", "dog"];
  const VECTORS = [
    [1.4, 0.2, 0, 0.4],
    [0.2, 1.8, 1, 0],
    [0, 1, 2, 0.6],
    [1.2, 0, 0.4, 1],
    [0.2, 1.8, 1, 0],
  ];
  const NAMES = ["The", "dog ①", "chased", "another", "dog ②"];
  const range = (n, of = (i) => i) => Array.from({length: n}, (_, i) => of(i));

  // ------------------------------------------------------------------------------------------- 1: words as a set

  const WEIGHTS = selfAttention(VECTORS);
  const seat = (order, word) => order.indexOf(word);

  // Another order than the one before.
  function shuffled(order) {
    const next = [...order];
    for (let i = next.length - 1; i; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [next[i], next[j]] = [next[j], next[i]];
    }
    return next.some((word, i) => word !== order[i]) ? next : shuffled(order);
  }

  const reshuffled = ({order}) => ({order: shuffled(order)});
  const permutes = (said) => /^(\d,){4}\d$/.test(said) && said.split(",").sort().join() === range(5).join();

  // Cells are made once and move to the seats of their words.
  function cells(g) {
    return WEIGHTS.flatMap((row, query) =>
      row.map((weight, key) => {
        const cell = svg(g, "g", {class: "moves"});
        const colour = magma(weight / 0.75);
        svg(cell, "rect", {fill: rgb(colour)});
        return {query, key, cell, text: svg(cell, "text", {style: `fill:${inkOn(colour)}`}, weight.toFixed(2))};
      }),
    );
  }

  define("shuffle", {
    keeps: true,
    settings: {order: range(5)},
    controls: [button("Shuffle the words", reshuffled), play(0.7, reshuffled)],
    takes: {order: (said) => (permutes(said) ? said.split(",").map(Number) : undefined)},
    height: (width) => Math.min(width * 0.72, 300),
    draw(g, {order}, [width, height], view) {
      if (!view.cells) {
        view.names = ["query", "key"].flatMap((of) =>
          NAMES.map((name, word) => ({
            of,
            word,
            text: svg(
              g,
              "text",
              {class: `moves ${of === "query" ? "end" : ""} ${word % 3 === 1 ? "strong" : ""}`},
              name,
            ),
          })),
        );
        view.cells = cells(g);
        view.frames = [1, 4].map((word) => ({word, rect: svg(g, "rect", {class: "frame moves"})}));
        write(g, 0, 16, "attends to", "start");
      }
      const [left, top] = [width < 500 ? 62 : 78, 24];
      const [w, h] = [(width - left - 2) / 5, (height - top - 4) / 5];
      for (const {query, key, cell, text} of view.cells) {
        cell.style.transform = `translate(${left + seat(order, key) * w}px, ${top + seat(order, query) * h}px)`;
        const [rect] = cell.children;
        rect.setAttribute("width", w - 2);
        rect.setAttribute("height", h - 2);
        text.setAttribute("x", w / 2 - 1);
        text.setAttribute("y", h / 2 + 4);
      }
      for (const {of, word, text} of view.names) {
        const at = seat(order, word);
        text.style.transform =
          of === "query"
            ? `translate(${left - 8}px, ${top + (at + 0.5) * h + 3}px)`
            : `translate(${left + (at + 0.5) * w - 1}px, ${top - 8}px)`;
      }
      for (const {word, rect} of view.frames) {
        rect.style.transform = `translate(${left - 1}px, ${top + seat(order, word) * h - 1}px)`;
        rect.setAttribute("width", 5 * w);
        rect.setAttribute("height", h);
      }
      const sentence = order.map((word) => NAMES[word]).join(" ");
      return {
        label:
          `Attention weights, five rows and five columns, in the order: ${sentence}. ` +
          "Every pair of words keeps its weight; " +
          "the rows of the two dogs hold the same numbers.",
        words:
          `“${order.map((word) => WORDS[word]).join(" ")}”: chased attends to dog ① with weight ` +
          `${WEIGHTS[2][1].toFixed(2)}, in every order.`,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- 2: three ways to count

  const SIZE = Math.hypot(...VECTORS[1]);
  const BITS = 8;
  const bitsOf = (p) => range(BITS, (i) => (p >> (BITS - 1 - i)) & 1);

  function title(g, x, text) {
    write(g, x, 14, text, "start strong");
  }

  // The lengths of the word and of its number, one after the other.
  function lengths(g, w, p) {
    const share = SIZE / (SIZE + 2 * p);
    title(g, 0, "add p");
    svg(g, "rect", {class: "word", x: 0, y: 34, width: share * w, height: 26});
    svg(g, "rect", {class: "place", x: share * w, y: 34, width: (1 - share) * w, height: 26});
    write(g, 0, 77, "the word", "start");
    write(g, w, 77, "its number", "end");
    write(g, 0, 101, `The word is ${percent(share)} of the sum.`, "start said");
    return percent(share);
  }

  // The positions p/L of the words of the sentence, and of a text of p + 1 words.
  function fractions(g, w, p) {
    title(g, 0, "add p / L");
    const x = (part) => 6 + part * (w - 12);
    for (const [y, length] of [
      [42, 5],
      [68, p + 1],
    ]) {
      line(g, "axis", `M${x(0)} ${y}H${x(1)}`);
      for (const i of range(length)) line(g, "axis", `M${x(i / length)} ${y - 4}V${y + 4}`);
      svg(g, "circle", {class: "dog", cx: x(1 / length), cy: y, r: 5});
    }
    line(g, "rule", `M${x(1 / 5)} 42L${x(1 / (p + 1))} 68`);
    write(g, x(1), 33, "5 words", "end");
    write(g, x(1), 86, `${count(p + 1)} words`, "end");
    write(g, 0, 101, `dog ① is at 0.2, and at ${fixed(1 / (p + 1), 3)}.`, "start said");
  }

  // The bits of p and of p + 1.
  function codes(g, w, p) {
    title(g, 0, "add the bits of p");
    const cell = Math.min((w - 44) / BITS, 24);
    const [here, there] = [bitsOf(p), bitsOf(p + 1)];
    const flips = here.map((bit, i) => bit !== there[i]);
    [here, there].forEach((bits, row) => {
      write(g, 34, 47 + row * 28, count(p + row), "end");
      bits.forEach((bit, i) => {
        const colour = redBlue(bit ? 0.8 : -0.8);
        const at = {x: 42 + i * cell, y: 30 + row * 28, width: cell - 3, height: 24};
        svg(g, "rect", {...at, fill: rgb(colour), class: flips[i] ? "flipped" : ""});
        svg(g, "text", {x: at.x + cell / 2 - 1.5, y: at.y + 17, style: `fill:${inkOn(colour)}`}, bit);
      });
    });
    const flipped = flips.filter(Boolean).length;
    write(g, 0, 101, `One word later, ${flipped} ${flipped === 1 ? "bit flips" : "bits flip"}.`, "start said");
    return flipped;
  }

  define("count", {
    settings: {p: 7},
    controls: [slider("p", "Position p of the last word", 4, 127), play(4, "p")],
    height: (width) => (width < 600 ? 3 * 122 : 112),
    draw(g, {p}, [width]) {
      const wide = width >= 600;
      const w = wide ? (width - 72) / 3 : width;
      const panel = (i) => svg(g, "g", {transform: wide ? `translate(${i * (w + 36)} 0)` : `translate(0 ${i * 122})`});
      const share = lengths(panel(0), w, p);
      fractions(panel(1), w, p);
      const flipped = codes(panel(2), w, p);
      return {
        label:
          `Position ${p} in three ways. Adding p, the word is ${share} of the sum. Adding p over L, the first dog ` +
          `is at 0.2 in a text of 5 words and at ${fixed(1 / (p + 1), 3)} in one of ${p + 1}. In bits, ${flipped} ` +
          `of ${BITS} flip from ${p} to ${p + 1}.`,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- 3: from bits to sines

  const [LENGTH, ROWS] = [32, 5];
  // Bit j of p from -1 to 1 as it becomes a wave: the higher the edge, the more square. At edge 0 it is a sine.
  const wave = (p, j, edge) => {
    const s = -Math.sin((Math.PI * (p + 0.5)) / 2 ** j);
    return edge < 1e-3 ? s : Math.tanh(edge * s) / Math.tanh(edge);
  };
  const edgeAt = (round) => (round >= 100 ? 0 : 30 * (1 - round / 100) ** 3);
  const step = (p, edge) => Math.hypot(...range(ROWS, (j) => wave(p + 1, j, edge) - wave(p, j, edge)));

  define("waves", {
    settings: {round: 0},
    controls: [
      slider("round", "From bits to sines", 0, 100, {
        text: (round) => (round === 0 ? "bits" : round === 100 ? "sines" : `${round}%`),
      }),
      play(20, "round"),
    ],
    height: () => 316,
    draw(g, {round}, [width, height]) {
      const left = width < 500 ? 58 : 112;
      const edge = edgeAt(round);
      const x = (p) => left + ((p + 0.5) / LENGTH) * (width - left - 4);
      range(ROWS).forEach((row) => {
        const [middle, size] = [18 + row * 42, 14];
        const period = 2 ** (row + 1);
        write(g, left - 10, middle + 4, width < 500 ? `every ${period}` : `repeats every ${period}`, "end");
        line(g, "grid", `M${left} ${middle}H${width}`);
        const fine = range(LENGTH * 16, (i) => i / 16 - 0.5);
        line(g, "wave", path(fine.map((p) => [x(p), middle - size * wave(p, row, edge)])));
        for (const p of range(LENGTH)) {
          const value = wave(p, row, edge);
          svg(g, "circle", {
            class: "sample",
            cx: x(p),
            cy: middle - size * value,
            r: width < 500 ? 3.5 : 5,
            fill: rgb(redBlue(0.8 * value)),
          });
        }
      });
      const [base, tall] = [height - 26, 62];
      const steps = range(LENGTH - 1, (p) => step(p, edge));
      steps.forEach((size, p) => {
        const bar = (tall * size) / 4.5;
        svg(g, "rect", {
          class: "step",
          x: x(p + 0.5) - (width - left) / LENGTH / 3,
          y: base - bar,
          width: (width - left) / LENGTH / 1.5,
          height: bar,
        });
      });
      write(g, left - 10, base - 20, "step", "end");
      write(g, left - 10, base + 15, "position", "end");
      line(g, "axis", `M${left} ${base}H${width}`);
      for (const p of [0, 7, 15, 23, 31]) write(g, x(p), base + 15, p);
      const [low, high] = [Math.min(...steps), Math.max(...steps)];
      const said = `From one position to the next the code moves by ${fixed(low, 1)} to ${fixed(high, 1)}.`;
      return {
        label:
          "Five curves over positions 0 to 31, which repeat every 2, 4, 8, 16 and 32 positions, " +
          `${round ? `${round} percent of the way from bits to sines` : "square like bits"}. ${said}`,
        words: said,
      };
    },
  });

  // ------------------------------------------------------------------------------------------- 4: two hands

  const TURNS = geometric(8, 100);
  const OMEGA = angular(TURNS);
  const APART = 3; // from the first dog to the second

  define("hands", {
    settings: {before: 0},
    controls: [slider("before", "Words before the sentence", 0, 80), play(5, "before")],
    height: (width) => 2 * Math.min(width / 8.6, 62) + 142,
    draw(g, {before}, [width]) {
      const [first, second] = [before + 1, before + 1 + APART];
      const [cell, radius] = [width / 4, Math.min(width / 8.6, 62)];
      TURNS.forEach((turn, i) => {
        const [here, there] = [phase(first, turn), phase(second, turn)];
        const strip = svg(g, "g", {transform: `translate(${(i + 0.5) * cell} 34)`});
        line(strip, "axis", `M${-radius} 0H${radius}M${-radius} -5V5M${radius} -5V5M0 -4V4`);
        line(strip, "span", `M${radius * Math.sin(here)} 0H${radius * Math.sin(there)}`);
        svg(strip, "circle", {class: "key dot", cx: radius * Math.sin(here), r: 5});
        svg(strip, "circle", {class: "query dot", cx: radius * Math.sin(there), r: 5});
        write(strip, 0, 24, fixed(Math.sin(there) - Math.sin(here), 2), "strong");
        const clock = svg(g, "g", {transform: `translate(${(i + 0.5) * cell} ${94 + radius})`});
        svg(clock, "circle", {class: "face", r: radius});
        line(clock, "turn", arc(here, OMEGA[i] * APART, radius * 0.55));
        line(clock, "key hand", `M0 0L${tip(here, radius - 2)}`);
        line(clock, "query hand", `M0 0L${tip(there, radius - 2)}`);
        write(clock, 0, radius + 18, degrees(OMEGA[i] * APART), "strong");
      });
      for (const [y, kind] of [
        [12, "sine alone: how far it is from "],
        [88, "sine and cosine: the angle from "],
      ]) {
        const text = write(g, 2, y, kind, "start");
        for (const [name, word] of [
          ["key", "dog ①"],
          ["", " to "],
          ["query", "dog ②"],
        ])
          svg(text, "tspan", {class: name}, word);
      }
      write(g, 2, 94 + 2 * radius + 42, "fast hand", "start");
      write(g, width - 2, 94 + 2 * radius + 42, "slow hand", "end");
      const apart = TURNS.map((turn) => Math.sin(phase(second, turn)) - Math.sin(phase(first, turn)));
      return {
        label:
          `Four pairs. The first dog is at position ${count(first)}, the second at ${count(second)}. ` +
          `Their sines differ by ${apart.map((x) => fixed(x, 2)).join(", ")}; on the clocks the rotations are ` +
          `${OMEGA.map((w) => degrees(w * APART)).join(", ")} at every position.`,
      };
    },
  });
}
