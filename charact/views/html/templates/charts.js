// Flame graphs and timelines: boxes in rows, with zoom by click, wheel, buttons and keys.
window.charact.drawCharts = (() => {
  const ROW = 22, HEADING = 18, RULER = 20, STEPS = 1e6, NARROWEST = 20, CHARACTER = 6.4, SHORTEST_LABEL = 6;
  const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];

  const BINARY_PREFIXES = ["P", "T", "G", "M", "K"].map((letter, at) => [1024 ** (5 - at), `${letter}i`]).concat([[1, ""]]);

  function quantity(value, unit) {
    const prefixes = unit === "B" ? BINARY_PREFIXES : PREFIXES;
    const [factor, prefix] = prefixes.find(([least]) => value >= 0.9995 * least) ?? prefixes.at(-1);
    return `${Number((value / factor).toPrecision(3))} ${prefix}${unit}`;
  }

  function make(tag, attributes, ...children) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const lines = (text) => (text ? text.split("\n") : []);
  class Chart {
    constructor(holder) {
      this.texts = holder.dataset.texts.split("\n");
      this.colors = holder.dataset.colors.split("\n").map((line) => line.split(" "));
      this.bar = document.createElement("div");
      this.bar.className = "ch-tools";
      const graphs = [...holder.querySelectorAll("[data-graph]")];
      const button = (text, label, onclick) => {
        const node = document.createElement("button");
        this.bar.append(Object.assign(node, {type: "button", textContent: text, title: label, ariaLabel: label || text, onclick}));
        return node;
      };
      const named = (graphs.length > 1 ? graphs : []).map((graph) => [button(graph.dataset.graph, "", () => this.choose(graph)), graph]);
      this.press = (chosen) => named.forEach(([node, graph]) => { node.ariaPressed = graph === chosen; });
      button("−", "Zoom out", () => this.zoom(2));
      button("+", "Zoom in", () => this.zoom(0.5));
      button("←", "Move left", () => this.pan(-0.3));
      button("→", "Move right", () => this.pan(0.3));
      button("Show all", "", () => this.view(0, STEPS));
      this.search = Object.assign(document.createElement("input"), {type: "search", placeholder: "Search", oninput: () => this.highlight(),
        ariaLabel: "Highlight boxes whose name contains these words"});
      this.output = document.createElement("output");
      this.svg = make("svg", {tabindex: 0, role: "application", "aria-label": `${holder.dataset.chart}. Arrow keys choose a `
        + "box, Enter zooms into it, Escape shows all, plus and minus zoom, Shift with an arrow key moves."});
      this.bar.append(this.search, this.output);
      holder.append(this.bar, this.svg);
      this.svg.onkeydown = (event) => this.key(event);
      this.svg.onclick = (event) => {
        const number = event.target.closest("[data-box]")?.dataset.box;
        if (number && !this.dragged) this.choice(this.boxes[number], true);
      };
      this.svg.addEventListener("wheel", (event) => this.wheel(event), {passive: false});
      this.svg.onpointerdown = (event) => { this.from = [event.clientX, this.left]; this.dragged = false; };
      this.svg.onpointermove = (event) => this.drag(event);
      this.choose(graphs[0]);
      new ResizeObserver(() => this.draw()).observe(holder);
    }

    choose(graph) {
      const {unit, total, share, tracks, boxes} = graph.dataset;
      this.tracks = lines(tracks).map((line) => [parseInt(line), line.slice(line.indexOf(" ") + 1)]);
      this.boxes = lines(boxes).map((line) => {
        const [row, start, length, color, name, detail] = line.split(" ").map(Number);
        const size = `${quantity(length / STEPS * total, unit)}, ${Number((length / STEPS * 100).toPrecision(3))} % ${share}`;
        const text = [this.texts[name], this.texts[detail], size].filter(Boolean).join("\n");
        return {row, start, end: start + length, color: this.colors[color], name: this.texts[name], text};
      });
      [this.unit, this.total, this.share] = [unit, Number(total), share];
      this.top = (row) => RULER + row * ROW + HEADING * this.tracks.filter(([first]) => first <= row).length;
      this.chosen = null;
      this.press(graph);
      this.highlight();
      this.view(0, STEPS);
    }

    // Dim the boxes whose name does not contain every word of the search; say how many do and how much of the whole they are.
    highlight() {
      const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const box of this.boxes) box.dimmed = words.length > 0 && !words.every((word) => box.name.toLowerCase().includes(word));
      const found = words.length ? this.boxes.filter((box) => !box.dimmed) : [];
      // A box below another found one is a part of it.
      const outer = found.filter((box) => !found.some((other) => other.row < box.row && other.start <= box.start && other.end >= box.end));
      const steps = outer.reduce((sum, box) => sum + box.end - box.start, 0);
      this.output.textContent = words.length ? `${found.length} found, ${quantity(steps / STEPS * this.total, this.unit)}` : "";
      if (this.width) this.draw();
    }

    // The position of ticks at 1, 2 or 5 times a power of ten, about one per 100 px, and their texts.
    ruler(wide) {
      const visible = this.width / STEPS * this.total, from = this.left / STEPS * this.total, least = visible * 100 / wide;
      const power = 10 ** Math.floor(Math.log10(least)), step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= least);
      const marks = [];
      for (let at = Math.ceil(from / step); at * step <= from + visible; at++) {
        const x = (at * step - from) / visible * wide;
        marks.push(make("line", {x1: x, x2: x, y1: RULER - 4, y2: "100%", class: "ch-tick"}),
          make("text", {x: x + 3, y: RULER - 7, class: "ch-tick"}, at ? quantity(at * step, this.unit) : "0"));
      }
      return marks;
    }

    // Show a part of the whole, from `left` on.
    view(left, width) {
      this.width = Math.min(STEPS, Math.max(NARROWEST, width));
      this.left = Math.min(STEPS - this.width, Math.max(0, left));
      this.draw();
    }

    zoom(factor, at = 0.5) { this.view(this.left + at * this.width * (1 - factor), this.width * factor); }
    pan(share) { this.view(this.left + share * this.width, this.width); }

    choice(box, zooms) {
      this.chosen = box;
      this.output.textContent = box.text.replaceAll("\n", " · ");
      if (zooms) this.view(box.start, box.end - box.start);
      else if (box.end <= this.left || box.start >= this.left + this.width) this.view(box.start - this.width / 2, this.width);
      else this.draw();
    }

    wheel(event) {
      const zooms = event.ctrlKey || event.metaKey, across = event.deltaX || (event.shiftKey ? event.deltaY : 0);
      if (!zooms && !across) return; // the page scrolls
      event.preventDefault();
      if (zooms) this.zoom(Math.exp(event.deltaY / 300), event.offsetX / this.svg.clientWidth);
      else this.pan(across / 1000);
    }

    drag(event) {
      if (!(event.buttons & 1) || !this.from) return;
      const moved = event.clientX - this.from[0];
      this.dragged ||= Math.abs(moved) > 4;
      if (this.dragged) this.view(this.from[1] - moved / this.svg.clientWidth * this.width, this.width);
    }

    key(event) {
      const across = {ArrowLeft: -1, ArrowRight: 1}[event.key] ?? 0, down = {ArrowUp: -1, ArrowDown: 1}[event.key] ?? 0;
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.shiftKey && across) this.pan(across * 0.3);
      else if (across || down) this.choice(this.neighbor(across, down) ?? this.chosen, false);
      else if (event.key === "Enter" && this.chosen) this.choice(this.chosen, true);
      else if (event.key === "Escape") this.view(0, STEPS);
      else if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? 0.5 : 2);
      else return;
      event.preventDefault();
    }

    // The next box of the row, or the first one in the nearest row above or below that is at the same place.
    neighbor(across, down) {
      const from = this.chosen;
      if (!from) return this.boxes[0];
      const near = this.boxes.filter((box) => (across ? box.row === from.row && (box.start - from.start) * across > 0
        : (box.row - from.row) * down > 0 && box.end > from.start && box.start < from.end));
      return near.sort((one, other) => (one.row - other.row) * down || (one.start - other.start) * (across || 1))[0];
    }

    draw() {
      const wide = this.svg.clientWidth, scale = wide / this.width;
      if (!wide) return; // hidden
      const drawn = this.ruler(wide);
      drawn.push(...this.tracks.map(([row, name]) => make("text", {x: 2, y: this.top(row) - 5, class: "ch-track"}, name)));
      this.boxes.forEach((box, number) => {
        const left = Math.max(0, (box.start - this.left) * scale), y = this.top(box.row);
        const width = Math.min(wide, (box.end - this.left) * scale) - left;
        if (width < 0.2) return;
        const [fill, ink] = box.color;
        const rectangle = {x: left.toFixed(1), y, width: Math.max(0.6, width - 0.6).toFixed(1), height: ROW - 2};
        const group = make("g", {"data-box": number, "data-tip": box.text, class: box === this.chosen ? "ch-chosen" : box.dimmed ? "ch-dimmed" : ""},
          make("rect", fill ? {...rectangle, style: `fill:${fill}`} : rectangle));
        const room = Math.floor((width - 6) / CHARACTER);
        const name = box.name.length > room ? box.name.replace(/^(\w+::|.*\.)(?=\w+$)/, "") : box.name;
        const text = name.length > room ? `${name.slice(0, room - 1)}…` : name;
        if (name.length <= room || room >= SHORTEST_LABEL) group.append(make("text", {x: left + 3, y: y + 14, ...(ink && {style: `fill:${ink}`})}, text));
        drawn.push(group);
      });
      const bottom = this.top(Math.max(0, ...this.boxes.map((box) => box.row))) + ROW;
      this.svg.setAttribute("viewBox", `0 0 ${wide} ${bottom}`);
      this.svg.replaceChildren(...drawn);
    }
  }

  return (root) => root.querySelectorAll("[data-chart]").forEach((holder) => new Chart(holder));
})();
