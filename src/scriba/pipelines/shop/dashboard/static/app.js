// Listens to the server and puts each picture on the page. A picture is whole: nothing is kept
// here but the last one, so that it does not matter when a page joins or how often it comes back.

import { begins, salesChart, sessionsChart, settled, spark } from "./charts.js";
import * as lists from "./lists.js";
import * as words from "./words.js";

const SILENT_MS = 4000;
const LOST_MS = 1000;
const $ = (id) => document.getElementById(id);

let picture = null;
let heard = 0;
let lost = false;
let series = "revenue";
let pointed = { sales: null, sessions: null };
const charts = {};

// -- the stream ---------------------------------------------------------------------------------

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("picture", (event) => {
    picture = JSON.parse(event.data);
    heard = performance.now();
    lost = false;
    show();
  });
  source.addEventListener("error", () => {
    lost = true;
    // A browser gives up for good on an answer that is no stream, such as a proxy's error page.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 1000);
    judge();
  });
}

// -- the badge ----------------------------------------------------------------------------------

/** What can be said of the figures: a state, its words, and a sentence when something is wrong. */
function judgement() {
  const silent = performance.now() - heard;
  if (!picture) return ["connecting", "Connecting", ""];
  if (silent > (lost ? LOST_MS : SILENT_MS)) {
    return ["down", "Not connected", `The page lost its server ${words.ago(silent / 1000)} and tries to come back. What it shows is from then.`];
  }
  const { reading, settings, at } = picture;
  if (!reading.connected) {
    if (!reading.trouble) return ["connecting", "Connecting", ""];
    return ["down", "Broker unreachable", `No answer from ${settings.cluster}. Reading goes on where it stopped as soon as the broker is back.`];
  }
  if (!reading.caught_up && !reading.missing.length) return ["connecting", "Catching up", ""];
  if (picture.figures_at == null) return ["connecting", "Waiting for figures", ""];
  const age = (at - picture.figures_at + silent) / 1000;
  if (age <= settings.stale_seconds) return ["live", ["Live", lists.beginning(picture.queries)].filter(Boolean).join(" · "), ""];
  return ["stale", `Stale · ${words.ago(age)}`, `${reason()} The newest figures are from ${words.moment(picture.figures_at)}.`];
}

/** Why there are no new figures: what waits to be read tells, since it is asked of the broker. */
function reason() {
  const { at, progress_at: told, queries, settings } = picture;
  const main = lists.main(queries);
  if (main?.trouble) return `The pipeline starts again: ${main.trouble}.`;
  const lag = main?.lag;
  if (lag === 0 || (told != null && (at - told) / 1000 <= settings.stale_seconds)) return "The pipeline has read everything; no new events come in.";
  return lag > 0 ? `The pipeline stands still while ${words.count(lag)} records wait.` : "The pipeline is silent.";
}

function judge() {
  const [state, text, sentence] = judgement();
  document.body.dataset.state = $("badge").dataset.state = state;
  if ($("badge-text").textContent !== text) $("badge-text").textContent = text;
  const notice = $("notice");
  notice.hidden = !sentence;
  notice.dataset.tone = state;
  if (notice.textContent !== sentence) notice.textContent = sentence;
}

// -- the page -----------------------------------------------------------------------------------

function show() {
  words.useCurrency(picture.settings.currency);
  judge();
  tiles();
  time();
  lists.top(picture.top);
  lists.funnel(picture.hour);
  lists.health(picture.hour, picture.letters);
  lists.pipeline(picture.queries, picture.at, picture.settings.watermark_seconds);
  foot();
}

/** Whether the last minute of the picture is not over yet. */
function running() {
  return picture.at / 1000 < picture.first + picture.minutes.revenue.length * 60;
}

/** The minutes that sums are of: an hour, or what there is of one. */
function period(column) {
  const length = column.length;
  const first = column.findIndex((value) => value != null);
  const known = first < 0 ? length : length - first;
  if (!running()) return `${words.minute(picture.first + (length - known) * 60)} to ${words.minute(picture.first + length * 60)}`;
  return known === 1 ? "this minute" : `last ${known} minutes`;
}

function last(column) {
  return column.findLast((value) => value != null) ?? null;
}

function tiles() {
  const { minutes, hour } = picture;
  const some = picture.figures_at != null;
  const [sold, arrived] = [period(minutes.revenue), period(minutes.events)];
  for (const id of ["revenue-period", "orders-period", "funnel-period"]) put(id, sold);
  for (const id of ["events-period", "health-period"]) put(id, arrived);
  put("revenue", some ? words.money(hour.revenue_cents) : "–");
  const newest = minutes.revenue.findLastIndex((value) => value != null);
  const when = newest === minutes.revenue.length - 1 && running() ? "this minute so far" : `at ${words.minute(picture.first + newest * 60)}`;
  put("revenue-aside", newest < 0 ? "" : `${words.money(minutes.revenue[newest])} ${when}`);
  put("orders", some ? words.compact(hour.orders) : "–");
  put("orders-aside", hour.orders ? `${words.money(hour.revenue_cents / hour.orders)} a basket` : "");
  const { figures, arrivals } = picture.partial;
  const active = settled(minutes.sessions, figures);
  const at = active.findLastIndex((value) => value != null);
  put("sessions", words.compact(last(active)));
  put("sessions-period", at < 0 ? "" : `${words.minute(picture.first + at * 60)} to ${words.minute(picture.first + (at + 1) * 60)}`);
  put("sessions-aside", at < 0 ? "" : active === minutes.sessions ? "in a minute that is not whole" : "in the last full minute");
  const rates = picture.queries.map((query) => query.rows_per_second);
  put("events", hour.events ? words.compact(hour.events) : "–");
  const rate = Math.round(Math.max(0, ...rates));
  put("events-aside", rate && document.body.dataset.state === "live" ? `${words.compact(rate)} a second now` : "");
  for (const name of ["revenue", "orders", "sessions"]) spark($(`${name}-spark`), settled(minutes[name], figures));
  spark($("events-spark"), settled(minutes.events, arrivals));
}

function put(id, text) {
  const place = $(id);
  if (place.textContent !== text) place.textContent = text;
}

function times() {
  return picture.minutes.revenue.map((_, i) => picture.first + i * 60);
}

function time() {
  const { minutes } = picture;
  const sold = minutes.revenue.some((value) => value != null);
  const active = minutes.sessions.some((value) => value != null);
  const from = begins([minutes.revenue, minutes.sessions], minutes.revenue.length);
  const partial = picture.partial.figures;
  reveal("sales", sold);
  document.querySelector(".as-table").hidden = !sold;
  reveal("sessions", active);
  if (sold) {
    charts.sales ??= salesChart($("sales-chart"), (index) => { pointed.sales = index; readouts(); });
    charts.sales.show(times(), minutes[series], minutes.average, series, from, partial);
    const total = series === "revenue" ? words.money(picture.hour.revenue_cents) : `${words.count(picture.hour.orders)} orders`;
    $("sales-chart").setAttribute("aria-label", `${series} per minute over the last hour, ${total} in all; the figures are in the table below`);
    table();
  }
  if (active) {
    charts.sessions ??= sessionsChart($("sessions-chart"), (index) => { pointed.sessions = index; readouts(); });
    charts.sessions.show(times(), settled(minutes.sessions, partial), from);
    $("sessions-chart").setAttribute("aria-label", `Active sessions per minute over the last hour, ${words.count(last(minutes.sessions))} in the newest minute`);
  }
  readouts();
}

function reveal(name, there) {
  $(`${name}-chart`).hidden = !there;
  $(`${name}-empty`).hidden = there;
}

/** The minute under the pointer; without a pointer, what the lines mean. */
function readouts() {
  const { minutes } = picture;
  const at = (index) => words.minute(picture.first + index * 60);
  const i = pointed.sales;
  const pointing = i != null && minutes.revenue[i] != null;
  $("sales-legend").hidden = pointing || series !== "revenue" || !charts.sales;
  const part = picture.partial.figures.includes(i) ? " · not a whole minute" : "";
  put("sales-readout", pointing ? `${at(i)} · ${words.money(minutes.revenue[i])} · ${words.count(minutes.orders[i])} orders${part}` : "");
  const j = pointed.sessions;
  const there = j != null && minutes.sessions[j] != null;
  $("sessions-legend").hidden = there;
  put("sessions-readout", there ? `${at(j)} · ${words.count(minutes.sessions[j])}` : "");
}

function table() {
  if (!document.querySelector(".as-table").open) return;
  const { revenue, orders, sessions } = picture.minutes;
  const rows = times().map((t, i) => [words.minute(t), words.money(revenue[i]), words.count(orders[i]), words.count(sessions[i])]);
  lists.rows($("sales-table"), rows.filter((_, i) => revenue[i] != null).slice(-15).reverse());
}

function foot() {
  const { reading, settings, at } = picture;
  const parts = [`Reads committed figures from ${settings.cluster}`, `picture of ${words.moment(at)}`];
  if (reading.missing.length) parts.push(`topics not there yet: ${reading.missing.join(", ")}`);
  if (reading.strange) parts.push(`${words.count(reading.strange)} records were not understood`);
  put("foot", `${parts.join(" · ")}.`);
}

// -- what a reader can do -----------------------------------------------------------------------

const THEMES = ["", "light", "dark"];
const THEME_WORDS = { "": "as the system", light: "light", dark: "dark" };

function chooseTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").setAttribute("aria-label", `Colours: ${THEME_WORDS[theme]}`);
  $("theme").title = `Colours: ${THEME_WORDS[theme]}`;
  try { localStorage.setItem("theme", theme); } catch { /* a private window keeps nothing */ }
  repaint();
}

function repaint() {
  for (const chart of Object.values(charts)) chart.repaint();
}

$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "";
  chooseTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
for (const button of document.querySelectorAll("[data-series]")) {
  button.addEventListener("click", () => {
    series = button.dataset.series;
    for (const each of document.querySelectorAll("[data-series]")) each.setAttribute("aria-pressed", String(each === button));
    if (picture) time();
  });
}
document.querySelector(".as-table").addEventListener("toggle", () => picture && table());

chooseTheme(document.documentElement.dataset.theme ?? "");
setInterval(judge, 1000);
listen();
