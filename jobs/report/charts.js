"use strict";
// The charts of the page, drawn by uPlot from the data in the page.
const charts = (() => {
  const root = document.documentElement;
  const all = new Set();
  const made = (tag, className = "", text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // A canvas knows no variables of CSS, so an element resolves them; the answers hold until the page turns light or dark.
  const probe = document.body.appendChild(made("i", "probe"));
  let colours = {};
  const colour = (name) => {
    if (!colours[name]) {
      probe.style.color = `var(--${name})`;
      colours[name] = getComputedStyle(probe).color;
    }
    return colours[name];
  };
  const repaint = () => {
    colours = {};
    for (const chart of all) chart.redraw();
  };

  const figure = (value) => value.toLocaleString("en", { maximumSignificantDigits: 6 }).replace("-", "−");
  const brief = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });
  const tick = (value) => brief.format(Math.abs(value) < 1e-12 ? 0 : value).replace("-", "−");
  const clock = (seconds, ticks) => new Date(seconds * 1000).toLocaleString("en-GB", {
    timeZone: "UTC", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", ...(ticks ? { second: "2-digit" } : {}),
  });
  const moment = (x, integer) => (integer ? figure(Math.round(x)) : clock(x, x % 60 !== 0));

  const _ = null;
  // As uPlot's own, by day and month instead of month and day: distance of ticks, label, and a second line where year or day changes.
  const STAMPS = [
    [31536000, "{YYYY}", _, _, _, _, _, _, 1],
    [2419200, "{MMM}", "\n{YYYY}", _, _, _, _, _, 1],
    [86400, "{D} {MMM}", "\n{YYYY}", _, _, _, _, _, 1],
    [3600, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", _, "\n{D} {MMM}", _, _, _, 1],
    [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", _, "\n{D} {MMM}", _, _, _, 1],
    [1, "{HH}:{mm}:{ss}", "\n{D} {MMM} {YYYY}", _, "\n{D} {MMM}", _, _, _, 1],
    [0.001, "{ss}.{fff}", "\n{D} {MMM} {HH}:{mm}", _, "\n{D} {MMM} {HH}:{mm}", _, "\n{HH}:{mm}", _, 1],
  ];
  const axis = (more) => ({
    stroke: () => colour("soft"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: () => colour("grid"), width: 1 },
    ticks: { stroke: () => colour("grid"), width: 1, size: 4 },
    ...more,
  });

  // Readings beside the pointer; `rows` gives pairs of a colour and texts for the indexes under the cursor.
  const readings = (rows) => {
    let tip, inside = false;
    return {
      hooks: {
        init: (chart) => {
          tip = chart.over.appendChild(made("div", "tip"));
          tip.hidden = true;
          chart.over.addEventListener("pointerenter", () => { inside = true; });
          chart.over.addEventListener("pointerleave", () => { inside = false; tip.hidden = true; });
        },
        setCursor: (chart) => {
          const found = inside && chart.cursor.left >= 0 ? rows(chart) : null;
          tip.hidden = !found;
          if (!found) return;
          tip.replaceChildren(made("b", "", found.title));
          for (const [name, label, value] of found.rows) {
            const row = tip.appendChild(made("div"));
            const mark = row.appendChild(made("i"));
            mark.style.background = `var(--${name})`;
            row.append(made("span", "", label), made("span", "", value));
          }
          const { left } = chart.cursor;
          const width = chart.over.clientWidth;
          tip.style.left = left > width / 2 ? "auto" : `${left + 14}px`;
          tip.style.right = left > width / 2 ? `${width - left + 14}px` : "auto";
        },
      },
    };
  };

  // The nearest point of a series within 30 pixels of the pointer: series have points at different instants.
  const nearest = (chart, series, hovered, x) => {
    if (!series || hovered === null) return hovered;
    const [xs, ys] = [chart.data[0], chart.data[series]];
    let before = hovered, after = hovered;
    while (before > 0 && ys[before] == null) before -= 1;
    while (after < ys.length - 1 && ys[after] == null) after += 1;
    const near = [before, after].filter((index) => ys[index] != null).sort((a, b) => Math.abs(xs[a] - x) - Math.abs(xs[b] - x))[0];
    const reach = (30 / chart.over.clientWidth) * (chart.scales.x.max - chart.scales.x.min);
    return near !== undefined && Math.abs(xs[near] - x) <= reach ? near : null;
  };

  const place = (element, options, data) => {
    const chart = new uPlot({ width: Math.max(element.clientWidth, 60), legend: { show: false }, ...options }, data, element);
    all.add(chart);
    const sizes = new ResizeObserver(() => {
      if (element.clientWidth && element.clientWidth !== chart.width) chart.setSize({ width: element.clientWidth, height: options.height });
    });
    sizes.observe(element);
    return { chart, remove: () => { sizes.disconnect(); all.delete(chart); chart.destroy(); } };
  };

  // Lines of several keys. `lines`: name of a colour, label, [instants, values]; `zoomed` is told a range that was dragged, or null.
  const lines = (element, lines, { integer, range, height, zoomed, sync, small, scale }) => {
    const data = lines.length ? uPlot.join(lines.map(({ points }) => points)) : [[], []];
    const series = lines.map(({ name, points }) => ({
      stroke: () => colour(name),
      width: small ? 1.25 : 1.5,
      points: { show: points[0].length < 3 || points[1].filter((value) => value !== null).length < 3, size: 5, fill: () => colour(name) },
    }));
    const said = readings((chart) => {
      const found = lines.map((line, i) => [line, chart.cursor.idxs[i + 1]]).filter(([, index]) => index != null && index >= 0);
      if (!found.length) return null;
      const rows = found.map(([line, index], i) => [line, chart.data[lines.indexOf(line) + 1][index], chart.data[0][index], i]);
      rows.sort((a, b) => b[1] - a[1]);
      return { title: moment(rows[0][2], integer), rows: rows.map(([line, value]) => [line.name, line.label, figure(value)]) };
    });
    const wide = small ? 0 : 52;
    const options = {
      height,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      plugins: [said],
      padding: small ? [3, 2, 3, 2] : [8, 26, 0, 0],
      cursor: {
        y: false,
        dataIdx: nearest,
        drag: { x: true, y: false, dist: 5 },
        sync: { key: sync, scales: ["x", null] },
        points: { size: small ? 5 : 7 },
        bind: { dblclick: () => () => zoomed(null) },
      },
      select: { show: true },
      scales: { x: { time: !integer }, ...(scale ? { y: { range: scale } } : {}) },
      axes: [
        axis({ show: !small, space: 64, size: 40, values: integer ? (chart, splits) => splits.map(figure) : STAMPS }),
        axis({ show: !small, size: wide, space: 32, values: (chart, splits) => splits.map(tick) }),
      ],
      series: [{}, ...series],
      hooks: {
        setScale: [(chart, name) => {
          if (name === "x" && chart.dragged) {
            chart.dragged = false;
            zoomed([chart.scales.x.min, chart.scales.x.max]);
          }
        }],
        setSelect: [(chart) => { chart.dragged = chart.select.width > 0; }],
      },
    };
    const placed = place(element, options, data);
    placed.chart.setScale("x", { min: range[0], max: range[1] });
    return placed;
  };

  // Stacked bars, one a label.
  const bars = (element, { labels, series }, unit) => {
    const sums = labels.map(() => 0);
    const stacked = series.map(({ values }) => values.map((value, i) => (sums[i] += value)));
    const data = [labels.map((label, i) => i), ...stacked.reverse()];
    const tops = [...series].reverse();
    const said = readings((chart) => {
      const index = chart.cursor.idx;
      if (index == null) return null;
      const rows = tops.filter(({ values }) => values[index]).map(({ colour, name, values }) => [colour, name, figure(values[index]) + unit]);
      return { title: `Batch ${figure(labels[index])}`, rows: rows.length ? rows : [["grid", "none", ""]] };
    });
    const paths = uPlot.paths.bars({ size: [0.72, 64] });
    return place(element, {
      height: 210,
      plugins: [said],
      padding: [8, 10, 0, 0],
      cursor: { y: false, drag: { setScale: false, x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: [-0.6, Math.max(labels.length, 8) - 0.4] }, y: { range: (chart, low, high) => [0, high * 1.04 || 1] } },
      axes: [
        axis({ grid: { show: false }, space: 40, size: 30, incrs: [1, 2, 5, 10, 20, 50], values: (chart, splits) => splits.map((i) => labels[i] ?? "") }),
        axis({ size: 52, space: 32, values: (chart, splits) => splits.map(tick) }),
      ],
      series: [{}, ...tops.map(({ colour: name }) => ({ fill: () => colour(name), stroke: () => colour(name), width: 0, paths, points: { show: false } }))],
    }, data);
  };

  return { lines, bars, repaint, made, figure, moment, tick };
})();
