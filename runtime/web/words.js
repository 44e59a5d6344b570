// Sentences for people: what went wrong and what to do, what a token is, what a reply took.

const SOURCES = {
  draft: "drafted in INT4, accepted by FP16",
  target: "FP16's own",
  unverified: "INT4, not checked",
};

/** Return [title, sentence] for a Trouble. */
export function troubleWords(trouble) {
  const again = trouble.retryAfterS ? `Try again in about ${Math.ceil(trouble.retryAfterS)} s.` : "Try again in a moment.";
  return {
    offline: ["The server does not answer", "Is it still running? Your message is kept."],
    broken: ["The connection broke off", "What had arrived is kept."],
    key: ["An API key is needed", "Your message is kept; give a key and try again."],
    busy: ["The server is busy", `Too many requests wait already. ${again}`],
    loading: ["The server is not ready", `It is loading the model or shutting down. ${again}`],
    refused: ["The server did not take this", sentence(trouble.message)],
    failed: ["The server had a problem", sentence(trouble.message)],
  }[trouble.kind];
}

/** Return one line about a token. */
export function tokenWords([text, source, gear, bits, , , round], at) {
  const shown = text === "" ? "(part of a character)" : `“${text.replaceAll("\n", "↵")}”`;
  const entropy = bits === null ? "" : `, entropy ${bits.toFixed(2)} bits`;
  return `Token ${at + 1} ${shown}: ${SOURCES[source] ?? source}${entropy}, gear ${gear}, round ${round}`;
}

/** Return one line about a finished reply, from the last chunk's facts. */
export function replyWords(facts, finish) {
  const parts = [`${facts.new_tokens} tokens`];
  if (facts.tokens_per_s) parts.push(`${facts.tokens_per_s.toFixed(1)} tokens/s`);
  if (facts.acceptance_rate !== null) parts.push(`${percent(facts.acceptance_rate)} of drafts accepted`);
  if (facts.int4_layer_share !== null) parts.push(`${percent(facts.int4_layer_share)} of layer passes in INT4`);
  if (facts.joules !== null) parts.push(`${facts.joules.toFixed(1)} J${facts.energy ? ` (${facts.energy.source})` : ""}`);
  parts.push(`mode ${facts.mode}`);
  if (finish === "length") parts.push(facts.is_time_limit ? "cut at the time limit" : "cut at the token limit");
  return parts.join(" · ");
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

function sentence(text) {
  const trimmed = text.trim();
  return trimmed.charAt(0).toUpperCase() + trimmed.slice(1) + (/[.!?]$/.test(trimmed) ? "" : ".");
}
