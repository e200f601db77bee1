// The dialog of a change: its plan with the tables before and after, then its progress.

import { element, fill, table } from "./dom.js";
import { get, path, post } from "./api.js";
import { chip } from "./brokers.js";
import { plural, ranges } from "./format.js";

const POLL_MS = 500;
const ENDED = new Set(["done", "failed", "cancelled", "refused", "unknown"]);
const ROWS_MAX = 200;

/** Plan an order and show it. */
export async function openPlan(title, order) {
  const body = element("div", { class: "plan", "aria-live": "polite" }, element("p", { class: "quiet" }, "Planning…"));
  const close = element("button", { type: "button" }, "Close");
  const buttons = element("div", { class: "actions" }, close);
  const dialog = element("dialog", { "aria-label": title }, element("h2", {}, title), body, buttons);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const plan = await post(`${path("moves")}/plan`, order);
    if (plan.token === null) {
      fill(body, element("p", {}, `Nothing to move: ${plan.goal}.`));
      return;
    }
    fill(body, ...describe(plan));
    const apply = element("button", { type: "button", class: "primary" }, plan.moves.length ? `Move ${plural(plan.moves.length, "queue")}` : "Apply");
    apply.addEventListener("click", () => {
      apply.remove();
      run(plan, body, dialog);
    });
    buttons.prepend(apply);
  } catch (error) {
    fill(body, ...failure(error));
  }
}

async function run(plan, body, dialog) {
  try {
    let { moves } = await post(`${path("moves")}/apply`, { token: plan.token });
    const ids = new Set(moves.map((move) => move.id));
    for (;;) {
      fill(body, ...progress(plan, moves));
      if (!dialog.open || moves.every((move) => ENDED.has(move.state))) return;
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
      const known = new Map((await get(`${path("moves")}?all=true`)).moves.filter((move) => ids.has(move.id)).map((move) => [move.id, move]));
      moves = moves.map((move) => known.get(move.id) ?? move);
    }
  } catch (error) {
    fill(body, ...failure(error));
  }
}

function describe(plan) {
  const effect = plan.marks ? element("p", {}, `Marks the broker as ${plan.marks}.`) : null;
  const moves = plan.moves.map((move) => [move.topic, String(move.queue), chip(move.source), chip(move.target)]);
  return [
    element("p", {}, `Afterwards ${plan.goal}. No message is copied and no send fails.`),
    effect,
    table("Moves", ["Topic", "Queue", "From", "To"], moves.slice(0, ROWS_MAX), { numeric: [1], empty: "no queue moves" }),
    ...plan.tables.map((each) =>
      element("div", { class: "pair" }, mapping(`${each.topic} before`, each.before, each.after), mapping(`${each.topic} after`, each.after, each.before)),
    ),
  ];
}

function mapping(caption, rows, others) {
  const key = (row) => `${row.broker} ${row.queue_id} ${row.label} ${row.status}`;
  const known = new Set(others.map(key));
  const shown = rows.slice(0, ROWS_MAX).map((row) => {
    const mark = (text) => (known.has(key(row)) ? text : element("strong", {}, text));
    return [chip(row.broker), String(row.queue_id), mark(row.label), mark(row.status)];
  });
  return table(caption, ["Broker", "Physical", "Logical queue", "Status"], shown, { numeric: [1] });
}

function progress(plan, moves) {
  const done = moves.filter((move) => move.state === "done").reduce((total, move) => total + move.queues.length, 0);
  const total = moves.reduce((sum, move) => sum + move.queues.length, 0);
  const rows = moves.map((move) => [
    move.topic,
    ranges(move.queues),
    chip(move.source),
    chip(move.target),
    move.reason ? `${move.state}: ${move.reason}` : move.state,
    ["planned", "prepared"].includes(move.state) ? cancelButton(move) : "",
  ]);
  return [
    element("p", {}, moves.length ? `${done} of ${plural(total, "queue")} moved. The moves continue if this page is closed.` : `Done: ${plan.goal}.`),
    element("progress", { max: Math.max(1, total), value: total ? done : 1, "aria-label": "queues moved" }),
    table("Progress", ["Topic", "Queues", "From", "To", "State", ""], rows, { empty: "no queue had to move" }),
  ];
}

function cancelButton(move) {
  const cancel = () => post(path("moves", move.id, "cancel")).catch(() => {});
  return element("button", { type: "button", "aria-label": `Cancel the move of ${move.topic} ${ranges(move.queues)}`, on: { click: cancel } }, "Cancel");
}

function failure(error) {
  return [
    element("p", { class: "problem" }, error.message),
    ...(error.details ?? []).map((text) => element("p", { class: "quiet" }, text)),
    element("p", {}, error.remedy ? `What to do: ${error.remedy}.` : ""),
  ];
}
