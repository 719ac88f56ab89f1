"use strict";
// What may be wider than a phone, or is long, scrolls by itself, so a keyboard must be able to reach it.
const WIDE = ".katex-display, div.arithmatex, .md-typeset__scrollwrap, .md-typeset pre > code, .pe-types";
function reachable() {
  for (const element of document.querySelectorAll(WIDE)) {
    const long = element.matches(".pe-types") && element.scrollHeight > element.clientHeight;
    if (long || element.scrollWidth > element.clientWidth) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);

// The theme leaves its search without a name, and makes a landmark of every block's copy button.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
new MutationObserver(() => {
  for (const buttons of document.querySelectorAll(".md-code__nav:not([role])")) buttons.setAttribute("role", "none");
}).observe(document.querySelector(".md-content"), {childList: true, subtree: true});

// A long list, such as the types of models, with a box that hides the lines without what is typed.
const lists = document.querySelectorAll(".pe-types");
if (lists.length) {
  const form = document.createElement("form");
  form.className = "pe-filter";
  form.innerHTML = '<label>Filter <input type="search" autocomplete="off" spellcheck="false"></label> <output></output>';
  lists[0].before(form);
  const lines = [...lists].flatMap((list) => [...list.querySelectorAll("tbody tr, li")]);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    const typed = form.querySelector("input").value.trim().toLowerCase();
    for (const line of lines) line.hidden = !line.textContent.toLowerCase().includes(typed);
    for (const list of lists) for (const name of list.querySelectorAll("li code")) {
      name.classList.toggle("pe-found", typed !== "" && name.textContent.toLowerCase().includes(typed));
    }
    const shown = lines.filter((line) => !line.hidden).length;
    form.querySelector("output").textContent = typed && `${shown} of ${lines.length} lines`;
  });
}

// Pictures wait until they are near the window; paper has no window.
addEventListener("beforeprint", () => {
  for (const image of document.querySelectorAll("img[loading]")) image.loading = "eager";
});
