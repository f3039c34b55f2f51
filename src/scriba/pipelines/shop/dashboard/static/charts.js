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

const bars = (u, series, from, to) => uPlot.paths.bars({ size: [0.72, 26], radius: 0.18 })(u, series, from, to);
const smooth = (u, series, from, to) => uPlot.paths.spline()(u, series, from, to);

function axes(format) {
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const soft = () => colour("soft");
  const quiet = { stroke: soft, font, ticks: { show: false } };
  return [
    { ...quiet, grid: { show: false }, size: 30, space: 56, values: (_, ticks) => ticks.map(words.minute) },
    { ...quiet, grid: { stroke: () => colour("grid"), width: 1 }, size: 54, space: 44, values: (_, ticks) => ticks.map(format) },
  ];
}

/** One chart that fills its box, follows its size, and tells the point under the pointer. */
class TimeChart {
  constructor(box, height, series, format, point) {
    this.box = box;
    this.whole = true;
    const top = (_, __, max) => [0, Math.max(max * 1.12, 4)];
    this.plot = new uPlot({
      width: Math.max(box.clientWidth, 100),
      height,
      padding: [10, 14, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true, range: (_, min, max) => [min - 30, max + 30] }, y: { range: top } },
      axes: axes(format),
      series: [{}, ...series],
      hooks: { setCursor: [(u) => point(u.cursor.idx)] },
    }, [[0], ...series.map(() => [null])], box);
    new ResizeObserver(() => this.fit()).observe(box);
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (width && height) this.plot.setSize({ width, height });
  }

  show(columns) {
    this.plot.setData(columns);
  }

  repaint() {
    this.plot.redraw(false, true);
  }
}

export function salesChart(box, point) {
  let tint = "blue";
  let format = words.axisMoney;
  const chart = new TimeChart(box, box.clientHeight, [
    {
      // The running minute is still growing: it is drawn lighter.
      fill: (u) => {
        const left = u.valToPos(u.data[0].at(-1) - 30, "x", true);
        const wash = u.ctx.createLinearGradient(left - 1, 0, left, 0);
        wash.addColorStop(0, colour(tint, 0.85));
        wash.addColorStop(1, colour(tint, 0.35));
        return Number.isFinite(left) ? wash : colour(tint);
      },
      width: 0, paths: bars, points: { show: false },
    },
    { stroke: () => colour("amber-fill"), width: 2.2, paths: smooth, points: { show: false } },
  ], (tick) => format(tick), point);
  return {
    show(times, values, average, series) {
      tint = series === "orders" ? "teal" : "blue";
      format = series === "orders" ? words.axisCount : words.axisMoney;
      chart.show([times, values, series === "orders" ? times.map(() => null) : average]);
    },
    repaint: () => chart.repaint(),
  };
}

export function sessionsChart(box, point) {
  const chart = new TimeChart(box, box.clientHeight, [
    { stroke: () => colour("plum"), fill: () => colour("plum", 0.13), width: 2.2, paths: smooth, points: { show: false } },
  ], words.axisCount, point);
  return { show: (times, values) => chart.show([times, values]), repaint: () => chart.repaint() };
}

/** A column without the running minute, which would look like a fall; unless it is all there is. */
export function settled(values, running) {
  const known = values.filter((value) => value != null).length;
  return known > 2 && running ? [...values.slice(0, -1), null] : values;
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
