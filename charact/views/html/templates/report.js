// Sorting, filtering and copying in a report. The TensorBoard tab loads this file and calls init on its own content.
"use strict";

window.charact = (() => {
  const MIN_SEARCHED_ROWS = 13;

  function sortValue(row, column) {
    const cell = row.cells[column];
    if (cell.dataset.sort === undefined) return null;
    const value = cell.dataset.sort || cell.textContent;
    return value === "" || Number.isNaN(Number(value)) ? value : Number(value);
  }

  function compare(left, right) {
    if (typeof left === "number" && typeof right === "number") return left - right;
    return String(left).localeCompare(String(right), undefined, {numeric: true});
  }

  // Sort numbers in descending order first, text in ascending order; missing values are always last.
  function sort(table, header) {
    const column = header.cellIndex;
    const before = header.getAttribute("aria-sort");
    const first = header.classList.contains("ch-num") ? "descending" : "ascending";
    const opposite = before === "ascending" ? "descending" : "ascending";
    const direction = before ? opposite : first;
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    const sign = direction === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].map((row) => [sortValue(row, column), row]);
    rows.sort(([left], [right]) => {
      if (left === null || right === null) return (left === null) - (right === null);
      return sign * compare(left, right);
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function makeSortable(table) {
    for (const header of table.tHead.rows[0].cells) {
      header.querySelector("button").addEventListener("click", () => sort(table, header));
    }
  }

  // Show only what belongs to a case whose name contains every word; returns the number of cases shown and of all.
  function filter(scope, text, exactly = "") {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const all = new Set();
    const shown = new Set();
    for (const element of scope.querySelectorAll("[data-case]")) {
      const name = element.dataset.case;
      const matches = exactly ? name === exactly : words.every((word) => name.toLowerCase().includes(word));
      element.hidden = !matches;
      all.add(name);
      if (matches) shown.add(name);
    }
    for (const group of scope.querySelectorAll("[data-tabs]")) group.dispatchEvent(new Event("filtered"));
    return [shown.size, all.size];
  }

  function button(text, title, onClick) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.title = title;
    made.addEventListener("click", onClick);
    return made;
  }

  // A button for each case that has a card: it shows only this case, and all again when pressed once more.
  function caseButtons(scope, clear) {
    const cards = [...scope.querySelectorAll(".ch-card[data-case]")].slice(0, MOST_BUTTONS);
    const buttons = cards.map((card) => {
      const name = card.dataset.case;
      const short = card.querySelector("h3").textContent;
      const made = button(short, `Show only ${name}`, () => {
        const pressed = made.getAttribute("aria-pressed") === "true";
        clear();
        for (const other of buttons) other.setAttribute("aria-pressed", "false");
        made.setAttribute("aria-pressed", String(!pressed));
        filter(scope, "", pressed ? "" : name);
        scope.dispatchEvent(new CustomEvent("filtered-by-case", {detail: pressed ? "" : name}));
      });
      made.dataset.shows = name;
      made.setAttribute("aria-pressed", "false");
      return made;
    });
    return buttons;
  }

  function addFilter(holder, scope) {
    const input = document.createElement("input");
    const count = document.createElement("output");
    const buttons = caseButtons(scope, () => { input.value = count.textContent = ""; });
    input.type = "search";
    input.placeholder = "Filter cases";
    input.setAttribute("aria-label", "Show only cases, rows and figures whose case contains these words");
    input.addEventListener("input", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", "false");
      scope.dispatchEvent(new CustomEvent("filtered-by-case", {detail: ""}));
      const [shown, all] = filter(scope, input.value);
      count.textContent = input.value.trim() ? `${shown} of ${all} cases` : "";
    });
    holder.classList.add("ch-filter");
    holder.replaceChildren(...buttons, input, count);
  }

  // Show one case of an article alone, or all for an empty name, as its button does.
  function showCase(scope, name) {
    const pressed = scope.querySelector(".ch-filter button[aria-pressed='true']");
    const wanted = [...scope.querySelectorAll(".ch-filter button")].find((each) => each.dataset.shows === name);
    if (wanted !== pressed) (wanted ?? pressed)?.click();
  }

  const MOST_BUTTONS = 12;

  // Mark the section in view in the list of sections.
  function markSections(nav) {
    const links = new Map([...nav.querySelectorAll("a[href^='#']")].map((link) => [link.hash.slice(1), link]));
    const seen = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const {target, isIntersecting} of entries) seen[isIntersecting ? "add" : "delete"](target.id);
      const first = [...links.keys()].find((id) => seen.has(id));
      for (const [id, link] of links) link.classList.toggle("ch-current", id === first);
    }, {rootMargin: "-10% 0px -65% 0px"});
    for (const id of links.keys()) {
      const section = document.getElementById(id);
      if (section) observer.observe(section);
    }
  }

  // A row is shown if its text contains every word of the search, and its case passes the filter of cases.
  function addSearch(table) {
    const input = document.createElement("input");
    const count = document.createElement("output");
    const holder = document.createElement("div");
    const rows = [...table.tBodies[0].rows];
    input.type = "search";
    input.placeholder = "Search rows";
    input.setAttribute("aria-label", `Show only rows of “${table.caption.textContent}” that contain these words`);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of rows) {
        row.classList.toggle("ch-unmatched", !words.every((word) => row.textContent.toLowerCase().includes(word)));
      }
      const number = rows.filter((row) => !row.classList.contains("ch-unmatched")).length;
      count.textContent = words.length ? `${number} of ${rows.length} rows` : "";
    });
    holder.className = "ch-filter ch-search";
    holder.append(input, count);
    table.parentNode.before(holder);
  }

  // Of blocks of several cases, show one at a time: the chosen one, or the first that the filter of cases leaves.
  function addTabs(group) {
    const blocks = [...group.children];
    const bar = document.createElement("div");
    const buttons = blocks.map((block) => {
      const title = block.querySelector("h3");
      const made = button(title.textContent, `Show ${block.dataset.case}`, () => choose(block));
      title.classList.add("ch-off");
      made.setAttribute("role", "tab");
      return made;
    });
    function choose(chosen) {
      blocks.forEach((block, number) => {
        block.classList.toggle("ch-off", block !== chosen);
        buttons[number].setAttribute("aria-selected", String(block === chosen));
      });
    }
    group.addEventListener("filtered", () => {
      blocks.forEach((block, number) => { buttons[number].hidden = block.hidden; });
      const chosen = blocks.find((block) => !block.classList.contains("ch-off"));
      if (chosen.hidden) choose(blocks.find((block) => !block.hidden) ?? chosen);
    });
    bar.className = "ch-tools";
    bar.setAttribute("role", "tablist");
    bar.append(...buttons);
    group.prepend(bar);
    choose(blocks[0]);
  }

  // A file opened without a server may have no clipboard: then the command is selected, ready to be copied.
  function addCopy(command) {
    const code = command.querySelector("code");
    const copy = button("Copy", "Copy the command", async () => {
      getSelection().selectAllChildren(code);
      try {
        await navigator.clipboard.writeText(code.textContent);
        copy.textContent = "Copied";
      } catch {
        copy.textContent = "Selected";
      }
    });
    command.append(copy);
  }

  function init(root) {
    root.querySelectorAll(".ch-command").forEach(addCopy);
    root.querySelectorAll("table[data-sortable]").forEach(makeSortable);
    root.querySelectorAll(".ch-nav").forEach(markSections);
    for (const table of root.querySelectorAll("table[data-sortable]")) {
      if (table.tBodies[0].rows.length >= MIN_SEARCHED_ROWS) addSearch(table);
    }
    window.charact.drawCharts(root);
    root.querySelectorAll("[data-tabs]").forEach(addTabs);
    for (const holder of root.querySelectorAll("[data-case-filter]")) {
      const scope = holder.closest("[data-run]") ?? root;
      const cases = new Set([...scope.querySelectorAll("[data-case]")].map((element) => element.dataset.case));
      if (cases.size > 1) addFilter(holder, scope);
    }
    window.charact.addSaving(root);
    if (!root.classList.contains("ch-page")) return; // a part of another page
    for (const article of root.querySelectorAll("[data-run]")) {
      window.charact.addNavigation(article, (name) => showCase(article, name));
    }
  }

  return {init};
})();
