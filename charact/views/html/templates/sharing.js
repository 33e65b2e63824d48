// Saving figures as SVG and tables as CSV.
window.charact.addSaving = (() => {
  function save(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], {type}));
    Object.assign(document.createElement("a"), {href: address, download: name}).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  const fileName = (title, end) => `${title.trim().replace(/[^\p{L}\p{N}.-]+/gu, "-").slice(0, 80)}.${end}`;

  function button(text, label, onclick) {
    return Object.assign(document.createElement("button"), {type: "button", className: "ch-save", textContent: text, title: label, ariaLabel: label, onclick});
  }

  // Colors of the page's theme become those of paper, which each variable has as its fallback.
  function saveFigure(figure) {
    const drawn = [...figure.querySelectorAll("svg")].find((svg) => svg.clientWidth) ?? figure.querySelector("svg");
    const copy = drawn.cloneNode(true);
    const [, , width, height] = drawn.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    const text = new XMLSerializer().serializeToString(copy).replace(/var\(--[a-z]+, (#[0-9a-f]+)\)/g, "$1");
    save(fileName(figure.dataset.title, "svg"), "image/svg+xml", text);
  }

  // Numbers are saved as they are sorted: in base units, with all digits.
  function csv(table) {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text).replaceAll("\u00a0", " ");
    const value = (cell) => (cell.classList.contains("ch-num") && cell.dataset.sort) || cell.textContent.trim();
    const lines = [[...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim()),
      ...[...table.tBodies[0].rows].map((row) => [...row.cells].map(value))];
    return lines.map((line) => line.map(quoted).join(",")).join("\n") + "\n";
  }

  return (root) => {
    for (const figure of root.querySelectorAll(".ch-figure[data-title]")) {
      figure.append(button("SVG", `Save “${figure.dataset.title}” as SVG`, () => saveFigure(figure)));
    }
    for (const table of root.querySelectorAll("table[data-sortable]")) {
      const title = table.caption.textContent;
      const holder = Object.assign(document.createElement("div"), {className: "ch-saves"});
      holder.append(button("CSV", `Save “${title}” as CSV, in base units`, () => save(fileName(title, "csv"), "text/csv", csv(table))));
      table.parentNode.after(holder);
    }
  };
})();
