// The parts of the page that are lists: ranking, funnel, what arrived, the pipeline.

import * as words from "./words.js";

const $ = (id) => document.getElementById(id);

function element(tag, kind, text = "") {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.textContent = text;
  return made;
}

function empty(name, is) {
  $(`${name}-empty`).hidden = !is;
}

export function rows(body, wanted) {
  body.replaceChildren(...wanted.map((cells) => {
    const row = document.createElement("tr");
    row.append(...cells.map((cell) => (cell instanceof Node ? cell : element("td", "", cell))));
    return row;
  }));
}

// -- the ranking: a product keeps its line, and the line moves when its place changes ------------

export function top(found) {
  const list = $("top");
  const products = found?.products ?? [];
  empty("top", !products.length);
  if (found) $("top-span").textContent = `views ${words.minute(found.from / 1000)} to ${words.minute(found.to / 1000)}`;
  const lines = new Map([...list.children].map((line) => [line.dataset.product, line]));
  const before = new Map([...lines].map(([id, line]) => [id, line.getBoundingClientRect()]));
  const most = products[0]?.views || 1;
  list.replaceChildren(...products.map((product, i) => {
    const line = lines.get(product.id) ?? newLine(product.id);
    line.children[0].textContent = i + 1;
    line.children[1].textContent = product.name;
    line.children[2].textContent = words.count(product.views);
    line.style.setProperty("--share", product.views / most);
    return line;
  }));
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const [id, was] of before) {
    const line = lines.get(id);
    const is = line.getBoundingClientRect();
    if (!line.isConnected || (is.top === was.top && is.left === was.left)) continue;
    const from = `translate(${was.left - is.left}px, ${was.top - is.top}px)`;
    line.animate([{ transform: from }, { transform: "none" }], { duration: 450, easing: "ease-out" });
  }
}

function newLine(id) {
  const line = element("li");
  line.dataset.product = id;
  line.title = id;
  line.append(element("span", "place"), element("span", "name"), element("span", "views"));
  return line;
}

// -- the funnel ---------------------------------------------------------------------------------

const STEPS = [["Looked at a product", "views"], ["Put it into the cart", "carts"], ["Bought", "purchases"]];

export function funnel(hour) {
  empty("funnel", !hour.views);
  const list = $("funnel");
  list.hidden = !hour.views;
  if (!list.children.length) list.append(...STEPS.map(newStep));
  STEPS.forEach(([, name], i) => {
    const step = list.children[i];
    step.querySelector("b").textContent = words.count(hour[name]);
    step.querySelector(".rate").textContent = i ? words.percent(hour[name], hour.views) : "100%";
    step.querySelector("i").style.width = `${hour.views ? (hour[name] / hour.views) * 100 : 0}%`;
  });
}

function newStep([title]) {
  const step = element("li");
  const line = element("div", "line");
  line.append(element("span", "", title), element("b"), element("span", "rate"));
  const track = element("div", "track");
  track.append(element("i"));
  step.append(line, track);
  return step;
}

// -- what arrived -------------------------------------------------------------------------------

const KINDS = [["Counted", "accepted"], ["Bots", "bots"], ["Too late", "late"], ["Dead letters", "dead_letters"]];

export function health(hour, letters) {
  const bar = $("share");
  const said = $("shares");
  if (!said.children.length) {
    for (const [title, kind] of KINDS) {
      const part = element("i");
      part.dataset.kind = kind;
      bar.append(part);
      const block = element("div");
      block.dataset.kind = kind;
      block.append(element("dt", "", title), element("dd"), element("dd", "aside"));
      said.append(block);
    }
  }
  KINDS.forEach(([, kind], i) => {
    bar.children[i].style.flexGrow = hour[kind];
    bar.children[i].hidden = !hour[kind];
    said.children[i].children[1].textContent = words.compact(hour[kind]);
    said.children[i].children[2].textContent = words.percent(hour[kind], hour.events);
  });
  const told = KINDS.map(([title, kind]) => `${title} ${words.percent(hour[kind], hour.events)}`);
  bar.setAttribute("aria-label", hour.events ? told.join(", ") : "No events yet");
  empty("letters", !letters.length);
  $("letters").replaceChildren(...letters.map((letter) => {
    const line = element("li");
    line.append(element("span", "when", words.moment(letter.arrived)), element("span", "why", letter.reason), element("span", "from", letter.topic));
    line.title = letter.key;
    return line;
  }));
}

// -- the pipeline -------------------------------------------------------------------------------

/** The query that makes the figures of this page; the others may take their time. */
export function main(queries) {
  return queries.find((query) => query.query === "figures") ?? queries[0];
}

/** How many queries run, while some begin or begin again; nothing when all run. */
export function beginning(queries) {
  const waiting = queries.filter((query) => query.state !== "running").length;
  return waiting ? `${queries.length - waiting} of ${queries.length} queries run` : "";
}

/** How far event time is behind the clock, but for the delay by which the watermark is behind it. */
function eventLag(query, design) {
  return query?.delay == null ? null : Math.max(0, query.delay - design);
}

export function pipeline(queries, now, design) {
  empty("queries", !queries.length);
  $("queries-scroll").hidden = !queries.length;
  const first = main(queries);
  $("lag").textContent = words.compact(first?.lag);
  $("delay").textContent = words.span(eventLag(first, design));
  $("delay-aside").textContent = `besides ${words.span(design)} that late events have`;
  $("lag-aside").textContent = first ? `records still to read by ${first.query}` : "records still to read";
  const restarts = queries.reduce((sum, query) => sum + query.restarts, 0);
  const hints = [beginning(queries) || (queries.length === 1 ? "1 query runs" : `all ${queries.length} queries run`)];
  const failed = queries.reduce((sum, query) => sum + query.attempts_failed, 0);
  const repeated = queries.reduce((sum, query) => sum + query.batches_repeated, 0);
  if (failed) hints.push(`${words.count(failed)} ${failed === 1 ? "batch" : "batches"} begun anew`);
  if (repeated) hints.push(`${words.count(repeated)} repeated ${repeated === 1 ? "batch" : "batches"} left out`);
  if (restarts) hints.push(`${words.count(restarts)} ${restarts === 1 ? "restart" : "restarts"}`);
  $("pipeline-hint").textContent = queries.length ? hints.join(" · ") : "";
  const troubled = queries.filter((query) => query.trouble);
  $("troubles").hidden = !troubled.length;
  $("troubles").replaceChildren(...troubled.map((query) => element("li", "", `${query.query} starts again: ${query.trouble}.`)));
  rows($("queries"), queries.map((query) => [
    query.query,
    words.compact(query.lag),
    words.span(eventLag(query, design)),
    query.batch < 0 ? "–" : words.compact(Math.round(query.rows_per_second)),
    query.batch < 0 ? "–" : `${words.count(query.batch_ms)} ms`,
    words.compact(query.written),
    query.transaction_ms == null ? "–" : `${words.count(query.transaction_ms)} ms`,
    query.state === "starting" ? "starting" : words.ago((now - query.updated) / 1000),
  ]));
}
