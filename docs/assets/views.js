// <pe-view kind="…">: a picture that its controls move. A kind says what its settings are, which controls change
// them, and how it is drawn; attributes of the element set what it begins with. Without scripts, or for a kind that is
// not known, the element shows what it holds: a static picture.
"use strict";
globalThis.views = (() => {
  const {TAU} = posenc;
  const kinds = {};

  // ------------------------------------------------------------------------------------------- words and elements

  const minus = (text) => text.replace("-", "−");
  const count = (x) => minus(x.toLocaleString("en-US"));
  const fixed = (x, digits) => minus(x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1"));
  const percent = (x) => `${x && x < 0.01 ? "under 1" : Math.round(100 * x)}%`;
  const degrees = (angle) => `${minus(String(Math.round((angle * 360) / TAU)))}°`;

  function html(parent, tag, attributes = {}, text = "") {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return parent.appendChild(made);
  }

  function svg(parent, tag, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== "") made.textContent = text;
    return parent.appendChild(made);
  }

  const write = (g, x, y, text, kind = "") => svg(g, "text", {x, y, class: kind}, text);
  const line = (g, kind, d) => svg(g, "path", {class: kind, d});
  const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`).join("");

  // ------------------------------------------------------------------------------------------- colours

  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  // From -1, blue, to 1, red: RdBu of ColorBrewer. From 0 to 1: magma and viridis of matplotlib.
  const RED_BLUE = [
    "#053061",
    "#2166ac",
    "#4393c3",
    "#92c5de",
    "#d1e5f0",
    "#f7f7f7",
    "#fddbc7",
    "#f4a582",
    "#d6604d",
    "#b2182b",
    "#67001f",
  ].map(channels);
  const MAGMA = [
    "#000004",
    "#180f3d",
    "#440f76",
    "#721f81",
    "#9e2f7f",
    "#cd4071",
    "#f1605d",
    "#fd9668",
    "#feca8d",
    "#fcfdbf",
  ].map(channels);
  const VIRIDIS = [
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
  ].map(channels);

  // The colour at a place from 0 to 1 of a map, as [red, green, blue].
  function between(map, place) {
    const at = Math.min(Math.max(place, 0), 1) * (map.length - 1);
    const i = Math.min(Math.floor(at), map.length - 2);
    return map[i].map((channel, c) => channel + (at - i) * (map[i + 1][c] - channel));
  }
  const redBlue = (value) => between(RED_BLUE, (value + 1) / 2);
  const magma = (value) => between(MAGMA, value); // weights
  const viridis = (value) => between(VIRIDIS, (value + 0.5) / 1.5); // similarity, from -0.5 to 1
  const rgb = (colour) => `rgb(${colour.map(Math.round).join()})`;
  const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 125 ? "#000" : "#fff");

  // ------------------------------------------------------------------------------------------- shapes

  // From twelve o'clock and clockwise: the sine to the right, the cosine upwards.
  const tip = (angle, radius) => `${(radius * Math.sin(angle)).toFixed(2)} ${(-radius * Math.cos(angle)).toFixed(2)}`;

  // An arc, at most once round, in three parts: each is less than a half turn, so rounded ends hardly move its centre.
  function arc(from, by, radius) {
    const third = Math.max(Math.min(by, TAU), -TAU) / 3;
    const parts = [1, 2, 3].map((i) => `A${radius} ${radius} 0 0 ${by > 0 ? 1 : 0} ${tip(from + i * third, radius)}`);
    return `M${tip(from, radius)}${parts.join("")}`;
  }

  // A line with a head, from [x, y] to [u, v].
  function arrow(g, kind, [x, y], [u, v]) {
    const length = Math.hypot(u - x, v - y) || 1;
    const [a, b] = [(u - x) / length, (v - y) / length];
    const size = Math.min(9, length / 2);
    const back = (side) =>
      `${(u - size * a + side * size * 0.45 * b).toFixed(2)} ${(v - size * b - side * size * 0.45 * a).toFixed(2)}`;
    line(g, kind, `M${x} ${y}L${(u - size * 0.7 * a).toFixed(2)} ${(v - size * 0.7 * b).toFixed(2)}`);
    return line(g, `${kind} head`, `M${u.toFixed(2)} ${v.toFixed(2)}L${back(1)}L${back(-1)}Z`);
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

  // Axes in a box of `width` by `height` with their ticks, [value, text]; returns where a point of the data lies.
  function frame(g, {width, height, x, y, xTicks, yTicks, xLabel}) {
    const [left, right, top, bottom] = [12 + 6.5 * Math.max(...yTicks.map(([, text]) => text.length)), 12, 10, 40];
    const at = {
      x: (v) => left + ((v - x[0]) / (x[1] - x[0])) * (width - left - right),
      y: (v) => height - bottom - ((v - y[0]) / (y[1] - y[0])) * (height - top - bottom),
    };
    const [x0, x1, y0, y1] = [at.x(x[0]), at.x(x[1]), at.y(y[0]), at.y(y[1])];
    for (const [value, text] of yTicks) {
      line(g, "grid", `M${x0} ${at.y(value)}H${x1}`);
      write(g, x0 - 6, at.y(value) + 4, text, "end");
    }
    for (const [value, text] of xTicks) write(g, at.x(value), y0 + 17, text);
    line(g, "axis", `M${x0} ${y1}V${y0}H${x1}`);
    write(g, (x0 + x1) / 2, height - 4, xLabel);
    return at;
  }

  // ------------------------------------------------------------------------------------------- controls

  // Each control is a function of the view: it puts itself into the form and returns what shows the settings in it.
  let made = 0;
  const change = (view, changes) => view.set({...view.settings, ...changes});

  // `value` takes what the slider says to the setting, and `from` back.
  const slider =
    (name, label, min, max, {step = 1, text = count, value = Number, from = Number} = {}) =>
    (view, form) => {
      const box = html(form, "div", {class: "pe-control"});
      const id = `pe-${name}-${made++}`;
      html(box, "label", {for: id}, label);
      const output = html(box, "output", {for: id});
      const input = html(box, "input", {type: "range", id, name, min, max, step});
      input.addEventListener("input", () => change(view, {[name]: value(Number(input.value))}));
      const show = (settings) => {
        const words = text(settings[name]);
        input.value = from(settings[name]);
        input.setAttribute("aria-valuetext", words);
        output.textContent = words;
      };
      // The nearest that the slider can say.
      const take = (said) => {
        if (!said || !Number.isFinite(Number(said))) return;
        input.value = from(Number(said));
        return value(Number(input.value));
      };
      return Object.assign(show, {takes: {[name]: take}});
    };

  const choice = (name, label, options) => (view, form) => {
    const box = html(form, "fieldset", {class: "pe-choice"});
    html(box, "legend", {}, label);
    const group = `pe-${name}-${made++}`;
    const inputs = Object.entries(options).map(([value, text]) => {
      const input = html(html(box, "label"), "input", {type: "radio", name: group, value});
      input.after(` ${text}`);
      input.addEventListener("change", () => change(view, {[name]: value}));
      return input;
    });
    const show = (settings) =>
      inputs.forEach((input) => {
        input.checked = input.value === settings[name];
      });
    return Object.assign(show, {takes: {[name]: (said) => (Object.hasOwn(options, said) ? said : undefined)}});
  };

  // What is pressed stands in one row, below what slides.
  const row = (form) => form.querySelector(".pe-row") ?? html(form, "div", {class: "pe-row"});
  const pressed = (form, label = "") => html(row(form), "button", {type: "button", class: "pe-button"}, label);

  const button = (label, press) => (view, form) => {
    pressed(form, label).addEventListener("click", () => change(view, press(view.settings)));
    return () => {};
  };

  // Plays by `step()`, `rate` times a second, and draws what is `between`; `rest()` when it is paused. For readers who
  // want no motion, a press is one step. Returns whether it plays.
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  function player(on, {rate, step, between = () => {}, rest = () => {}, once = "Next step"}) {
    let playing = false;
    function name() {
      if (still.matches) playing = false;
      on.textContent = still.matches ? once : playing ? "Pause" : "Play";
    }
    // A page that was hidden goes on from where it was.
    function play(before, ahead = 0) {
      requestAnimationFrame((now) => {
        if (!playing) return rest();
        const next = ahead + Math.min((now - before) / 1000, 0.1) * rate;
        if (next >= 1) step();
        between(next % 1);
        play(now, next % 1);
      });
    }
    on.addEventListener("click", () => {
      if (still.matches) return step();
      playing = !playing;
      name();
      if (playing) play(performance.now());
    });
    still.addEventListener("change", name);
    name();
    return () => playing;
  }

  // Plays changes of the settings, or a slider by its name, from its end back to its start.
  const play = (rate, what) => (view, form) => {
    function step() {
      if (typeof what === "function") return change(view, what(view.settings));
      const input = form.elements[what];
      if (input.value === input.max) input.value = input.min;
      else input.stepUp();
      input.dispatchEvent(new Event("input"));
    }
    player(pressed(form), {rate, step});
    return () => {};
  };

  // Leads to the view as it is.
  const permalink = (view, form) => {
    const link = html(row(form), "a", {class: "pe-link"}, "Link to this");
    return () => {
      link.href = view.address();
    };
  };

  // What can be dragged, or moved by keys: `grab`, `step` for the arrow keys and `keys` by the names of others return
  // changed settings, `place` says where it is and `value` what it says. `wide` takes hold anywhere in the picture.
  const handle =
    ({label, kind = "", grab, step, keys, place, value, wide}) =>
    (view) => {
      const g = svg(view.handles, "g", {class: "pe-handle", tabindex: 0, role: "slider", "aria-label": label});
      svg(g, "circle", {r: 16, class: "pe-touch"});
      svg(g, "circle", {r: 6.5, class: `pe-grip ${kind}`});
      const surface = wide ? view.picture : g;
      const move = (event) => {
        const box = view.picture.getBoundingClientRect();
        change(view, grab(view.settings, [event.clientX - box.left, event.clientY - box.top], view.size));
      };
      surface.addEventListener("pointerdown", (event) => {
        if (event.button) return;
        surface.setPointerCapture(event.pointerId);
        surface.addEventListener("pointermove", move);
        g.focus({preventScroll: true});
        move(event);
      });
      // Else the page scrolls and the drag ends after a few moves. Browsers do not heed `touch-action` inside of an svg.
      surface.addEventListener("touchstart", (event) => event.preventDefault(), {passive: false});
      for (const end of ["pointerup", "pointercancel"]) {
        surface.addEventListener(end, () => surface.removeEventListener("pointermove", move));
      }
      g.addEventListener("keydown", (event) => {
        const by = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1]}[event.key];
        if (!by && !Object.hasOwn(keys, event.key)) return;
        event.preventDefault();
        change(view, by ? step(view.settings, by) : keys[event.key](view.settings));
      });
      return (settings) => {
        const [x, y] = place(settings, view.size);
        const {now, min, max, text} = value(settings);
        g.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
        for (const [name, said] of [
          ["now", now],
          ["min", min],
          ["max", max],
          ["text", text],
        ]) {
          g.setAttribute(`aria-value${name}`, said);
        }
      };
    };

  // ------------------------------------------------------------------------------------------- the element

  // What the attributes of an element say of settings: numbers, lists of numbers, or words.
  function given(element, settings) {
    const read = (text, like) =>
      typeof like === "number" ? Number(text) : Array.isArray(like) ? text.split(",").map(Number) : text;
    return Object.fromEntries(
      Object.keys(settings)
        .filter((name) => element.hasAttribute(name))
        .map((name) => [name, read(element.getAttribute(name), settings[name])]),
    );
  }

  class View extends HTMLElement {
    connectedCallback() {
      const kind = kinds[this.getAttribute("kind")];
      if (!kind || this.kind) return;
      this.kind = kind;
      this.first = {...kind.settings, ...given(this, kind.settings)};
      this.settings = {...this.first};
      this.classList.add("pe-view", `pe-${this.getAttribute("kind")}`);
      this.replaceChildren();
      const handles = kind.handles ?? [];
      if (kind.canvas) this.picture = html(this, "canvas", {role: "img"});
      else this.picture = svg(this, "svg", {role: handles.length ? "group" : "img"});
      if (!kind.canvas) this.drawing = svg(this.picture, "g");
      if (handles.length) this.handles = svg(this.picture, "g");
      this.words = html(this, "p", {class: "pe-words"});
      this.status = html(this, "p", {class: "pe-unseen", role: "status"});
      const controls = this.hasAttribute("bare") ? [] : [...(kind.controls ?? []), permalink];
      const form = controls.length ? html(this, "form", {class: "pe-form"}) : null;
      form?.addEventListener("submit", (event) => event.preventDefault());
      this.shows = [...controls, ...handles].map((make) => make(this, form));
      this.takes = Object.assign({}, ...this.shows.map(({takes}) => takes), kind.takes);
      // The first draw too: an observer knows the width without laying out the page once more. The views further down
      // reserve their places and wait until the first is seen.
      new ResizeObserver(([{contentRect}]) => {
        const [before, width] = [this.width, Math.floor(contentRect.width)];
        if (before === width) return;
        this.width = width;
        this.reserve();
        if (before || this === document.querySelector("pe-view")) this.draw();
        else setTimeout(() => this.draw());
      }).observe(this);
      if (kind.canvas)
        new MutationObserver(() => this.draw()).observe(document.body, {attributeFilter: ["data-md-color-scheme"]});
    }

    // What a control asks for: drawn with the next frame, and said to those who listen once it stands still.
    set(settings) {
      this.settings = settings;
      clearTimeout(this.settling);
      this.settling = setTimeout(() => {
        this.status.textContent = this.words.textContent;
      }, 600);
      if (!this.waiting) requestAnimationFrame(() => this.draw());
      this.waiting = true;
    }

    // The end of an address that leads here, with the settings that are not as they were at first.
    address() {
      const text = (x) => String(Array.isArray(x) ? x.map((n) => Number(n.toFixed(3))) : x);
      const said = Object.keys(this.takes).map((name) => [name, text(this.settings[name])]);
      const changed = said.filter(([name, value]) => value !== text(this.first[name]));
      return `#${new URLSearchParams([["view", this.getAttribute("kind")], ...changed])}`;
    }

    // Takes the settings of such an address.
    take(said) {
      const taken = Object.entries(this.takes).map(([name, of]) => [name, said.has(name) ? of(said.get(name)) : undefined]);
      this.show({...this.first, ...Object.fromEntries(taken.filter(([, value]) => value !== undefined))});
    }

    // The settings, and the picture at once.
    show(settings) {
      Object.assign(this.settings, settings);
      this.draw();
    }

    // The size of the picture.
    reserve() {
      const {kind, picture, settings, width} = this;
      this.size = [width, Math.round(kind.height(width, settings))];
      picture.style.height = `${this.size[1]}px`;
      return this.size;
    }

    draw() {
      this.waiting = false;
      const {kind, picture, settings, width} = this;
      if (!width) return;
      const [, height] = this.reserve();
      if (this.drawing) picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      if (!kind.keeps) this.drawing?.replaceChildren();
      const {label, words} = kind.draw(this.drawing ?? picture, settings, this.size, this);
      picture.setAttribute("aria-label", label);
      this.words.hidden = !words;
      if (words && this.words.textContent !== words) this.words.textContent = words;
      for (const show of this.shows) show(settings);
    }
  }

  // A kind of view. Elements that wait for it begin.
  function define(name, kind) {
    kinds[name] = kind;
    for (const view of document.querySelectorAll(`pe-view[kind="${name}"]`)) view.connectedCallback();
  }

  customElements.define("pe-view", View);

  // Shows the view that the address names.
  function arrive(block) {
    const said = new URLSearchParams(location.hash.slice(1));
    const named = (view) => view.getAttribute("kind") === said.get("view");
    const view = [...document.querySelectorAll("pe-view:not([bare])")].find(named);
    if (!view?.kind) return;
    view.take(said);
    view.scrollIntoView({block});
  }
  addEventListener("load", () => arrive("center"));
  addEventListener("hashchange", () => arrive("nearest"));

  return {
    kinds, define, count, fixed, percent, degrees, html, svg, write, line, path, redBlue, magma, viridis, rgb, inkOn, tip,
    arc,
    arrow, ticks, frame, slider, choice, button, player, play, handle,
  };
})();
