// Server-sent events: the newest value of each name, for the page that is shown.

const RETRY_MS = 3000;

/** Listen to what changes; *topic* adds its map. Return a function that ends it. */
export function listen(topic, onEvent, onState) {
  let source = null;
  let timer = null;
  let isClosed = false;

  function open() {
    source = new EventSource(topic ? `/api/v1/events?topic=${encodeURIComponent(topic)}` : "/api/v1/events");
    for (const name of ["connection", "cluster", "moves", "topic"]) {
      source.addEventListener(name, (event) => {
        const value = JSON.parse(event.data);
        if (name === "connection") {
          const text = value.is_connected ? "live" : `cluster unreachable: ${value.error.message}`;
          onState(value.is_connected, text);
        }
        onEvent(name, value);
      });
    }
    source.addEventListener("error", () => {
      onState(false, "console unreachable, trying again");
      if (source.readyState === EventSource.CLOSED && !isClosed) timer = setTimeout(open, RETRY_MS);
    });
  }

  open();
  return () => {
    isClosed = true;
    clearTimeout(timer);
    source.close();
  };
}
