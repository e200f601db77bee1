// Where offsets are in a row of the map. Pure arithmetic: pieces with offsets, in; pixels, out.
//
// A segment is as wide as it has messages, but wide enough to be seen; a gap, which may leave out 2^40 offsets, has a
// fixed width. Marks use the same widths, so that they are at the right place inside their segment.

export const GAP_PX = 26;
const SEGMENT_MIN_PX = 9;

/** Return the pieces of a queue: its segments and the gaps between them, from the oldest readable offset on. */
export function pieces(queue) {
  const found = [];
  for (const segment of queue.segments) {
    if (segment.first === null) {
      found.push({ kind: "prepared", segment, from: queue.end ?? 0, to: queue.end ?? 0 });
      continue;
    }
    const end = segment.end ?? segment.first;
    const isExpired = segment.status === "Expired";
    const from = isExpired ? segment.first : Math.max(segment.first, Math.min(queue.first ?? segment.first, end));
    found.push({ kind: isExpired ? "expired" : segment.is_leader ? "leader" : "sealed", segment, from, to: Math.max(from, end) });
    if (segment.gap_after) found.push({ kind: "gap", segment, from: end, to: end });
  }
  for (let at = 0; at < found.length - 1; at += 1) if (found[at].kind === "gap") found[at].to = found[at + 1].from;
  return found;
}

/** Return how many readable messages the pieces have. */
export function size(parts) {
  return parts.reduce((total, part) => total + (part.kind === "gap" || part.kind === "expired" ? 0 : part.to - part.from), 0);
}

/** Give each piece its place: `left` and `width` in pixels. *most* is the size of the row that fills *width*. */
export function place(parts, width, most) {
  const isFixed = (part) => part.kind === "gap" || part.kind === "prepared" || part.kind === "expired";
  const fixed = parts.reduce((total, part) => total + (isFixed(part) ? GAP_PX : SEGMENT_MIN_PX), 0);
  const perMessage = Math.max(0, width - fixed) / Math.max(1, most);
  let left = 0;
  return parts.map((part) => {
    const wide = isFixed(part) ? GAP_PX : SEGMENT_MIN_PX + (part.to - part.from) * perMessage;
    const placed = { ...part, left, width: wide };
    left += wide;
    return placed;
  });
}

/** Return where an offset is, in pixels; at the near edge if it is outside. */
export function locate(placed, offset) {
  if (!placed.length) return 0;
  for (const part of placed) {
    if (offset < part.from) return part.left;
    if (offset < part.to) return part.left + (part.width * (offset - part.from)) / (part.to - part.from);
  }
  const last = placed.findLast((part) => part.kind === "leader") ?? placed.at(-1);
  return last.left + last.width;
}
