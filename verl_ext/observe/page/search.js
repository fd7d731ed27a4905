// Search through all texts of all logged steps.

const MOST_HITS = 2000;

/** Calls and tools of one question in which the text occurs: [{item, where, text}]. */
function hitsIn(question, wanted) {
  const low = wanted.toLowerCase();
  const has = (text) => typeof text === "string" && text.toLowerCase().includes(low);
  const hits = [];
  if (has(question.text)) hits.push({ item: null, where: "question", text: question.text });
  for (const call of question.calls) {
    const message = listOf(call.prompt).find((one) => has(one.content));
    if (has(call.output)) hits.push({ item: call, where: `${placeOf(call)}, output`, text: call.output });
    else if (has(call.error)) hits.push({ item: call, where: `${placeOf(call)}, error`, text: call.error });
    else if (message) hits.push({ item: call, where: `${placeOf(call)}, prompt`, text: message.content });
  }
  for (const tool of question.tools) {
    const text = [tool.failure, JSON.stringify(tool.arguments), JSON.stringify(tool.result)].find(has);
    if (text) hits.push({ item: tool, where: `tool ${tool.name}`, text });
  }
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
  const { phase, step } = INDEX.moments[hit.i];
  const open = () => go({ view: "question", at: hit.i, q: hit.q, node: hit.item?.node ?? null });
  return make(
    "button.row.hit",
    { onclick: open },
    make("span.aside", {}, `${phase} ${step} · ${hit.where}`),
    make("span.said", {}, ...excerpt(hit.text, wanted)),
  );
}
