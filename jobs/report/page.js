"use strict";
// The page is whole without this: it adds the pointer's readings, picking a series, and the choice of light or dark.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => (root.style.colorScheme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { root.style.colorScheme = dark() ? "light" : "dark"; label(); });
  label();

  const made = (tag, className, text) => {
    const element = document.createElement(tag);
    element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  for (const plot of document.querySelectorAll(".plot.lines")) {
    const area = plot.querySelector(".area");
    const [start, end, low, high, step] = ["start", "end", "low", "high", "step"].map((name) => Number(plot.dataset[name]));
    const [, , width, height] = plot.querySelector("svg").getAttribute("viewBox").split(" ").map(Number);
    // No more digits than the drawing holds.
    const number = new Intl.NumberFormat("en", { maximumFractionDigits: Math.min(Math.max(3 - Math.floor(Math.log10(high - low)), 0), 12) });
    const value = (y) => ({ 0: "≥ ", [height]: low ? "≤ " : "" }[y] || "") + number.format(low + (1 - y / height) * (high - low));
    const isTime = root.dataset.axis === "time";
    let lines, cursor, tip;
    // Read once, when a pointer first comes: a page of many thousand points opens at once all the same.
    const read = () => [...plot.querySelectorAll(".line")].map((path) => ({
      slot: path.dataset.slot,
      label: path.dataset.label,
      points: [...path.getAttribute("d").matchAll(/[ML](\d+) (\d+)/g)].map((found) => [Number(found[1]), Number(found[2])]),
    }));
    const nearest = (points, x) => points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
    const when = (x) => {
      let t = start + (x / width) * (end - start);
      if (step) t = end - Math.round((end - t) / step) * step;
      return isTime ? new Date(t / 1000).toLocaleString("en-GB", { timeZone: "UTC", day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }) : String(Math.round(t));
    };
    area.addEventListener("pointermove", (event) => {
      lines ||= read();
      cursor ||= area.appendChild(made("div", "cursor"));
      tip ||= area.appendChild(made("div", "tip"));
      const box = area.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * width;
      const near = lines.map((line) => [line, nearest(line.points, x)]).filter(([, point]) => Math.abs(point[0] - x) < width / 25);
      cursor.hidden = tip.hidden = !near.length;
      if (!near.length) return;
      const at = near.reduce((best, [, point]) => (Math.abs(point[0] - x) < Math.abs(best - x) ? point[0] : best), near[0][1][0]);
      tip.replaceChildren(made("b", "", when(at)));
      for (const [line, point] of near.sort((a, b) => a[1][1] - b[1][1])) {
        const row = tip.appendChild(document.createElement("div"));
        row.append(made("i", `s${line.slot}`), made("span", "", line.label), made("span", "", value(point[1])));
      }
      const left = (at / width) * box.width;
      cursor.style.left = `${left}px`;
      tip.style.left = left > box.width / 2 ? "auto" : `${left + 12}px`;
      tip.style.right = left > box.width / 2 ? `${box.width - left + 12}px` : "auto";
    });
    area.addEventListener("pointerleave", () => { if (tip) cursor.hidden = tip.hidden = true; });
  }

  for (const legend of document.querySelectorAll(".keys")) {
    let held = null;
    const show = (slot) => {
      for (const item of legend.children) item.classList.toggle("dim", slot !== null && item.dataset.slot !== slot);
      for (const line of legend.parentElement.querySelectorAll(".line, .dots")) {
        line.classList.toggle("dim", slot !== null && line.dataset.slot !== slot);
        if (line.matches(".line")) line.classList.toggle("lit", slot !== null && line.dataset.slot === slot);
      }
    };
    for (const item of legend.children) {
      item.addEventListener("pointerenter", () => show(item.dataset.slot));
      item.addEventListener("pointerleave", () => show(held));
      item.addEventListener("click", () => show((held = held === item.dataset.slot ? null : item.dataset.slot)));
    }
  }
})();
