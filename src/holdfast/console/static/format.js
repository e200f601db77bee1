// Numbers with units, times local with UTC on hover.

import { element } from "./dom.js";

const whole = new Intl.NumberFormat("en");
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (number) => (number === null || number === undefined ? "–" : whole.format(number));
export const rate = (number) => (number === null || number === undefined ? "–" : `${tenth.format(number)}/s`);
export const percent = (number) => (number === null || number === undefined ? "–" : `${tenth.format(number)} %`);
export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return a large number in few characters. */
export function short(number) {
  if (number === null || number === undefined) return "–";
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (number >= limit) return `${tenth.format(number / (limit === 1e4 ? 1e3 : limit))} ${unit}`;
  }
  return whole.format(number);
}

/** Return a time as an element. */
export function time(ms) {
  if (!ms || ms <= 0) return "–";
  const moment = new Date(ms);
  const pad = (part) => String(part).padStart(2, "0");
  const day = `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
  const clock = `${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}`;
  return element("time", { datetime: moment.toISOString(), title: `${moment.toISOString()} (UTC)` }, `${day} ${clock}`);
}

/** Return numbers as ranges: 0-3, 7. */
export function ranges(numbers) {
  const spans = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = spans.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else spans.push([number, number]);
  }
  return spans.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}
