"use strict";
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const { made, figure, moment } = charts;
  const CHOSEN = 6, MOST_CHOSEN = 8, PANEL_ROWS = 6, PANEL_WIDTH = 176;

  theme(charts.repaint);

  for (const element of document.querySelectorAll("[data-bars]")) {
    charts.bars(element, data.bars[element.dataset.bars], element.dataset.unit || "");
  }

  const choice = (labels, on, picked) => {
    const group = made("div", "choice");
    labels.forEach((text, i) => {
      const one = group.appendChild(made("button", "", text));
      one.type = "button";
      one.setAttribute("aria-pressed", String(i === on));
      one.addEventListener("click", () => {
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === one));
        picked(i);
      });
    });
    return group;
  };

  // A scale for lines of many keys: that of all values, unless few of them would flatten all the others.
  const sharedScale = (lines) => {
    const values = Float64Array.from(lines.flatMap((ys) => ys.filter((y) => y !== null))).sort();
    if (!values.length) return { low: 0, high: 1 };
    const [low, high] = [values[0], values[values.length - 1]];
    const cut = Math.floor(values.length / 40);
    const [inner, outer] = [values[cut], values[values.length - 1 - cut]];
    const margin = 0.25 * (outer - inner);
    const found = { low: Math.max(low, inner - margin), high: Math.min(high, outer + margin) };
    return high - low > 1.25 * (found.high - found.low) && margin > 0 ? found : { low, high };
  };

  class Results {
    // The charts of one window: of each aggregate the keys chosen, then a small chart of every key.
    constructor(element, index) {
      this.element = element;
      this.window = data.windows[index];
      this.lines = new Map();
      this.placed = [];
      this.panels = [];
      this.aggregate = 0;
      this.search = "";
      this.everyPanel = false;
      this.sameScale = true;
      // The ranks of each view: of the near stretch, and of the whole.
      this.known = data.keys.map((name, key) => key).filter((key) => this.window.ranks[this.window.ranks.length - 1][key]);
      const { near, end } = this.window;
      this.views = near > 0 ? [[this.x(near), this.x(end)], [this.x(0), this.x(end)]] : [[this.x(0), this.x(end)]];
      this.view = 0;
      this.range = this.padded(this.views[0]);
      this.rank = 0;
      this.ranked = this.order();
      this.chosen = this.ranked.slice(0, CHOSEN);
      this.slots = new Map(this.chosen.map((key, slot) => [key, slot]));
    }

    x(t) {
      const at = this.window.low + t * this.window.unit;
      return data.integer ? at : at / 1e6;
    }

    padded([low, high]) {
      const room = (high - low) * 0.01 || 1;
      return [low - room, high + room];
    }

    // Keys by volume, by the highest value of the aggregate shown, or by its change, in the stretch shown; last those without a row in it.
    order() {
      const of = (key) => {
        const [volume, figures] = this.window.ranks[this.view][key] ?? [-Infinity, []];
        return this.rank === 0 ? volume : figures[this.aggregate]?.[this.rank - 1] ?? -Infinity;
      };
      return [...this.known].sort((a, b) => of(b) - of(a));
    }

    points(aggregate, key) {
      const at = aggregate * data.keys.length + key;
      if (!this.lines.has(at)) this.lines.set(at, this.read(this.window.lines[aggregate][key]));
      return this.lines.get(at);
    }

    // Instants and values of a line, with a null where rows are missing, and whether all its values are equal.
    read(line) {
      if (!line) return null;
      const [xs, ys] = [[], []];
      const [far, near] = this.window.gaps;
      let t = 0;
      this.window.times[line[0]].forEach((step, i) => {
        t += step;
        const gap = t > this.window.near ? near : far;
        if (i && gap !== null && step > gap) {
          xs.push(this.x(t - step / 2));
          ys.push(null);
        }
        const x = this.x(t);
        // Several rows at one instant follow each other by a microsecond.
        xs.push(i && x <= xs[xs.length - 1] ? xs[xs.length - 1] + 1e-6 : x);
        ys.push(line[1][i]);
      });
      const [low, high] = line[1].reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
      return { points: [xs, ys], constant: line[1].length > 1 && low === high, last: line[1][line[1].length - 1] };
    }

    show() {
      if (this.shown) return;
      this.shown = true;
      const { element } = this;
      const controls = element.appendChild(made("div", "controls"));
      if (this.views.length > 1) controls.append(choice([element.dataset.near, "All"], 0, (view) => this.look(view)));
      this.back = controls.appendChild(made("button", "back", "Reset zoom"));
      this.back.type = "button";
      this.back.addEventListener("click", () => this.zoom(null));
      this.span = controls.appendChild(made("span", "span"));
      this.legend = element.appendChild(made("ul", "legend keys"));
      this.overview = element.appendChild(made("div", "overview"));
      if (this.known.length > 1) this.showSearch();
      this.draw();
    }

    showSearch() {
      const bar = this.element.appendChild(made("div", "controls finder"));
      const find = bar.appendChild(made("input", "find"));
      Object.assign(find, { type: "search", placeholder: `Search ${figure(this.known.length)} keys` });
      find.setAttribute("aria-label", "Search keys");
      find.addEventListener("input", () => { this.search = find.value.trim().toLowerCase(); this.drawPanels(); });
      find.addEventListener("keydown", (event) => { if (event.key === "Enter" && this.found.length) this.toggle(this.found[0], true); });
      if (data.aggregates.length > 1) {
        bar.append(choice(data.aggregates.map(({ name }) => name), 0, (aggregate) => {
          this.aggregate = aggregate;
          this.ranked = this.order();
          this.drawPanels();
        }));
      }
      bar.append(made("span", "soft", "ranked by"), choice(["volume", "highest value", "change"], 0, (rank) => {
        this.rank = rank;
        this.ranked = this.order();
        this.choose(this.ranked.slice(0, CHOSEN));
        this.drawPanels();
      }));
      const same = bar.appendChild(made("label", "soft"));
      const box = same.appendChild(made("input"));
      Object.assign(box, { type: "checkbox", checked: true });
      same.append("one scale for all");
      box.addEventListener("change", () => { this.sameScale = box.checked; this.drawPanels(); });
      this.told = this.element.appendChild(made("p", "note told"));
      this.told.setAttribute("aria-live", "polite");
      this.grid = this.element.appendChild(made("div", "panels"));
      this.more = this.element.appendChild(made("button", "more"));
      this.more.type = "button";
      this.more.addEventListener("click", () => { this.everyPanel = true; this.drawPanels(); });
    }

    look(view) {
      this.view = view;
      this.ranked = this.order();
      this.choose(this.ranked.slice(0, CHOSEN));
      this.zoom(null);
    }

    zoom(range) {
      this.range = range || this.padded(this.views[this.view]);
      for (const { chart } of [...this.placed, ...this.panels]) chart.setScale("x", { min: this.range[0], max: this.range[1] });
      this.zoomed = Boolean(range);
      this.tell();
      // Later: the chart that was dragged may be one of the panels, which are made anew.
      cancelAnimationFrame(this.again);
      this.again = requestAnimationFrame(() => this.drawPanels());
    }

    tell() {
      this.back.hidden = !this.zoomed;
      const [low, high] = this.zoomed ? this.range : this.views[this.view];
      this.span.textContent = `${moment(low, data.integer)} – ${moment(high, data.integer)}${data.integer ? "" : " UTC"}`;
    }

    toggle(key, stays = false) {
      const has = this.chosen.includes(key);
      if (has && stays) return;
      this.choose(has ? this.chosen.filter((other) => other !== key) : [...this.chosen, key].slice(-MOST_CHOSEN));
      for (const panel of this.grid?.children ?? []) panel.classList.toggle("on", this.chosen.includes(Number(panel.dataset.key)));
    }

    // A key keeps its colour while it is chosen.
    choose(keys) {
      const slots = new Map(keys.filter((key) => this.slots.has(key)).map((key) => [key, this.slots.get(key)]));
      for (const key of keys) {
        if (!slots.has(key)) slots.set(key, [...Array(MOST_CHOSEN).keys()].find((slot) => ![...slots.values()].includes(slot)));
      }
      [this.chosen, this.slots] = [keys, slots];
      this.drawOverview();
    }

    draw() {
      this.drawOverview();
      this.drawPanels();
      this.tell();
    }

    drawOverview() {
      for (const { remove } of this.placed) remove();
      this.placed = [];
      this.legend.replaceChildren(...this.chosen.map((key) => {
        const item = made("li");
        const chip = item.appendChild(made("button", "", data.keys[key]));
        chip.type = "button";
        chip.prepend(made("i"));
        chip.firstChild.style.background = `var(--s${this.slots.get(key)})`;
        chip.title = "Leave out";
        chip.addEventListener("click", () => this.toggle(key));
        return item;
      }));
      this.overview.replaceChildren(...data.aggregates.map(({ name, about }, aggregate) => {
        const drawn = this.chosen.map((key) => [key, this.points(aggregate, key)]).filter(([, line]) => line);
        const plot = made("figure", "plot");
        const title = plot.appendChild(made("figcaption", "", name));
        title.append(made("small", "", about));
        if (!drawn.length || drawn.every(([, line]) => line.constant)) {
          const values = drawn.map(([key, line]) => `${data.keys[key]} = ${figure(line.last)}`);
          plot.append(made("p", "none", drawn.length ? `constant: ${values.join(", ")}` : "no values"));
          return plot;
        }
        const area = plot.appendChild(made("div", "area"));
        area.setAttribute("role", "img");
        area.setAttribute("aria-label", `${name} (${about}) of ${this.window.name}: ${drawn.map(([key]) => data.keys[key]).join(", ")}`);
        this.waiting = (this.waiting || []).concat(() => this.placed.push(charts.lines(
          area, drawn.map(([key, { points }]) => ({ name: `s${this.slots.get(key)}`, label: data.keys[key], points })), this.options(220),
        )));
        return plot;
      }));
      for (const place of this.waiting ?? []) place();
      this.waiting = [];
    }

    options(height, more = {}) {
      return { integer: data.integer, range: this.range, height, sync: this.window.name, zoomed: (range) => this.zoom(range), ...more };
    }

    // Values of a line that the charts show now.
    visible({ points: [xs, ys] }) {
      const [first, last] = this.range;
      return ys.filter((y, i) => y !== null && xs[i] >= first && xs[i] <= last);
    }

    // Keys whose values never change are told in a line of text.
    drawPanels() {
      if (!this.grid) return;
      for (const { remove } of this.panels) remove();
      this.panels = [];
      this.watch?.disconnect();
      const name = data.aggregates[this.aggregate].name;
      this.found = this.ranked.filter((key) => data.keys[key].toLowerCase().includes(this.search));
      const lines = this.found.map((key) => [key, this.points(this.aggregate, key)]).filter(([, line]) => line);
      const constant = lines.filter(([, line]) => line.constant);
      const varying = lines.filter(([, line]) => !line.constant);
      const seen = varying.map(([key, line]) => [key, this.visible(line)]).filter(([, ys]) => ys.length);
      const here = new Set(seen.map(([key]) => key));
      const changing = varying.filter(([key]) => here.has(key));
      const panels = PANEL_ROWS * Math.max(2, Math.floor(this.grid.clientWidth / PANEL_WIDTH));
      const shown = changing.slice(0, this.everyPanel ? changing.length : panels);
      const scale = sharedScale(seen.map(([, ys]) => ys));
      const ends = new Map(seen.map(([key, ys]) => [key, [ys.reduce((a, b) => Math.min(a, b), Infinity), ys.reduce((a, b) => Math.max(a, b), -Infinity)]]));
      const beyond = [...ends.values()].filter(([low, high]) => low < scale.low || high > scale.high);
      const told = [this.search ? `${figure(this.found.length)} of ${figure(this.known.length)} keys match.` : ""];
      if (shown.length) told.push(this.sameScale ? `All panels: ${name} from ${charts.tick(scale.low)} to ${charts.tick(scale.high)}.` : `Each panel has its own scale of ${name}.`);
      if (shown.length && this.sameScale && beyond.length) {
        told.push(`${figure(beyond.length)} go${beyond.length === 1 ? "es" : ""} beyond it, marked with the farthest value.`);
      }
      if (varying.length > changing.length) told.push(`${figure(varying.length - changing.length)} have no values in this stretch.`);
      if (constant.length) {
        const named = constant.slice(0, 12).map(([key, line]) => `${data.keys[key]} = ${figure(line.last)}`).join(", ");
        told.push(`Constant: ${named}${constant.length > 12 ? ` and ${figure(constant.length - 12)} more` : ""}.`);
      }
      this.told.textContent = told.filter(Boolean).join(" ");
      this.more.hidden = shown.length === changing.length;
      this.more.textContent = `Show all ${figure(changing.length)} keys`;
      this.watch = new IntersectionObserver((entries) => {
        for (const { isIntersecting, target } of entries) if (isIntersecting && this.undrawn.has(target)) this.drawPanel(target, scale);
      }, { rootMargin: "300px" });
      this.undrawn = new Map();
      this.grid.replaceChildren(...shown.map(([key, line]) => {
        const panel = made("button", "small");
        panel.type = "button";
        panel.dataset.key = key;
        panel.title = "Draw above, or leave out";
        panel.classList.toggle("on", this.chosen.includes(key));
        const title = panel.appendChild(made("span", "name"));
        title.append(made("span", "", data.keys[key]));
        const [low, high] = ends.get(key);
        const farthest = high > scale.high ? `↑ ${charts.tick(high)}` : low < scale.low ? `↓ ${charts.tick(low)}` : "";
        const marked = this.sameScale && farthest;
        panel.classList.toggle("beyond", Boolean(marked));
        title.append(made("b", "", marked || charts.tick(line.last)));
        panel.append(made("span", "area"));
        panel.addEventListener("click", () => this.toggle(key));
        this.watch.observe(panel);
        this.undrawn.set(panel, () => this.drawPanel(panel, scale));
        return panel;
      }));
    }

    // The panels that nobody has scrolled to yet.
    drawEveryPanel() {
      for (const draw of this.undrawn?.values() ?? []) draw();
    }

    drawPanel(panel, shared) {
      this.watch.unobserve(panel);
      this.undrawn.delete(panel);
      const key = Number(panel.dataset.key);
      const { points } = this.points(this.aggregate, key);
      const scale = this.sameScale ? () => uPlot.rangeNum(shared.low, shared.high, 0.05, true) : undefined;
      this.panels.push(charts.lines(panel.querySelector(".area"), [{ name: "s0", label: data.keys[key], points }], this.options(58, { small: true, scale })));
    }
  }

  const results = [...document.querySelectorAll(".charts")].map((element, index) => new Results(element, index));
  const tabs = [...document.querySelectorAll(".tabs > input")];
  const open = () => tabs.forEach((tab, i) => { if (tab.checked) results[i].show(); });
  for (const tab of tabs) tab.addEventListener("change", open);
  open();

  for (const link of document.querySelectorAll("a[data-key]")) {
    link.addEventListener("click", () => {
      const [index, key, at] = ["window", "key", "end"].map((name) => Number(link.dataset[name]));
      tabs[index].checked = true;
      open();
      const found = results[index];
      found.toggle(key, true);
      const x = data.integer ? at : at / 1e6;
      const width = (found.views[0][1] - found.views[0][0]) / 2 || 1;
      if (x < found.range[0] || x > found.range[1]) found.zoom([Math.max(x - width, found.x(0)), Math.min(x + width, found.x(found.window.end))]);
    });
  }

  // Print shows every window, as wide as a page.
  addEventListener("beforeprint", () => {
    root.classList.add("print");
    for (const found of results) { found.show(); found.drawEveryPanel(); }
  });
  addEventListener("afterprint", () => root.classList.remove("print"));
})();
