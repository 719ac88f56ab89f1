// The explorer: one set of settings for four views, kept in the address of the page.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const {geometric, sinusoidal, sinusoidalFloat32, shift, scalings} = posenc;
  const {controls, count, fixed, small, html, player, MAX_POSITION} = views;
  const root = document.querySelector(".explorer");
  const $ = (name) => document.getElementById(`explorer-${name}`);

  // ------------------------------------------------------------------------------------------- settings

  const LIMITS = {
    d: [4, 128],
    base: [10, 1e7],
    length: [8, 512],
    p: [0, MAX_POSITION],
    k: [-64, 64],
    factor: [1, 64],
    original: [512, 131072],
  };
  const CHOICES = {arithmetic: ["exact", "float32"], scaling: Object.keys(scalings).filter((name) => name !== "none")};
  const DEFAULTS = {
    d: 64,
    base: 10000,
    length: 128,
    p: 10,
    k: 5,
    factor: 8,
    original: 8192,
    arithmetic: "exact",
    scaling: "yarn",
  };
  const explorer = {settings: {...DEFAULTS}, set: (settings) => redraw(settings)};

  // Takes what is valid of "d=64&p=10"; limits the rest.
  function take(text) {
    const {settings} = explorer;
    for (const [name, given] of new URLSearchParams(text)) {
      if (CHOICES[name]?.includes(given)) settings[name] = given;
      if (!LIMITS[name] || given === "" || !Number.isFinite(Number(given))) continue;
      const [low, high] = LIMITS[name];
      const value = Math.min(Math.max(Number(given), low), high);
      settings[name] = name === "factor" ? value : name === "d" ? 2 * Math.round(value / 2) : Math.round(value);
    }
  }

  // What is not as it was at first goes into the address.
  function writeAddress() {
    const changed = Object.entries(explorer.settings).filter(([name, value]) => value !== DEFAULTS[name]);
    const query = new URLSearchParams(changed).toString();
    const current = location.hash.slice(1);
    if (query === current || !(query || current.includes("="))) return;
    history.replaceState(null, "", `${location.pathname}#${query}`); // without what a link from another page said
  }

  // A field for a position that no slider hits.
  function typed(view, form) {
    const box = html(form.lastChild, "span", {class: "explorer-typed"});
    html(box, "label", {for: "explorer-p-number"}, "or type it");
    const input = html(box, "input", {
      type: "number",
      id: "explorer-p-number",
      min: 0,
      max: MAX_POSITION,
      step: 1,
      inputmode: "numeric",
    });
    const show = ({p}) => {
      if (document.activeElement !== input) input.value = p;
    };
    input.addEventListener("input", () => {
      take(`p=${input.value}`);
      redraw();
    });
    input.addEventListener("blur", () => show(explorer.settings));
    return show;
  }

  const {d, base, length, p, k, arithmetic, scaling, factor, original} = controls;
  const FORMS = {main: [d, base, length, p, typed, k], arithmetic: [arithmetic], scaling: [scaling, factor, original]};
  const shows = Object.entries(FORMS).flatMap(([name, makers]) => makers.map((make) => make(explorer, $(name))));

  // ------------------------------------------------------------------------------------------- numbers

  const largest = (a, b) => a.reduce((most, value, j) => Math.max(most, Math.abs(value - b[j])), 0);

  function numbers() {
    const {settings} = explorer;
    const turns = geometric(settings.d, settings.base);
    const places = [settings.p, settings.p + settings.k, settings.k];
    const [here, there, offset] = places.map((position) => sinusoidal(position, turns));
    const [here32, there32, offset32] = places.map((position) => sinusoidalFloat32(position, turns));
    const moved = shift(here, offset);
    const differences = {
      difference: largest(moved, there),
      difference32: largest(shift(here32, offset32), there32),
      error32: largest(here32, here),
    };
    for (const [name, value] of Object.entries(differences)) $(name).textContent = small(value);
    $("numbers").innerHTML = here
      .map(
        (_, j) =>
          `<tr><th scope="row">${j}</th>` +
          `${[here, moved, there, there32].map((c) => `<td>${fixed(c[j], 6)}</td>`).join("")}</tr>`,
      )
      .join("");
    return differences;
  }

  // ------------------------------------------------------------------------------------------- the loop

  let settled;
  let waiting = false;

  function draw() {
    waiting = false;
    for (const show of shows) show(explorer.settings);
    for (const view of root.querySelectorAll("pe-view")) view.show({...explorer.settings, ahead: 0});
    const differences = numbers();
    clearTimeout(settled);
    if (!playing()) settled = setTimeout(settle, 500, differences);
  }

  // What needs no haste: the address, and a sentence for those who listen.
  function settle({difference, difference32}) {
    writeAddress();
    $("status").textContent =
      `Position ${count(explorer.settings.p)}: M k times P E of p differs from P E of p plus k by at most ` +
      `${small(difference)}; with textbook float32 by ${small(difference32)}.`;
  }

  function redraw(settings = explorer.settings) {
    explorer.settings = settings;
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  }

  // One position further; from the last one back to 0.
  function step() {
    explorer.settings.p = (explorer.settings.p + 1) % (MAX_POSITION + 1);
    draw();
  }

  const playing = player($("play"), {
    rate: 3, // positions a second
    step,
    between: (ahead) => $("clocks").show({ahead}), // how far the hands are beyond p
    rest: draw,
    once: "Next position",
  });

  root.hidden = false;
  take(location.search.slice(1)); // of a link from another page
  take(location.hash.slice(1));
  root.addEventListener("submit", (event) => event.preventDefault());
  root.addEventListener("click", ({target}) => {
    if (!target.dataset.set) return;
    take(target.dataset.set);
    redraw();
  });
  addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return;
    explorer.settings = {...DEFAULTS};
    take(location.hash.slice(1));
    redraw();
  });
  draw();
});
