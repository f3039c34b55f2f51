// Numbers, money and times as people in the reader's language write them.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const brief = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });
const share = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const exact = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });

let currency = "";
let full, short, small;

export function useCurrency(code) {
  if (code === currency) return;
  currency = code;
  const money = (options) => {
    try { return new Intl.NumberFormat(undefined, { style: "currency", currency: code, ...options }); }
    catch { return new Intl.NumberFormat(undefined, options); }
  };
  full = money({ maximumFractionDigits: 0 });
  small = money({});
  short = money({ notation: "compact", maximumFractionDigits: 1 });
}

export const count = (n) => (n == null ? "–" : whole.format(n));
export const compact = (n) => (n == null ? "–" : n < 100_000 ? whole.format(n) : brief.format(n));
export const percent = (part, of) => (of ? share.format(part / of) : "–");
export const minute = (seconds) => clock.format(seconds * 1000);
export const moment = (ms) => exact.format(ms);

/** Cents, with as many digits as matter. */
export function money(cents) {
  if (cents == null) return "–";
  const amount = cents / 100;
  if (amount >= 1_000_000) return short.format(amount);
  return amount < 1000 ? small.format(amount) : full.format(amount);
}
export const axisMoney = (cents) => short.format(cents / 100);
export const axisCount = (n) => brief.format(n);

/** How long something takes or has lasted, in its two largest units at most. */
export function span(seconds) {
  if (seconds == null) return "–";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 3600) return s < 600 ? `${Math.floor(s / 60)} min ${Math.round(s % 60)} s` : `${Math.round(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.round(s / 86_400)} days`;
}
/** The same in one unit, since it grows while it is read. */
export function ago(seconds) {
  const s = Math.round(seconds);
  if (s < 2) return "just now";
  if (s < 100) return `${s} s ago`;
  if (s < 6000) return `${Math.round(s / 60)} min ago`;
  return s < 129_600 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86_400)} days ago`;
}
