// The overview: what needs attention, which broker leads how much, which moves are in progress.

import { element, fill, prose, table } from "./dom.js";
import { chip, colour } from "./brokers.js";
import { count, percent, plural, rate } from "./format.js";
import { openPlan } from "./plan.js";
import { moveList } from "./moves.js";

export function overview() {
  const attention = element("section", { class: "attention", "aria-live": "polite" });
  const figures = element("dl", { class: "figures" });
  const brokers = element("section", {});
  const moves = element("section", {});
  const root = element("div", {}, element("h1", {}, "Overview"), attention, figures, brokers, moves);
  fill(brokers, element("p", { class: "quiet" }, "Reading the cluster…"));

  function showCluster(cluster) {
    const { brokers: list, down } = cluster.brokers;
    const sum = (name) => list.reduce((total, broker) => total + (broker[name] ?? 0), 0);
    const led = Object.values(cluster.leads).reduce((total, number) => total + number, 0);
    fill(
      attention,
      ...(cluster.problems.length
        ? cluster.problems.map((text) => element("p", { class: "problem" }, ...prose(text)))
        : [element("p", { class: "well" }, list.length ? "Nothing needs attention." : "No broker is running. Start one with `holdfast up`.")]),
    );
    fill(
      figures,
      ...[
        ["brokers", count(list.length + Object.keys(down).length)],
        ["topics", count(cluster.topics.length)],
        ["logical queues", count(led)],
        ["messages in", rate(sum("puts_per_second"))],
        ["messages out", rate(sum("gets_per_second"))],
      ].map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text))),
    );
    const most = Math.max(1, ...Object.values(cluster.leads));
    const actions = element("div", { class: "actions" }, button("Rebalance…", { kind: "rebalance" }));
    const rows = list.map((broker) => [
      element("span", {}, chip(broker.name), broker.id ? ` replica ${broker.id}` : ""),
      broker.cluster,
      leadBar(broker.name, cluster.leads[broker.name] ?? 0, most),
      rate(broker.puts_per_second),
      rate(broker.gets_per_second),
      percent(broker.disk_used_percent),
      stateOf(broker),
      broker.id || broker.leads === null
        ? ""
        : broker.draining
          ? button("Spread…", { kind: "spread", broker: broker.name })
          : button("Drain…", { kind: "drain", broker: broker.name }),
    ]);
    for (const [name, leads] of Object.entries(down)) {
      rows.push([chip(name), "–", leadBar(name, leads, most), "–", "–", "–", element("strong", { class: "bad" }, "down"), ""]);
    }
    fill(
      brokers,
      actions,
      table("Brokers", ["Broker", "Cluster", "Leads", "In", "Out", "Disk", "State", "Change"], rows, { numeric: [3, 4, 5], empty: "no broker" }),
    );
  }

  return {
    root,
    update(name, value) {
      // A table that is drawn anew would take the focus from the button in it.
      if (name === "cluster" && !brokers.contains(document.activeElement)) showCluster(value);
      else if (name === "cluster") setTimeout(() => brokers.contains(document.activeElement) || showCluster(value), 5000);
      if (name === "moves") fill(moves, moveList(value));
    },
  };
}

function button(text, order) {
  const name = order.broker ? `${text.replace("…", "")} ${order.broker}` : text.replace("…", "");
  return element("button", { type: "button", class: "change", "aria-label": name, on: { click: () => openPlan(name, order) } }, text);
}

function leadBar(name, leads, most) {
  const bar = element("i", { class: "lead", vars: { ...colour(name), "--part": String(Math.round((100 * leads) / most)) }, "aria-hidden": "true" });
  return element("span", { class: "leads", title: `${name} leads ${plural(leads, "logical queue")}` }, bar, count(leads));
}

function stateOf(broker) {
  if (broker.fault) return element("strong", { class: "bad", title: broker.fault }, "does not answer");
  if (broker.draining) return broker.leads ? `draining, ${plural(broker.leads, "queue")} to go` : "drained";
  return broker.replication ?? "in service";
}
