// The list of topics.

import { element, fill, table } from "./dom.js";
import { get, path } from "./api.js";
import { chip } from "./brokers.js";
import { count, plural } from "./format.js";

const BROKERS_MAX = 6;

export function topics() {
  const list = element("section", {}, element("p", { class: "quiet" }, "Reading the topics…"));
  const filter = element("input", { type: "search", placeholder: "Filter by name or broker", "aria-label": "Filter topics", on: { input: show } });
  const all = element("input", { type: "checkbox", id: "all", on: { change: load } });
  const heading = element("h1", {}, "Topics");
  const tools = element("div", { class: "tools" }, filter, element("label", {}, all, " system topics, too"));
  const root = element("div", {}, heading, tools, list);
  let found = null;
  let names = "";

  function show() {
    if (found === null) return;
    const text = filter.value.toLowerCase();
    const shown = found.filter((each) => [each.name, ...each.brokers].some((name) => name.toLowerCase().includes(text)));
    const rows = shown.map((each) => [
      element("a", { href: `#/topics/${encodeURIComponent(each.name)}` }, each.name),
      each.batches ? `${each.kind}, batches` : each.kind,
      count(each.queues),
      each.permission,
      [...each.brokers.slice(0, BROKERS_MAX).map((name) => chip(name)), each.brokers.length > BROKERS_MAX ? ` and ${each.brokers.length - BROKERS_MAX} more` : ""],
    ]);
    const empty = found.length ? "no topic matches" : "no topics yet: holdfast topic create orders --logical-queues 8";
    fill(list, table(plural(shown.length, "topic"), ["Topic", "Kind", "Queues", "Allows", "Brokers"], rows, { numeric: [2], empty }));
  }

  async function load() {
    try {
      found = (await get(`${path("topics")}?all=${all.checked}`)).topics;
      show();
    } catch (error) {
      fill(list, element("p", { class: "problem" }, `${error.message}. ${error.remedy ?? ""}`));
    }
  }

  load();
  return {
    root,
    update(name, value) {
      if (name !== "cluster") return;
      const newest = value.topics.join("\n") + JSON.stringify(value.leads);
      if (names && newest !== names) load();
      names = newest;
    },
  };
}
