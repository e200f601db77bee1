// The live map of a topic: a row for each queue, its segments as blocks, the positions of consumer groups as marks.

import { element, fill, prose, table } from "./dom.js";
import { get, path } from "./api.js";
import { chip, colour, learn } from "./brokers.js";
import { count, plural, ranges, short, time } from "./format.js";
import { locate, pieces, place, size } from "./scale.js";
import { openPlan } from "./plan.js";
import { moveList } from "./moves.js";

const ROW_PX = 40;
const SPARE_ROWS = 8;
const MARK_PX = 14;
// What a row has beside its bar, as in the style sheet.
const marginsPx = () => (matchMedia("(max-width: 700px)").matches ? 44 + 58 : 66 + 74);
const MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const WORDS = { leader: "Normal, accepts writes", sealed: "ReadOnly", expired: "Expired", gap: "gap of a forced move", prepared: "prepared by a move" };

export function topic(name) {
  const facts = element("dl", { class: "figures" });
  const notices = element("div", { "aria-live": "polite" });
  const groups = element("ul", { class: "groups", "aria-label": "Consumer groups" });
  const filter = element("input", { type: "search", placeholder: "Filter: queue, broker, lag, moving", "aria-label": "Filter queues", on: { input: draw } });
  const fit = element("input", { type: "checkbox", on: { change: draw } });
  const zoom = element("input", { type: "range", min: "1", max: "20", value: "1", "aria-label": "Zoom", on: { input: draw } });
  const tools = element("div", { class: "tools" }, filter, element("label", {}, fit, " each row at full width"), element("label", {}, "Zoom ", zoom));
  const legend = element("ul", { class: "legend", "aria-label": "Legend" });
  const canvas = element("div", { class: "rows", role: "list", "aria-label": `Queues of ${name}` });
  const view = element("div", { class: "map" }, canvas);
  const detail = element("section", { class: "detail", "aria-live": "polite" });
  const root = element(
    "div",
    {},
    element("p", { class: "trail" }, element("a", { href: "#/topics" }, "Topics"), " / "),
    element("h1", {}, name),
    notices,
    facts,
    groups,
    tools,
    legend,
    view,
    detail,
  );
  let map = null; // the newest value
  let rows = [];
  let selected = null;
  let brokers = [];
  let pending = 0;
  // Rows that were drawn anew under the pointer would lose its click or its drag.
  let isHeld = false;
  let isDragged = false;
  fill(facts, element("p", { class: "quiet" }, "Reading the topic…"));

  const observer = new ResizeObserver(() => later());
  observer.observe(view);
  view.addEventListener("scroll", () => later());
  addEventListener("scroll", later, { passive: true });
  canvas.addEventListener("keydown", step);
  canvas.addEventListener("pointerdown", () => (isHeld = true));
  canvas.addEventListener("dragstart", () => (isDragged = true));
  canvas.addEventListener("dragend", () => ((isDragged = false), later()));
  addEventListener("pointerup", release);
  addEventListener("pointercancel", release);

  function release() {
    isHeld = false;
    later();
  }

  // A logical queue keeps its number when it moves; in a normal topic each broker has a queue with the number.
  const keyOf = (queue) => (map.kind === "static" ? String(queue.queue) : `${queue.queue}/${queue.leader}`);

  function later() {
    if (!pending) pending = requestAnimationFrame(() => ((pending = 0), drawRows()));
  }

  function show(value) {
    if (value.error) {
      fill(notices, element("p", { class: "problem" }, value.error.message), element("p", {}, `What to do: ${value.error.remedy}.`));
      if (map === null) fill(facts);
      return;
    }
    map = value.map;
    learn(map.queues.flatMap((queue) => queue.segments.map((segment) => segment.broker)));
    fill(
      notices,
      ...map.problems.map((text) => element("p", { class: "problem" }, ...prose(text))),
      map.unled.length ? element("p", { class: "problem" }, `No broker leads queue ${ranges(map.unled)}.`) : null,
      map.moves.length ? moveList({ moves: map.moves, ended: [] }) : null,
    );
    const parts = map.queues.map(pieces);
    const total = parts.reduce((sum, each) => sum + size(each), 0);
    fill(
      facts,
      ...[
        ["kind", map.kind],
        [map.kind === "static" ? "logical queues" : "queues", count(map.total)],
        ["scope", map.scope],
        ["messages", count(total)],
        ["seen by clients as", map.shown_to_clients_as],
      ]
        .filter(([, text]) => text !== null)
        .map(([title, text]) => element("div", {}, element("dt", {}, title), element("dd", {}, text))),
    );
    drawGroups();
    drawLegend();
    draw();
  }

  function drawGroups() {
    const items = map.groups.map((group, at) =>
      element(
        "li",
        { title: group.fault },
        element("b", { class: "mark-letter", "aria-hidden": "true" }, MARKS[at] ?? "•"),
        `${group.group} `,
        element("span", { class: group.lag ? "behind" : "quiet" }, group.fault ? "lag unknown" : group.lag ? `${count(group.lag)} behind` : "up to date"),
      ),
    );
    if (map.groups_left_out) items.push(element("li", { class: "quiet" }, `and ${plural(map.groups_left_out, "group")} more`));
    fill(groups, ...(items.length ? items : [element("li", { class: "quiet" }, "no group consumes it")]));
  }

  function drawLegend() {
    const led = new Map();
    for (const queue of map.queues) led.set(queue.leader, (led.get(queue.leader) ?? 0) + 1);
    for (const queue of map.queues) for (const each of queue.segments) if (!led.has(each.broker)) led.set(each.broker, 0);
    if (map.kind === "static") for (const broker of brokers) if (!led.has(broker)) led.set(broker, 0);
    const names = [...led].sort(([one], [other]) => (one < other ? -1 : 1));
    const kinds = new Set(map.queues.flatMap((queue) => pieces(queue).map((part) => part.kind)));
    fill(
      legend,
      ...[...kinds].map((kind) => element("li", {}, element("i", { class: `block sample is-${kind}`, "aria-hidden": "true" }), WORDS[kind])),
      ...names.map(([broker, number]) => element("li", {}, chip(broker, ` leads ${number}`))),
    );
  }

  function draw() {
    if (map === null) return;
    const text = filter.value.trim().toLowerCase();
    rows = map.queues.filter((queue) => matches(queue, text)).map((queue) => ({ queue, parts: pieces(queue) }));
    canvas.style.height = `${Math.max(1, rows.length) * ROW_PX}px`;
    canvas.style.width = zoom.value === "1" ? "" : `${Number(zoom.value) * 100}%`;
    drawRows();
    drawDetail();
  }

  function drawRows() {
    if (map === null || isHeld || isDragged) return;
    const focused = canvas.contains(document.activeElement) ? document.activeElement.dataset.row : null;
    const box = canvas.getBoundingClientRect();
    const first = Math.max(0, Math.floor(-box.top / ROW_PX) - SPARE_ROWS);
    const last = Math.min(rows.length, Math.ceil((innerHeight - box.top) / ROW_PX) + SPARE_ROWS);
    const width = Math.max(60, canvas.clientWidth - marginsPx());
    const most = Math.max(1, ...rows.map((row) => size(row.parts)));
    const drawn = [];
    for (let at = first; at < last; at += 1) drawn.push(drawRow(rows[at], at, width, fit.checked ? size(rows[at].parts) : most));
    fill(canvas, ...(rows.length ? drawn : [element("p", { class: "quiet" }, map.queues.length ? "no queue matches" : "it has no queues")]));
    if (focused !== null) canvas.querySelector(`[data-row="${focused}"]`)?.focus({ preventScroll: true });
  }

  function drawRow({ queue, parts }, at, width, most) {
    const placed = place(parts, width, most);
    const lag = Math.max(0, ...queue.positions.map((position) => position.lag));
    const id = keyOf(queue);
    const button = element(
      "button",
      { type: "button", class: "queue", "data-row": at, "aria-pressed": String(id === selected), "aria-label": describe(queue), on: { click: () => select(id) } },
      String(queue.queue),
    );
    const bar = element("div", { class: "line", "aria-hidden": "true", on: { click: () => select(id) } });
    bar.append(...placed.map((part) => block(part, queue)));
    bar.append(...marks(queue, placed));
    const end = element("span", { class: lag ? "end behind" : "end" }, lag ? `−${short(lag)}` : queue.end === null ? "?" : short(queue.end));
    end.title = lag ? `the slowest group is ${count(lag)} messages behind` : `the next offset is ${count(queue.end)}`;
    const row = element("div", { class: id === selected ? "row is-selected" : "row", role: "listitem" }, button, bar, end);
    row.style.top = `${at * ROW_PX}px`;
    if (map.kind === "static") dragging(row, queue);
    return row;
  }

  /** Return the positions of groups. Those at the same place share a mark, so that no letter covers another. */
  function marks(queue, placed) {
    const shared = [];
    const known = queue.positions.filter((position) => position.committed !== null);
    const at = (position) => locate(placed, position.committed);
    for (const position of known.sort((one, other) => at(one) - at(other))) {
      const last = shared.at(-1);
      if (last && at(position) - last.left < MARK_PX * last.positions.length) last.positions.push(position);
      else shared.push({ left: at(position), positions: [position] });
    }
    return shared.map(({ left, positions }) => {
      const letters = positions.map((position) => MARKS[map.groups.findIndex((group) => group.group === position.group)] ?? "•").sort();
      const title = positions.map((position) => `${position.group} at ${count(position.committed)}, ${count(position.lag)} behind`).join("\n");
      const mark = element("i", { class: "mark", title }, letters.join(" "));
      mark.style.left = `${left}px`;
      return mark;
    });
  }

  function block(part, queue) {
    const { segment } = part;
    const made = element("span", { class: `block is-${part.kind}`, vars: colour(segment.broker) });
    made.style.left = `${part.left}px`;
    made.style.width = `${Math.max(2, part.width - 2)}px`;
    made.title =
      part.kind === "gap"
        ? `a gap of offsets: ${count(part.from)} to ${count(part.to)}`
        : `${segment.broker}, physical queue ${segment.physical_queue}: ${count(part.from)} to ${count(part.to)}. ${WORDS[part.kind]}${segment.note ? `; ${segment.note}` : ""}`;
    if (part.kind !== "gap" && part.width > 54) made.textContent = segment.broker;
    if (part.kind === "leader" && queue.moving_to) made.classList.add("is-moving");
    return made;
  }

  function dragging(row, queue) {
    row.draggable = true;
    row.addEventListener("dragstart", (event) => event.dataTransfer.setData("text/plain", String(queue.queue)));
  }

  function drawDetail() {
    const queue = map.queues.find((each) => keyOf(each) === selected);
    if (!queue) {
      fill(detail, element("p", { class: "quiet" }, "Select a queue to see its segments. Arrow keys move between queues."));
      return;
    }
    if (detail.contains(document.activeElement) && document.activeElement.matches("select, button")) return;
    const segments = queue.segments.map((segment) => [
      segment.generation === null ? "?" : String(segment.generation),
      chip(segment.broker),
      String(segment.physical_queue),
      count(segment.first),
      count(segment.end),
      segment.status,
      time(segment.last_ms),
      segment.note ?? "",
    ]);
    const positions = queue.positions.map((position) => [position.group, count(position.committed), count(position.lag)]);
    const title = map.kind === "static" ? `Logical queue ${queue.queue}` : `Queue ${queue.queue} of ${queue.leader}`;
    fill(
      detail,
      element("h2", {}, title),
      map.kind === "static" ? mover(queue) : null,
      table("Segments", ["Segment", "Broker", "Physical", "First", "End", "Status", "Last stored", "Note"], segments, { numeric: [0, 2, 3, 4] }),
      table("Consumer groups", ["Group", "Position", "Behind"], positions, { numeric: [1, 2], empty: "no group has a position here" }),
    );
  }

  function mover(queue) {
    const others = brokers.filter((broker) => broker !== queue.leader);
    if (!others.length) return element("p", { class: "quiet" }, `${queue.leader} leads it.`);
    const choice = element("select", { "aria-label": "New leader" }, ...others.map((broker) => element("option", { value: broker }, broker)));
    const move = () => openPlan(`Move queue ${queue.queue} of ${name}`, { kind: "migrate", topic: name, queue: queue.queue, to: choice.value });
    return element("p", { class: "actions change" }, chip(queue.leader, " leads it."), " Move it to ", choice, " ", element("button", { type: "button", on: { click: move } }, "Plan…"));
  }

  function select(id) {
    selected = id === selected ? null : id;
    drawRows();
    drawDetail();
  }

  function step(event) {
    const at = Number(document.activeElement?.dataset?.row ?? Number.NaN);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (Number.isNaN(at) || by === undefined || !rows.length) return;
    event.preventDefault();
    const next = Math.min(rows.length - 1, Math.max(0, at + by));
    const top = canvas.getBoundingClientRect().top + next * ROW_PX;
    if (top < 60 || top > innerHeight - 2 * ROW_PX) scrollBy(0, top - innerHeight / 2);
    drawRows();
    canvas.querySelector(`[data-row="${next}"]`)?.focus({ preventScroll: true });
  }

  legend.addEventListener("dragover", (event) => event.preventDefault());
  legend.addEventListener("drop", (event) => {
    const target = event.target.closest("li")?.querySelector(".chip")?.dataset.broker;
    const queue = Number(event.dataTransfer.getData("text/plain"));
    if (target) openPlan(`Move queue ${queue} of ${name}`, { kind: "migrate", topic: name, queue, to: target });
  });

  get(path("topics", name, "map"))
    .then((value) => map === null && show({ map: value }))
    .catch((error) => map === null && show({ error: { message: error.message, remedy: error.remedy ?? "" } }));

  return {
    root,
    update(kind, value) {
      if (kind === "topic" && value.topic === name) show(value);
      // Every live broker is in the legend: queues can be dragged to it.
      if (kind === "cluster") brokers = value.brokers.brokers.filter((each) => !each.id && !each.fault).map((each) => each.name);
    },
    close() {
      observer.disconnect();
      removeEventListener("scroll", later);
      removeEventListener("pointerup", release);
      removeEventListener("pointercancel", release);
      cancelAnimationFrame(pending);
    },
  };
}


function matches(queue, text) {
  if (!text) return true;
  if (text === "lag") return queue.positions.some((position) => position.lag > 0);
  if (text === "moving") return queue.moving_to !== null;
  if (/^\d+$/.test(text)) return String(queue.queue) === text;
  return queue.segments.some((segment) => segment.broker.toLowerCase().includes(text));
}

function describe(queue) {
  const segments = plural(queue.segments.length, "segment");
  const lags = queue.positions.filter((position) => position.lag).map((position) => `${position.group} is ${count(position.lag)} behind`);
  const move = queue.moving_to ? `, moving to ${queue.moving_to}` : "";
  return `Queue ${queue.queue}, led by ${queue.leader}${move}, ${segments}, offsets ${count(queue.first)} to ${count(queue.end)}. ${lags.join(", ")}`;
}
