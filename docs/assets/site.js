// Sets the mathematics: arithmatex leaves \(…\) and \[…\] in elements of its class.
for (const element of document.querySelectorAll(".arithmatex")) {
  const text = element.textContent.trim();
  katex.render(text.slice(2, -2), element, {displayMode: text.startsWith("\\["), throwOnError: true, strict: "error"});
}

// What may be wider than a phone scrolls by itself, so a keyboard must be able to reach it.
const WIDE = ".katex-display, div.arithmatex, .md-typeset__scrollwrap, .md-typeset pre > code";
function reachable() {
  for (const element of document.querySelectorAll(WIDE)) {
    if (element.scrollWidth > element.clientWidth) element.tabIndex = 0;
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
