// Server-sent events out of a response's body. Knows the framing, not what the events mean.

/** Yield the data of each event; comments and other fields are left out. Ends where the body ends. */
export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const lines = event.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}
