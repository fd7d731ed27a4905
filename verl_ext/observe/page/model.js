// Data: an index of the logged steps, and per step one compressed chunk that is unpacked when it is looked at.

const INDEX = JSON.parse(document.getElementById("index").textContent);
const unpacked = new Map();

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
// Of any number of values: spreading very many into Math.max overflows the stack.
const greatest = (values, least) => values.reduce((most, value) => Math.max(most, value), least);
const smallest = (values, most) => values.reduce((least, value) => Math.min(least, value), most);
const listOf = (value) => (Array.isArray(value) ? value : []);

/** A number for reading: two decimals or none, a real minus sign, an en dash for what is not there. */
function figure(value, signed = false, digits = 2) {
  if (!isNumber(value)) return "–";
  const text =
    Number.isInteger(value) || Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(digits);
  return (signed && value > 0 ? "+" : "") + text.replace("-", "−");
}

/** The same in a column of a table: always as many decimals. */
const aligned = (value, signed = false, digits = 3) =>
  isNumber(value) ? (signed && value > 0 ? "+" : "") + value.toFixed(digits).replace("-", "−") : "–";

const percent = (share) => (isNumber(share) ? `${+(100 * share).toFixed(1)} %` : "–");
const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** The questions logged at moment `i` of the index, with their calls. */
function load(i) {
  if (!unpacked.has(i)) unpacked.set(i, unpack(i));
  return unpacked.get(i);
}

async function unpack(i) {
  const packed = atob(document.getElementById(`chunk-${i}`).textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text()).map(prepare);
}

/** Adds to a question what the views ask of it again and again. */
function prepare(question) {
  question.calls.forEach((call, number) => {
    call.node = `c${number}`;
    call.children = [];
    call.rewards = call.rewards || {};
    call.level = averageAdvantage(call);
    call.bad = call.status !== "ok";
  });
  question.tools.forEach((tool, number) => Object.assign(tool, { node: `t${number}`, bad: tool.failure != null }));
  question.byId = new Map(question.calls.map((call) => [call.id, call]));
  for (const call of question.calls) {
    call.parentCalls = listOf(call.parents)
      .map((id) => question.byId.get(id))
      .filter(Boolean);
    for (const parent of call.parentCalls) parent.children.push(call);
  }
  question.nodes = new Map([...question.calls, ...question.tools].map((item) => [item.node, item]));
  const finished = question.trajectories.filter((trajectory) => trajectory.status === "ok");
  question.reward = mean(finished.map((trajectory) => trajectory.reward).filter(isNumber));
  question.failed = question.trajectories.length - finished.length;
  question.bad = question.failed > 0 || question.calls.some((call) => call.bad) || question.tools.some((t) => t.bad);
  question.identity = JSON.stringify([question.source, question.index]);
  question.strongest = greatest(question.calls.map(strongestAdvantage), 1e-9);
  return question;
}

/** Of the tokens that train; the others have no advantage (null). */
function averageAdvantage(call) {
  return Array.isArray(call.advantage) ? mean(call.advantage.filter(isNumber)) : (call.advantage ?? null);
}

function strongestAdvantage(call) {
  const values = Array.isArray(call.advantage) ? call.advantage : [call.advantage];
  return values.filter(isNumber).reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** Where a trajectory or call was forked; `reranker.0*2` is the second further sample of a call, `*2` of the first. */
function forkOf(item) {
  const [base, ...forks] = listOf(item.stream);
  const words = forks.map((fork) => {
    const star = fork.lastIndexOf("*");
    return star < 0 ? fork : `${fork.slice(0, star) || "the first call"} (sample ${fork.slice(star + 1)})`;
  });
  return words.length ? `${base} at ${words.join(", then at ")}` : "";
}

/** Numbers of the questions of a step in the order of every list: lowest reward first. */
const byReward = (questions) =>
  questions
    .map((_, q) => q)
    .sort((a, b) => (questions[a].reward ?? -Infinity) - (questions[b].reward ?? -Infinity));

/** What a call is called within its question: scope, agent, turn. */
const placeOf = (call) =>
  [...listOf(call.scope), call.turn ? `${call.agent} ${call.turn + 1}` : call.agent].join(" / ");

/** Per agent, in order of first appearance: its calls and what the tables show of them. */
function byAgent(questions) {
  const agents = new Map();
  for (const question of questions) {
    for (const call of question.calls) {
      if (!agents.has(call.agent)) agents.set(call.agent, []);
      agents.get(call.agent).push(call);
    }
  }
  return [...agents].map(([name, calls]) => {
    const term = (part) => calls.map((call) => call.rewards[part]).filter(isNumber);
    const statuses = new Map();
    for (const call of calls) statuses.set(call.status, (statuses.get(call.status) || 0) + 1);
    return {
      name,
      policy: [...new Set(calls.map((call) => call.policy).filter(Boolean))].join(", "),
      statuses,
      calls: calls.length,
      rewards: term("total"),
      reward: mean(term("total")),
      shared: mean(term("shared")),
      specific: mean(term("specific")),
      notOk: calls.filter((call) => call.bad).length / calls.length,
      tokens: mean(calls.map((call) => call.generated_tokens).filter(isNumber)),
    };
  });
}

/** Numbers of values in `bins` equal intervals between `low` and `high`. */
function histogram(values, low, high, bins) {
  const heights = new Array(bins).fill(0);
  const width = (high - low) / bins || 1;
  for (const value of values) heights[Math.min(bins - 1, Math.max(0, Math.floor((value - low) / width)))] += 1;
  return heights;
}

/** Distinct outputs of calls, the most frequent first: [{text, calls, reward}]. */
function distinct(calls) {
  const found = new Map();
  for (const call of calls) found.set(call.output, [...(found.get(call.output) || []), call]);
  const rows = [...found].map(([text, same]) => ({
    text,
    calls: same,
    reward: mean(same.map((call) => call.rewards.total).filter(isNumber)),
  }));
  return rows.sort((a, b) => b.calls.length - a.calls.length);
}
