// The two time charts (uPlot) and the sparklines of the tiles (SVG).

import * as words from "./words.js";

const probe = document.createElement("span");
probe.hidden = true;
document.documentElement.append(probe);

/** A colour of the style sheet as it is now, in light or in dark. */
function colour(name, alpha = 1) {
  probe.style.color = alpha === 1 ? `var(--${name})` : `color-mix(in srgb, var(--${name}) ${alpha * 100}%, transparent)`;
  return getComputedStyle(probe).color;
}

const bars = (u, series, from, to) => uPlot.paths.bars({ size: [0.72, 40], radius: 0.18 })(u, series, from, to);
// Straight from minute to minute: a curve would show values that never were.
const straight = (u, series, from, to) => uPlot.paths.linear()(u, series, from, to);
const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 13 }, (_, i) => n * 10 ** i)).sort((a, b) => a - b);
const MONEY = [...WHOLE, ...WHOLE.map((n) => n * 2.5)].filter((n) => n >= 10 && n % 5 === 0).sort((a, b) => a - b);
const MINUTES = [1, 2, 5, 10, 15, 30, 60, 120].map((n) => n * 60);
const NARROWEST = 5;
const EMPTY_TOP = 4;

/** Where the axis of time begins: with the first minute that is known, but five are shown in any case. */
export function begins(columns, length) {
  const firsts = columns.map((column) => column.findIndex((value) => value != null)).filter((i) => i >= 0);
  return Math.max(0, Math.min(length - NARROWEST, ...firsts));
}

function axes(format, incrs) {
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const soft = () => colour("soft");
  const quiet = { stroke: soft, font, ticks: { show: false } };
  return [
    { ...quiet, grid: { show: false }, incrs: MINUTES, size: 30, space: 56, values: (_, ticks) => ticks.map(words.minute) },
    { ...quiet, grid: { stroke: () => colour("grid"), width: 1 }, incrs: () => incrs(), size: 54, space: 44, values: (_, ticks) => ticks.map(format) },
  ];
}

/** One chart that fills its box, follows its size, and tells the point under the pointer. */
class TimeChart {
  constructor(box, height, series, format, point, incrs = () => WHOLE) {
    this.box = box;
    this.left = 0;
    const top = (_, __, max) => [0, max > 0 ? max * 1.08 : EMPTY_TOP];
    this.plot = new uPlot({
      width: Math.max(box.clientWidth, 100),
      height,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true, range: (_, min, max) => [(this.left || min) - 30, max + 30] }, y: { range: top } },
      axes: axes(format, incrs),
      series: [{}, ...series],
      hooks: { setCursor: [(u) => point(u.cursor.idx)] },
    }, [[0], ...series.map(() => [null])], box);
    new ResizeObserver(() => this.fit()).observe(box);
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (width && height) this.plot.setSize({ width, height });
  }

  show(columns, from) {
    this.left = columns[0][from];
    this.plot.setData(columns);
  }

  repaint() {
    this.plot.redraw(false, true);
  }
}

export function salesChart(box, point) {
  let tint = "blue";
  let format = words.axisMoney;
  let partial = [];
  const chart = new TimeChart(box, box.clientHeight, [
    {
      // Minutes that are not whole, the running one and the very first, are drawn lighter.
      fill: (u) => stripes(u, partial, colour(tint, 0.85), colour(tint, 0.35)),
      width: 0, paths: bars, points: { show: false },
    },
    { stroke: () => colour("amber-fill"), width: 2.2, paths: straight, points: { show: false } },
  ], (tick) => format(tick), point, () => (format === words.axisMoney ? MONEY : WHOLE));
  return {
    show(times, values, average, series, from, notWhole) {
      partial = notWhole;
      tint = series === "orders" ? "teal" : "blue";
      format = series === "orders" ? words.axisCount : words.axisMoney;
      chart.show([times, values, series === "orders" ? times.map(() => null) : average], from);
    },
    repaint: () => chart.repaint(),
  };
}

export function sessionsChart(box, point) {
  const chart = new TimeChart(box, box.clientHeight, [
    { stroke: () => colour("plum"), fill: () => colour("plum", 0.13), width: 2.2, paths: straight, points: { show: false } },
  ], words.axisCount, point);
  return { show: (times, values, from) => chart.show([times, values], from), repaint: () => chart.repaint() };
}

/** One colour, and a lighter one for some of the minutes: a gradient with sharp edges. */
function stripes(u, partial, usual, light) {
  const { left, width } = u.bbox;
  const wash = u.ctx.createLinearGradient(left, 0, left + width, 0);
  let at = 0;
  const edge = (seconds) => Math.min(1, Math.max(0, (u.valToPos(seconds, "x", true) - left) / width));
  wash.addColorStop(0, usual);
  for (const index of partial) {
    const [from, to] = [edge(u.data[0][index] - 30), edge(u.data[0][index] + 30)];
    if (![from, to].every(Number.isFinite) || from < at) continue;
    for (const [place, shade] of [[from, usual], [from, light], [to, light], [to, usual]]) wash.addColorStop(place, shade);
    at = to;
  }
  return wash;
}

/** A column without minutes that are not whole, which would look like a fall; unless they are all there is. */
export function settled(values, partial) {
  const whole = values.map((value, i) => (partial.includes(i) ? null : value));
  return whole.filter((value) => value != null).length > 1 ? whole : values;
}

/** A line without axes under a number; the unknown is left out. */
export function spark(svg, values) {
  const known = values.map((v, i) => [i, v]).filter(([, v]) => v != null);
  if (known.length < 2) { svg.replaceChildren(); return; }
  const first = known[0][0];
  const width = Math.max(known.at(-1)[0] - first, 1);
  const top = Math.max(...known.map(([, v]) => v), 1);
  const at = ([i, v]) => `${(((i - first) / width) * 100).toFixed(2)},${(23 - (v / top) * 20).toFixed(2)}`;
  const line = known.map(at).join("L");
  svg.replaceChildren(path("fill", `M0,24L${line}L100,24Z`), path("stroke", `M${line}`));
}

function path(kind, d) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "path");
  made.setAttribute("class", kind);
  made.setAttribute("d", d);
  return made;
}
