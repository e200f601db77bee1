// Moves in progress, and the last ones that ended.

import { element, table } from "./dom.js";
import { path, post } from "./api.js";
import { chip } from "./brokers.js";
import { ranges, time } from "./format.js";

const OPEN = new Set(["planned", "prepared"]);

/** Return a table of moves. */
export function moveList({ moves, ended }) {
  const rows = [...moves, ...ended].map((move) => [
    element("a", { href: `#/topics/${encodeURIComponent(move.topic)}` }, move.topic),
    ranges(move.queues),
    chip(move.source),
    chip(move.target),
    move.reason ? `${move.state}: ${move.reason}` : move.state,
    time(move.changed_ms || move.started_ms),
    OPEN.has(move.state) ? act("Cancel", move, "cancel") : move.state === "failed" ? act("Resume", move, "resume") : "",
  ]);
  return table("Moves", ["Topic", "Queues", "From", "To", "State", "Changed", "Change"], rows, { empty: "no moves" });
}

function act(text, move, verb) {
  const label = `${text} the move of ${move.topic} ${ranges(move.queues)}`;
  const button = element("button", { type: "button", class: "change", "aria-label": label }, text);
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await post(path("moves", move.id, verb));
    } catch (error) {
      button.replaceWith(element("span", { class: "bad" }, error.message));
    }
  });
  return button;
}
