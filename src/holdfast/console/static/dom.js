// Elements made from values. Text is always a text node: nothing that a message or a name contains becomes markup.

/** Return a new element. Properties: `class`, `on` (listeners by event), `vars` (CSS variables), else attributes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (name === "vars") for (const [variable, text] of Object.entries(value)) made.style.setProperty(variable, text);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...toNodes(children));
  return made;
}

/** Return the nodes of a text in which commands are in backquotes. */
export function prose(text) {
  return text.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
}

/** Replace what is inside an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...toNodes(children));
}

/** Return a table: headings, rows of cells, and which columns hold numbers. */
export function table(caption, headings, rows, { numeric = [], empty = "none" } = {}) {
  const kind = (column) => (numeric.includes(column) ? "number" : null);
  const head = headings.map((text, column) => element("th", { scope: "col", class: kind(column) }, text));
  const body = rows.map((cells) =>
    element("tr", {}, ...cells.map((cell, column) => element("td", { class: kind(column) }, ...[cell].flat()))),
  );
  const shown = body.length ? body : [element("tr", {}, element("td", { colspan: headings.length, class: "empty" }, empty))];
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...shown)),
  );
}

function toNodes(children) {
  return children.flat().filter((child) => child !== null && child !== undefined && child !== false);
}
