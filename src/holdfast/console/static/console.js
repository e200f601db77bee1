// The frame: which page is shown, what it hears, and how fresh that is.

import { element, fill } from "./dom.js";
import { get, path } from "./api.js";
import { learn } from "./brokers.js";
import { listen } from "./live.js";
import { overview } from "./overview.js";
import { topics } from "./topics.js";
import { topic } from "./topic.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
const latest = {};
let page = null;
let stop = () => {};
let watched;

function showState(isLive, text) {
  connection.textContent = text;
  connection.className = `connection ${isLive ? "is-live" : "is-lost"}`;
  document.body.classList.toggle("is-stale", !isLive);
}

function receive(name, value) {
  latest[name] = value;
  if (name === "cluster") learn(value.brokers.brokers.map((broker) => broker.name));
  page?.update?.(name, value, latest);
}

function route() {
  const [kind = "", name = ""] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  page?.close?.();
  const title = kind === "topics" && name ? name : kind === "topics" ? "Topics" : "Overview";
  document.title = `${title} · Holdfast`;
  for (const link of document.querySelectorAll("nav a")) {
    const isCurrent = link.dataset.page === (kind === "topics" ? "topics" : "overview");
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const wanted = kind === "topics" && name ? name : null;
  if (wanted !== watched) {
    stop();
    delete latest.topic;
    watched = wanted;
    stop = listen(wanted, receive, showState);
  }
  try {
    page = wanted ? topic(wanted) : kind === "topics" ? topics() : overview();
  } catch (error) {
    page = null;
    fill(main, element("p", { class: "problem" }, String(error)));
    return;
  }
  fill(main, page.root);
  for (const [each, value] of Object.entries(latest)) page.update?.(each, value, latest);
}

addEventListener("hashchange", () => {
  route();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
// A read-only console offers no change. If it does not answer, the state of the connection says so.
get(path("console")).then((facts) => document.body.classList.toggle("is-read-only", facts.is_read_only === true)).catch(() => {});
route();
