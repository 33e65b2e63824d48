// The text of what is below the pointer, in figures and charts: one floating box, inside the window whatever clips them.
(() => {
  const tip = document.createElement("div");
  tip.className = "ch-tip";
  tip.hidden = true;

  function show(text, x, y) {
    if (!tip.isConnected) document.body.append(tip);
    tip.textContent = text;
    tip.hidden = !text;
    const above = y + 20 + tip.offsetHeight > innerHeight;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, above ? y - tip.offsetHeight - 10 : y + 18)}px`;
  }

  // A figure is drawn for two widths, with the same texts in the same order: only the large drawing has them.
  function inLargeDrawing(part) {
    const small = part.closest?.(".ch-small");
    if (!small) return part;
    const invisible = "rect[fill-opacity]", number = [...small.querySelectorAll(invisible)].indexOf(part);
    return number < 0 ? part : [...small.previousElementSibling.querySelectorAll(invisible)][number] ?? part;
  }

  // The text becomes an attribute, since the browser shows a <title> late, and would show it a second time.
  function textOf(target) {
    for (let node = inLargeDrawing(target); node && node.localName !== "svg"; node = node.parentNode) {
      const title = node.querySelector?.(":scope > title");
      if (title) {
        node.dataset.tip = title.textContent;
        node.setAttribute("aria-label", title.textContent);
        title.remove();
      }
      if (node.dataset?.tip) return node.dataset.tip;
    }
    return "";
  }

  document.addEventListener("pointermove", (event) => {
    const text = event.target.closest?.(".ch-figure svg, .ch-bar, .ch-chart svg") ? textOf(event.target) : "";
    if (text || !tip.hidden) show(text, event.clientX, event.clientY);
  });
  document.addEventListener("scroll", () => { tip.hidden = true; }, {capture: true, passive: true});
})();
