"use strict";
(() => {
  const views = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");

  // Everything is set as text, never as markup: labels and token text come from strangers.
  function element(tag, text, parent) {
    const made = document.createElement(tag);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }
  // `at` is where the pointer is, or the middle of what the keyboard chose.
  function showTip(at, title, rows) {
    tip.replaceChildren();
    element("b", title, tip);
    const body = element("tbody", null, element("table", null, tip));
    for (const row of rows) {
      const line = element("tr", null, body);
      for (const cell of row) element("td", cell, line);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = at.clientX + 16 + box.width > innerWidth ? at.clientX - box.width - 14 : at.clientX + 16;
    const top = at.clientY + 18 + box.height > innerHeight ? at.clientY - box.height - 14 : at.clientY + 18;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${Math.max(6, top)}px`;
  }
  function hideTip() { tip.hidden = true; }

  function decode(text, kind) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new kind(bytes.buffer);
  }
  function onScreen(svg, x, y) {
    const point = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
    return { clientX: point.x, clientY: point.y };
  }
  // Arrow keys move a cell; `show` says what is there. Other keys stay the browser's.
  function withKeys(target, columns, rows, show, leave) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    let [column, row, started] = [0, 0, false];
    target.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return leave();
      const move = moves[event.key];
      if (!move || (rows === 1 && move[1])) return;
      event.preventDefault();
      if (started) [column, row] = [column + move[0], row + move[1]];
      started = true;
      column = Math.min(Math.max(column, 0), columns - 1);
      row = Math.min(Math.max(row, 0), rows - 1);
      show(column, row);
    });
    target.addEventListener("blur", leave);
  }
  function inSvg(svg, event) {
    return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  }
  function describe(value) {
    if (Number.isNaN(value)) return "NaN in a row";
    if (value === -1) return "differs, size not known";
    if (value === -2) return "not computed or not comparable";
    if (value === -3) return "equal, or not computed";
    if (value === 0) return "equal";
    return value < 1e-30 ? "bits differ, below the sketch's resolution" : value.toExponential(3);
  }

  function watchMap(map, sites) {
    const svg = document.getElementById(map.id);
    const values = decode(map.values, Float32Array);
    const worst = map.worst ? decode(map.worst, Int16Array) : null;
    const hover = svg.querySelector(".hover");
    const find = (edges, size, at) => edges.findIndex((edge) => at >= edge && at < edge + size);
    const leave = () => { hideTip(); hover.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", leave);
    const show = (column, row, at) => {
      const cell = row * map.x.length + column;
      hover.setAttribute("x", map.x[column]);
      hover.setAttribute("y", map.y[row]);
      hover.setAttribute("visibility", "visible");
      const rows = [["", map.columns[column]], ["relative drift", describe(values[cell])]];
      if (worst && values[cell] > 0) rows.push(["largest at", sites[worst[cell]]]);
      showTip(at, map.rows[row], rows);
    };
    svg.addEventListener("pointermove", (event) => {
      const point = inSvg(svg, event);
      const column = find(map.x, map.w, point.x);
      const row = find(map.y, map.h, point.y);
      if (column < 0 || row < 0) return leave();
      show(column, row, event);
    });
    withKeys(svg, map.x.length, map.y.length, (column, row) => show(column, row, onScreen(svg, map.x[column] + map.w, map.y[row] + map.h)), leave);
  }

  function watchPlot(plot) {
    const svg = document.getElementById(plot.id);
    const hover = svg.querySelector(".hover");
    const leave = () => { hideTip(); hover.setAttribute("visibility", "hidden"); };
    svg.addEventListener("pointerleave", leave);
    const show = (index, at) => {
      hover.setAttribute("transform", `translate(${plot.left + (index + 0.5) * plot.pitch} 0)`);
      hover.setAttribute("visibility", "visible");
      const first = plot.steps[index];
      const title = plot.width > 1 ? `steps ${first}–${first + plot.width - 1}` : `step ${first}`;
      showTip(at, title, [["margin in A", plot.a[index]], ["margin in B", plot.b[index]], ["largest difference", plot.d[index]]]);
    };
    svg.addEventListener("pointermove", (event) => {
      const index = Math.floor((inSvg(svg, event).x - plot.left) / plot.pitch);
      if (index < 0 || index >= plot.steps.length) return leave();
      show(index, event);
    });
    withKeys(svg, plot.steps.length, 1, (index) => show(index, onScreen(svg, plot.left + (index + 1) * plot.pitch, 40)), leave);
  }

  function watchTokens(section, tokens) {
    let lit = [];
    const leave = () => { hideTip(); for (const item of lit) item.classList.remove("on"); lit = []; };
    const show = (token, at) => {
      leave();
      const position = Number(token.dataset.p);
      const i = position - tokens.first;
      lit = [...section.querySelectorAll(`.t[data-p="${position}"]`)];
      for (const item of lit) item.classList.add("on");
      const shown = (value) => (value === null || value === undefined ? "–" : String(value));
      const step = tokens.step[i];
      const title = step === null ? `position ${position}, prompt` : `step ${step}, position ${position}`;
      const rows = [["", "A", "B"], ["token id", shown(tokens.ida[i]), shown(tokens.idb[i])]];
      if (tokens.pa[i] !== null || tokens.pb[i] !== null) rows.push(["probability", shown(tokens.pa[i]), shown(tokens.pb[i])]);
      if (tokens.ma[i] !== null || tokens.mb[i] !== null) rows.push(["margin", shown(tokens.ma[i]), shown(tokens.mb[i])]);
      if (tokens.d[i] !== null) rows.push(["drift", tokens.d[i], ""]);
      showTip(at, title, rows);
    };
    section.addEventListener("pointerover", (event) => {
      const token = event.target.closest(".t");
      if (token) show(token, event);
      else leave();
    });
    section.addEventListener("pointerleave", leave);
    for (const text of section.querySelectorAll(".text")) {
      const items = [...text.querySelectorAll(".t")];
      const middle = (item) => { const box = item.getBoundingClientRect(); return { clientX: box.right, clientY: box.bottom }; };
      if (items.length) withKeys(text, items.length, 1, (index) => show(items[index], middle(items[index])), leave);
    }
  }

  const sections = [...document.querySelectorAll(".pair")];
  views.forEach((view, index) => {
    watchTokens(sections[index], view.tokens);
    for (const map of view.maps) watchMap(map, view.sites);
    if (view.plot) watchPlot(view.plot);
  });

  const buttons = [...document.querySelectorAll("button[data-show]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      for (const section of sections) section.hidden = section.id !== `pair-${button.dataset.show}`;
    });
  }

  for (const button of document.querySelectorAll(".copy")) {
    const code = button.previousElementSibling;
    button.hidden = false;
    button.setAttribute("aria-label", "copy the command");
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        // A page without the clipboard's permission can still copy what is selected.
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "copied" : "selected";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  // The button says what it does.
  const nameTheme = () => { theme.textContent = isDark() ? "light theme" : "dark theme"; };
  theme.hidden = false;
  theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); });
  system.addEventListener("change", nameTheme);
  nameTheme();

  // A link to what is folded unfolds it.
  function unfold() {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (!target) return;
    for (const item of target.querySelectorAll("details.fold")) item.open = true;
    target.scrollIntoView();
  }
  addEventListener("hashchange", unfold);
  for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", () => setTimeout(unfold));
  unfold();

  // Paper cannot be unfolded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.print:not([open])")];
    for (const item of opened) item.open = true;
  });
  addEventListener("afterprint", () => { for (const item of opened) item.open = false; });

  for (const table of document.querySelectorAll(".sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    const key = (row, at) => {
      const cell = row.cells[at];
      return cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v;
    };
    heads.forEach((head, at) => {
      const numeric = head.classList.contains("n");
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") !== "descending" && (numeric || head.hasAttribute("aria-sort"));
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => (numeric ? Number(key(row, at).replaceAll(",", "").replace("–", "-1")) || 0 : key(row, at));
        const rows = [...table.tBodies[0].rows];
        rows.sort((left, right) => {
          const [x, y] = [value(left), value(right)];
          return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
        });
        table.tBodies[0].append(...rows);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }
})();
