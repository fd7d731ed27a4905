// Search through all texts of all logged steps.

const MOST_HITS = 2000;

/** Every text inside a value: itself, or those of its parts. */
const textsIn = (value) =>
  typeof value === "string" ? [value] : value && typeof value === "object" ? Object.values(value).flatMap(textsIn) : [];

/** Calls and tools of one question in which the text occurs: [{item, where, text}]. */
function hitsIn(question, wanted) {
  const low = wanted.toLowerCase();
  const first = (value) => textsIn(value).find((text) => text.toLowerCase().includes(low));
  const hits = [];
  const look = (item, parts) => {
    for (const [where, value] of Object.entries(parts)) {
      const text = first(value);
      if (text !== undefined) return hits.push({ item, where, text });
    }
  };
  look(null, { question: question.text });
  look(null, { "gold answer": question.gold });
  question.trajectories.forEach((one, n) => look(null, { [`trajectory ${n}`]: [one.error, one.notes] }));
  for (const call of question.calls) {
    const place = placeOf(call);
    look(call, {
      [`${place}, output`]: call.output,
      [`${place}, error`]: call.error,
      [`${place}, reasoning`]: call.reasoning,
      [`${place}, prompt`]: listOf(call.prompt).map((message) => message.content),
    });
  }
  for (const tool of question.tools) look(tool, { [`tool ${tool.name}`]: [tool.failure, tool.arguments, tool.result] });
  return hits;
}

/** Results as they are found, step by step, the step being looked at first. */
async function searchView(state, current, go, holder) {
  const head = make("p.note", {}, "Searching …"),
    hits = [];
  let list = lazyList(0, 56, () => null);
  holder.replaceChildren(make("div.overview", {}, make("h2", {}, `“${state.find}”`), head, list));
  for (const i of [current, ...INDEX.moments.keys()].filter((i, n, all) => all.indexOf(i) === n)) {
    (await load(i)).forEach((question, q) =>
      hitsIn(question, state.find).forEach((hit) => hits.length < MOST_HITS && hits.push({ ...hit, i, q })),
    );
    if (!holder.contains(head)) return;
    head.textContent =
      hits.length < MOST_HITS
        ? `${count(hits.length, "place")} in ${count(INDEX.moments.length, "logged step")}`
        : `The first ${MOST_HITS} places. Search for something rarer to see all.`;
    const next = lazyList(hits.length, 56, (n) => hitRow(hits[n], state.find, go), "div.hits");
    list.replaceWith(next);
    list = next;
    if (hits.length >= MOST_HITS) break;
  }
}

function hitRow(hit, wanted, go) {
  const open = () => go({ view: "question", at: hit.i, q: hit.q, node: hit.item?.node ?? null });
  return make(
    "button.row.hit",
    { onclick: open },
    make("span.aside", {}, `${nameOf(hit.i)} · ${hit.where}`),
    make("span.said", {}, ...excerpt(hit.text, wanted)),
  );
}
