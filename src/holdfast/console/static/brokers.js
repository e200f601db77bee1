// One hue for each broker, the same on every page, and its name beside it wherever there is space.

import { element } from "./dom.js";

const GOLDEN_ANGLE = 137.508;
const order = [];

/** Let brokers have their hues, in order of their names. */
export function learn(names) {
  for (const name of [...new Set(names)].sort()) if (!order.includes(name)) order.push(name);
}

/** Return the CSS variables with the colour of a broker. */
export function colour(name) {
  learn([name]);
  return { "--hue": `${Math.round((165 + order.indexOf(name) * GOLDEN_ANGLE) % 360)}` };
}

/** Return a broker's name beside its colour. */
export function chip(name, ...more) {
  return element("span", { class: "chip", "data-broker": name }, element("i", { class: "swatch", vars: colour(name), "aria-hidden": "true" }), name, ...more);
}
