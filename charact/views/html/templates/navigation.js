// The page's address, theme and bar for narrow screens: what is shown can be linked to.
window.charact.addNavigation = (() => {
  const THEMES = {"": "Theme: system", light: "Theme: light", dark: "Theme: dark"};

  // The state after "#": case, the one that is shown alone, and section.
  const state = () => new URLSearchParams(location.hash.slice(1));

  function remember(changes) {
    const parameters = state();
    for (const [name, value] of Object.entries(changes)) {
      if (value) parameters.set(name, value);
      else parameters.delete(name);
    }
    const text = [...parameters].filter(([name]) => name === "case" || name === "section")
      .map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
    history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
  }

  // A page opened from a file may have no storage; then the theme lasts as long as the page.
  function storedTheme() {
    try { return localStorage.getItem("charact-theme") ?? ""; } catch { return ""; }
  }

  function storeTheme(name) {
    try { localStorage.setItem("charact-theme", name); } catch { /* as above */ }
  }

  function themeButton() {
    const button = document.createElement("button");
    const names = Object.keys(THEMES);
    let chosen = storedTheme();
    const apply = () => {
      if (chosen) document.documentElement.dataset.theme = chosen;
      else delete document.documentElement.dataset.theme;
      for (const each of document.querySelectorAll(".ch-theme")) each.textContent = THEMES[chosen];
    };
    Object.assign(button, {type: "button", className: "ch-theme", title: "Switch between the system’s, light and dark colors", onclick: () => {
      chosen = names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length];
      storeTheme(chosen);
      apply();
    }});
    button.textContent = THEMES[chosen] ?? THEMES[""];
    queueMicrotask(apply);
    return button;
  }

  function select(label, options, onchange) {
    const made = Object.assign(document.createElement("select"), {ariaLabel: label, onchange: () => onchange(made.value)});
    made.append(...options.map(([value, text]) => Object.assign(document.createElement("option"), {value, textContent: text})));
    return made;
  }

  const go = (id) => {
    remember({section: id});
    document.getElementById(id)?.scrollIntoView();
  };

  // Sections, cases and the theme in one row that stays in view, where the list of sections has no room.
  function addBar(article, nav, showCase) {
    const bar = document.createElement("div");
    const links = [...nav.querySelectorAll("a[href^='#']")].map((link) => [link.hash.slice(1), link.textContent]);
    const cards = [...article.querySelectorAll(".ch-card[data-case]")].map((card) => [card.dataset.case, card.querySelector("h3").textContent]);
    bar.className = "ch-top";
    bar.append(select("Section", links, go));
    if (cards.length > 1) {
      const cases = select("Case", [["", "All cases"], ...cards], showCase);
      article.addEventListener("filtered-by-case", (event) => { cases.value = event.detail; });
      bar.append(cases);
    }
    bar.append(themeButton());
    nav.append(themeButton());
    article.prepend(bar);
  }

  return (article, showCase) => {
    const nav = article.querySelector(".ch-nav");
    if (!nav) return;
    addBar(article, nav, showCase);
    article.addEventListener("filtered-by-case", (event) => remember({case: event.detail}));
    for (const link of nav.querySelectorAll("a[href^='#']")) {
      link.addEventListener("click", (event) => {
        if (!state().has("case")) return; // the link's own address is enough
        event.preventDefault();
        go(link.hash.slice(1));
      });
    }
    const [wanted, section] = [state().get("case"), state().get("section")];
    if (wanted && article.querySelector(`.ch-card[data-case="${CSS.escape(wanted)}"]`)) showCase(wanted);
    if (section && article.querySelector(`#${CSS.escape(section)}`)) go(section);
  };
})();
