(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const tip = document.getElementById("tip");
  root.classList.add("js");

  // Colours: the system's until the reader chooses.
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remember = (name) => { try { localStorage.setItem("fedsieve-theme", name); } catch { /* private */ } };
  const remembered = () => { try { return localStorage.getItem("fedsieve-theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const label = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
  };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    label();
  });
  system.addEventListener("change", label);
  label();

  // Which score, which runs.
  const choose = (which) => {
    all(".choice").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.show === which)));
    all("[data-panel]").forEach((panel) => { panel.hidden = panel.dataset.panel !== which; });
  };
  all(".choice").forEach((button) => button.addEventListener("click", () => choose(button.dataset.show)));
  if (all(".choice").length) choose(all(".choice")[0].dataset.show);
  all("[data-toggle]").forEach((button) => button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(isOn));
    all(`.picture g[data-run="${button.dataset.toggle}"]`).forEach((g) => g.classList.toggle("off", !isOn));
  }));

  // Details: all at once, and those a link or a printer asks for.
  const parts = all("details.part");
  const openAll = document.getElementById("open");
  const unfold = (isOpen) => parts.forEach((part) => { part.open = isOpen; });
  openAll.addEventListener("click", () => {
    const isOpen = openAll.getAttribute("aria-pressed") !== "true";
    openAll.setAttribute("aria-pressed", String(isOpen));
    openAll.textContent = isOpen ? "Close all" : "Open all";
    unfold(isOpen);
  });
  const asked = () => parts.forEach((part) => { if (`#${part.id}` === location.hash) part.open = true; });
  addEventListener("hashchange", asked);
  addEventListener("beforeprint", () => unfold(true));
  asked();

  // Copying, also where the clipboard is not to be had.
  all("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));

  // Words at a point.
  let shown = null;
  const hide = () => {
    tip.hidden = true;
    shown?.classList.remove("on");
    shown = null;
    all(".cursor").forEach((cursor) => cursor.setAttribute("visibility", "hidden"));
  };
  const show = (text, box) => {
    tip.textContent = text;
    tip.hidden = false;
    const own = tip.getBoundingClientRect();
    const left = box.left + box.width / 2 - own.width / 2;
    const above = box.top - own.height - 10;
    tip.style.left = `${Math.max(6, Math.min(left, root.clientWidth - own.width - 6))}px`;
    tip.style.top = `${above < 4 ? box.bottom + 12 : above}px`;
  };
  const select = (point) => {
    hide();
    shown = point;
    point.classList.add("on");
    show(point.dataset.tip, point.getBoundingClientRect());
  };
  const nearest = (picture, event) => {
    let found = null, least = 30;
    for (const point of all(".pt", picture)) {
      const box = point.getBoundingClientRect();
      if (!box.width && !box.height) continue;
      const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const away = Math.hypot(dx, dy);
      if (away < least) [found, least] = [point, away];
    }
    return found;
  };
  all(".pt > title").forEach((title) => {  // the words move out, or the browser shows them twice
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  });
  all(".picture:not(.heat)").forEach((picture) => {
    const follow = (event) => {
      const point = nearest(picture, event);
      if (point) select(point); else hide();
    };
    picture.addEventListener("pointermove", follow);
    picture.addEventListener("pointerdown", follow);
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const points = all(".pt", picture).filter((p) => p.getBoundingClientRect().height);
      if (!step || !points.length) return;
      event.preventDefault();
      const at = points.indexOf(shown);
      select(points[at < 0 ? 0 : (at + step + points.length) % points.length]);
    });
  });

  // Words at a cell.
  all(".picture.heat").forEach((picture) => {
    const read = (name) => JSON.parse(picture.dataset[name]);
    const [values, rows, columns, words, [x, y, w, h]] = ["values", "rows", "columns", "words", "frame"].map(read);
    const cursor = picture.querySelector(".cursor");
    let [row, column] = [-1, 0];
    const mark = () => {
      hide();
      cursor.setAttribute("x", x + (w / columns.length) * column);
      cursor.setAttribute("y", y + (h / rows.length) * row);
      cursor.setAttribute("visibility", "visible");
      const value = values[row][column].toFixed(Number(picture.dataset.digits));
      const place = `${words[0]} ${rows[row]}, ${words[1]} ${columns[column]}`.trim();
      show(`${place}: ${words[2]} ${value}`, cursor.getBoundingClientRect());
    };
    const follow = (event) => {
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
      const [i, j] = [Math.floor(((point.y - y) / h) * rows.length), Math.floor(((point.x - x) / w) * columns.length)];
      if (values[i]?.[j] === undefined) { hide(); return; }
      [row, column] = [i, j];
      mark();
    };
    picture.addEventListener("pointermove", follow);
    picture.addEventListener("pointerdown", follow);
    picture.addEventListener("keydown", (event) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      [row, column] = row < 0 ? [0, 0] : [
        Math.max(0, Math.min(rows.length - 1, row + step[0])),
        Math.max(0, Math.min(columns.length - 1, column + step[1])),
      ];
      mark();
    });
  });
  all(".picture").forEach((picture) => {
    picture.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    picture.addEventListener("blur", hide);
  });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true });
})();
