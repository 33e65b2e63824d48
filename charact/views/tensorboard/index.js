// The Characterization tab: choose runs, and see one as in its report, or several side by side.
// The server escapes HTML fragments; all other text of runs is only set as textContent.

const STORE = `charact:${location.pathname}`;
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const MOST_COLUMNS = 8;

const state = {runs: [], chosen: [], search: "", drawing: 0};
const view = {};

function here(path) {
  return new URL(path, import.meta.url); // relative to this script, to respect --path_prefix
}

async function ask(path) {
  const response = await fetch(here(path));
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer?.error ?? `TensorBoard answered ${response.status} ${response.statusText}`);
  return answer;
}

function query(runs) {
  return runs.map((run) => `run=${encodeURIComponent(run.id)}`).join("&");
}

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

function loaded(node) {
  return new Promise((resolve, reject) => {
    node.onload = resolve;
    node.onerror = () => reject(new Error(`cannot load ${node.src ?? node.href}`));
    document.head.append(node);
  });
}

function letter(index) {
  return LETTERS[index % LETTERS.length];
}

function badge(index) {
  return make("span", {className: `tb-badge tb-run-${index % 6}`, textContent: letter(index)});
}

function message(kind, title, text) {
  const box = make("div", {className: `tb-message tb-${kind}`}, make("strong", {textContent: title}));
  if (text) box.append(make("p", {textContent: text}));
  if (kind === "error") box.setAttribute("role", "alert");
  return box;
}

// The sidebar: runs, newest first, and sections of the shown runs.

function remember() {
  localStorage.setItem(STORE, JSON.stringify(state.chosen));
}

function remembered() {
  try {
    const chosen = JSON.parse(localStorage.getItem(STORE));
    return Array.isArray(chosen) ? chosen : [];
  } catch {
    return []; // left there by an older version or another page
  }
}

function choose(id, chosen) {
  state.chosen = chosen ? [...state.chosen, id] : state.chosen.filter((other) => other !== id);
  remember();
  listRuns();
  draw();
}

function when(run) {
  if (run.started_s === null) return "start n/a (not recorded)";
  const time = new Date(run.started_s * 1000);
  return time.toLocaleString("en-GB", {day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit"});
}

function runEntry(run) {
  const index = state.chosen.indexOf(run.id);
  const box = make("input", {type: "checkbox", checked: index >= 0, disabled: run.error !== null, value: run.id});
  box.addEventListener("change", () => choose(run.id, box.checked));
  const name = make("span", {className: "tb-name", textContent: run.name});
  if (index >= 0 && state.chosen.length > 1) name.prepend(badge(index));
  const facts = [];
  if (run.error) {
    facts.push(make("span", {className: "tb-reason", textContent: `n/a (${run.error})`}));
  } else {
    // The cases of a watched program are known when it has ended.
    const cases = run.status === "in progress" && !run.num_cases ? [] : [`${run.num_cases} case${run.num_cases === 1 ? "" : "s"}`];
    const status = run.status === "complete" ? [] : [run.status];
    const line = [when(run), ...cases, ...status].join(" · ");
    facts.push(make("span", {textContent: line}), make("span", {textContent: run.machine}));
  }
  const label = make("label", {title: run.path}, box, make("span", {className: "tb-facts"}, name, ...facts));
  return make("li", {className: run.error ? "tb-unreadable" : ""}, label);
}

function listRuns() {
  const words = state.search.toLowerCase().split(/\s+/);
  const text = (run) => [run.name, run.path, run.machine, run.started, run.status].join(" ").toLowerCase();
  const found = state.runs.filter((run) => words.every((word) => text(run).includes(word)));
  const focused = document.activeElement?.value;
  view.runs.replaceChildren(...found.map(runEntry));
  if (state.runs.length && !found.length) view.runs.append(make("li", {className: "tb-none", textContent: "No run matches."}));
  if (focused) [...view.runs.querySelectorAll("input")].find((box) => box.value === focused)?.focus();
  view.count.textContent = state.chosen.length > 1 ? `${state.chosen.length} of ${state.runs.length} chosen` : `${state.runs.length}`;
}

function listSections(sections) {
  view.sections.replaceChildren(...sections.map(({id, title}) => {
    const link = make("a", {href: `#${id}`, textContent: title});
    link.dataset.section = id;
    return make("li", {}, link);
  }));
  view.nav.hidden = sections.length === 0;
  view.seen?.disconnect();
  view.seen = new IntersectionObserver(markSection, {root: view.main, rootMargin: "-15% 0px -70% 0px"});
  for (const section of view.main.querySelectorAll("section[id]")) view.seen.observe(section);
}

function markSection(entries) {
  for (const {target, isIntersecting} of entries) target.classList.toggle("tb-seen", isIntersecting);
  const first = view.main.querySelector("section.tb-seen")?.id;
  for (const link of view.sections.querySelectorAll("a")) link.classList.toggle("tb-current", link.dataset.section === first);
}

// The main column.

function fragment(html, prefix = "") {
  const holder = make("div", {className: "tb-fragment"});
  holder.innerHTML = html;
  // Several runs in one page: make the ids of each figure unique.
  for (const node of holder.querySelectorAll("[id]")) node.id = prefix + node.id;
  for (const node of holder.querySelectorAll("[*|href^='#']")) { // xlink:href too
    const link = [...node.attributes].find((attribute) => attribute.localName === "href");
    link.value = `#${prefix}${link.value.slice(1)}`;
  }
  return holder;
}

function section(id, title, ...content) {
  return make("section", {id, className: "ch-section"}, make("h2", {textContent: title}), ...content);
}

function column(run, index, content) {
  const head = make("header", {}, badge(index), make("span", {className: "tb-name", textContent: run.name}));
  head.append(make("span", {className: "tb-when", textContent: when(run)}));
  return make("article", {className: "tb-column"}, head, content);
}

function side(runs, answers) {
  const titles = new Map();
  for (const {sections} of answers) for (const {id, title} of sections ?? []) if (!titles.has(id)) titles.set(id, title);
  return [...titles].map(([id, title]) => {
    const columns = runs.map((run, index) => {
      const {sections, error} = answers[index];
      const part = sections?.find((candidate) => candidate.id === id);
      const reason = error ?? "this run has no such section";
      return column(run, index, part ? fragment(part.html, `run${index}-`) : message("note", `n/a (${reason})`));
    });
    return section(id, title, make("div", {className: "tb-columns"}, ...columns));
  });
}

function leftOut(number) {
  if (!number) return [];
  return [message("note", `The sections of ${number} more runs are left out.`,
    `The first ${MOST_COLUMNS} chosen runs are shown side by side; the comparison has all.`)];
}

async function sectionsOf(run, more = "") {
  try {
    return {sections: await ask(`./sections?${query([run])}${more}`)};
  } catch (error) {
    return {sections: null, error: error.message};
  }
}

async function comparisonOf(runs) {
  try {
    const sections = await ask(`./comparison?${query(runs)}`);
    return sections.map((part) => section(part.id, part.title, fragment(part.html)));
  } catch (error) {
    return [section("comparison", "Comparison", message("error", "These runs cannot be compared.", error.message))];
  }
}

async function content(runs) {
  const several = runs.length > 1;
  const drawn = runs.slice(0, MOST_COLUMNS); // the server caches sections, so that each run is rendered once
  const [answers, comparison] = await Promise.all([Promise.all(drawn.map((run) => sectionsOf(run))), several && comparisonOf(runs)]);
  if (several) return [...comparison, ...leftOut(runs.length - drawn.length), ...side(drawn, answers)];
  const [{sections, error}] = answers;
  if (error) return [message("error", `${runs[0].name} cannot be shown.`, error)];
  return sections.map((part) => section(part.id, part.title, fragment(part.html)));
}

async function draw() {
  const turn = ++state.drawing;
  const runs = state.chosen.map((id) => state.runs.find((run) => run.id === id));
  if (!runs.length) {
    show(state.runs.length
      ? message("note", "Choose a run.", "One run is shown as in its report; two or more are shown side by side.")
      : message("note", "No runs here yet.", "`charact profile resnet18` writes one; use --out with TensorBoard's log "
        + "directory, then press Refresh."));
    return;
  }
  view.progress.textContent = `Drawing ${runs.map((run) => run.name).join(", ")} …`;
  view.main.setAttribute("aria-busy", "true");
  if (runs.length === 1) await drawSummary(runs[0], turn);
  const drawn = await content(runs);
  if (turn === state.drawing) show(...drawn); // otherwise the choice has changed
}

// The first section is there long before the others, and answers most questions.
async function drawSummary(run, turn) {
  const {sections} = await sectionsOf(run, "&only_first");
  if (!sections || turn !== state.drawing) return;
  show(...sections.map((part) => section(part.id, part.title, fragment(part.html))));
  view.content.classList.add("tb-summary");
  view.main.setAttribute("aria-busy", "true");
}

function show(...nodes) {
  const top = view.main.scrollTop;
  view.filter.replaceChildren();
  view.content.replaceChildren(...nodes);
  view.content.classList.toggle("tb-several", state.chosen.length > 1);
  view.content.classList.remove("tb-summary");
  view.main.setAttribute("aria-busy", "false");
  window.charact.init(document.body);
  listSections(nodes.filter((node) => node.id).map((node) => ({id: node.id, title: node.firstChild.textContent})));
  view.main.scrollTop = top;
}

async function refresh() {
  view.progress.textContent = "Reading the runs …";
  view.main.setAttribute("aria-busy", "true");
  try {
    state.runs = await ask("./runs");
  } catch (error) {
    show(message("error", "The runs cannot be listed.", error.message));
    return;
  }
  const readable = state.runs.filter((run) => !run.error).map((run) => run.id);
  state.chosen = state.chosen.filter((id) => readable.includes(id));
  if (!state.chosen.length) state.chosen = readable.slice(0, 1);
  listRuns();
  await draw();
}

function frame() {
  view.count = make("span", {className: "tb-count"});
  view.search = make("input", {type: "search", placeholder: "Search runs", ariaLabel: "Search runs"});
  view.search.addEventListener("input", () => { state.search = view.search.value; listRuns(); });
  const button = make("button", {type: "button", textContent: "Refresh", title: "Look for new runs and draw again"});
  button.addEventListener("click", refresh);
  view.runs = make("ul", {className: "tb-runs"});
  view.filter = make("div", {className: "tb-filter"});
  view.filter.dataset.caseFilter = ""; // the report's script puts its filter of cases here
  view.sections = make("ol", {className: "tb-sections"});
  view.nav = make("nav", {hidden: true, ariaLabel: "Sections"}, make("h2", {textContent: "Sections"}), view.sections);
  view.progress = make("div", {className: "tb-progress"});
  view.progress.setAttribute("role", "status");
  view.content = make("div", {className: "tb-content"});
  view.main = make("main", {}, view.progress, view.content);
  const head = make("header", {}, make("h1", {}, "Runs ", view.count), button);
  document.body.append(make("aside", {}, head, view.search, view.runs, view.filter, view.nav), view.main);
}

// TensorBoard marks its dark mode on its own page, which holds this one in a frame.
function followTheme() {
  const outer = window.parent.document.body;
  const follow = () => {
    document.documentElement.dataset.theme = outer.classList.contains("dark-mode") ? "dark" : "light";
  };
  new MutationObserver(follow).observe(outer, {attributes: true, attributeFilter: ["class"]});
  follow();
}

export async function render() {
  followTheme();
  document.title = "Characterization";
  document.documentElement.lang = "en";
  document.querySelector("base")?.remove(); // TensorBoard's, which breaks links within the page
  const styles = ["./report.css", "./style.css"].map((path) => make("link", {rel: "stylesheet", href: here(path)}));
  await Promise.all([...styles, make("script", {src: here("./report.js")})].map(loaded));
  state.chosen = remembered();
  frame();
  await refresh();
}
