// Who acts after whom: the graphs of what an agent decided at two logged steps, side by side, and what they add up to.

const SIDES = [
  ["b", "step on the left"],
  ["at", "step on the right"],
];
const STRUCTURE = [
  ["length", "decisions in a path", (value) => aligned(value, false, 2)],
  ["density", "density", (value) => aligned(value, false, 2)],
  ["cycles", "cycles", (value) => aligned(value, false, 2)],
  ["entropy", "entropy, nats", (value) => aligned(value, false, 2)],
  ["paths", "different paths", percent],
  ["top_path", "on the most frequent path", percent],
];

/** The view; it stays, and `update(state)` shows other steps. */
function collaborationView(given, go) {
  let state = given;
  const sliders = SIDES.map(([side, words]) => {
    const near = () => momentsLike(state[side]);
    const slider = make("input", { type: "range", min: 0, step: 1, "aria-label": words, "data-side": side });
    slider.addEventListener("input", () => show({ ...state, [side]: near()[slider.value] }));
    slider.addEventListener("change", () => go({ [side]: near()[slider.value] }, true));
    return slider;
  });
  const names = SIDES.map(() => make("h2"));
  const body = make("div.agents");
  const show = (next) => {
    state = next;
    SIDES.forEach(([side], n) => {
      const near = momentsLike(state[side]),
        words = nameOf(state[side]);
      assign(sliders[n], { max: near.length - 1, "aria-valuetext": words });
      sliders[n].disabled = near.length < 2;
      sliders[n].value = near.indexOf(state[side]);
      names[n].textContent = words;
    });
    body.replaceChildren(...INDEX.collaboration.map((agent) => agentView(agent, [state.b, state.at], go)));
  };
  show(state);
  const steps = make("div.two", {}, ...names.map((name, n) => make("div.step", {}, name, sliders[n])));
  return Object.assign(make("div.overview.collaboration", {}, steps, body), { update: show });
}

/** Logged steps of the same phase as `i`. */
const momentsLike = (i) =>
  [...INDEX.moments.keys()].filter((other) => INDEX.moments[other].phase === INDEX.moments[i].phase);

/** An agent's decisions at two logged steps: graphs, tables, the most frequent paths. */
function agentView(agent, steps, go) {
  const graphs = steps.map((i) => agent.moments[i] ?? null);
  const names = steps.map(nameOf);
  const side = (graph, n) => {
    if (!graph) return make("p.note", {}, "It decided nothing in what is logged of this step.");
    const words = `${agent.agent} at ${names[n]}: ${count(graph.paths, "path")} of decisions`;
    return graphView(graph, agent.labels, words);
  };
  return make(
    "section",
    { "data-agent": agent.agent, "aria-label": `decisions of ${agent.agent}` },
    make("h2", {}, agent.agent, make("span.aside", {}, "whom it chose, and after whom, in the logged trajectories")),
    make(
      "div.two",
      {},
      ...graphs.map((graph, n) => make("div.picked-step", { "data-step": names[n] }, side(graph, n))),
    ),
    make(
      "p.note",
      {},
      "Nodes: share of its decisions. Edges: how often one came right after the other. ",
      "Arrows from a dot: the first choice.",
    ),
    make("div.two.tables", {}, shareTable(agent.labels, graphs, names), structureTable(graphs, names)),
    make("h3", {}, "Most frequent path"),
    make("div.two", {}, ...graphs.map((graph, n) => topPath(graph, steps[n], go))),
  );
}

const shareOf = (graph, i) => graph && graph.nodes[i].share;

/** `after` − `before`, rounded before its sign is written: what is nothing has none. */
function change(before, after, digits) {
  if (!isNumber(before) || !isNumber(after)) return "–";
  return figure(Math.round((after - before) * 10 ** digits) / 10 ** digits + 0, true, digits);
}

const points = (shares) => change(...shares.map((share) => (isNumber(share) ? 100 * share : null)), 1);

function shareTable(labels, graphs, names) {
  const largest = greatest(
    labels.flatMap((_, i) => graphs.map((graph) => shareOf(graph, i) ?? 0)),
    1e-9,
  );
  const bar = (share, n) =>
    isNumber(share) && make(`i.${n ? "after" : "before"}`, { style: { width: `${(100 * share) / largest}%` } });
  const row = (label, i) => {
    const shares = graphs.map((graph) => shareOf(graph, i));
    return make(
      "tr",
      { "data-choice": label },
      make("td", {}, make("b.said", { title: label }, label)),
      ...shares.map((share) => make("td.number", {}, percent(share))),
      make("td.number", {}, points(shares)),
      make("td", {}, make("span.pair-of-bars", { "aria-hidden": "true" }, ...shares.map(bar))),
    );
  };
  return make(
    "div.wide",
    {},
    make("table.figures", {}, headRow("share of its decisions", names, "points", ""), ...labels.map(row)),
  );
}

function structureTable(graphs, names) {
  const row = ([name, words, shown]) => {
    const values = graphs.map((graph) => graph?.numbers[name]);
    return make(
      "tr",
      { "data-number": name },
      make("td", {}, words),
      ...values.map((value) => make("td.number", {}, shown(value))),
      make("td.number", {}, shown === percent ? points(values) : change(...values, 2)),
    );
  };
  const paths = make(
    "tr",
    { "data-number": "count" },
    make("td", {}, "paths logged"),
    ...graphs.map((graph) => make("td.number", {}, figure(graph?.paths))),
    make("td.number", {}, ""),
  );
  return make(
    "div.wide",
    {},
    make("table.figures", {}, headRow("mean over its paths", names, "change"), ...STRUCTURE.map(row), paths),
  );
}

const headRow = (...names) => make("tr", {}, ...names.flat().map((name) => make("th", { scope: "col" }, name)));

/** The most frequent path spelled out, the same choice several times in a row once, and the way to a question with it. */
function topPath(graph, at, go) {
  if (!graph) return make("p.note", {}, "–");
  const { path, more, count: times, question } = graph.top;
  const runs = [];
  for (const choice of path) {
    if (runs.at(-1)?.choice === choice) runs.at(-1).times += 1;
    else runs.push({ choice, times: 1 });
  }
  const steps = runs.map((run) => make("li", {}, run.choice, run.times > 1 && make("small", {}, ` × ${run.times}`)));
  return make(
    "div.top-path",
    {},
    make("ol.chain", {}, ...steps, more > 0 && make("li.aside", {}, `and ${more} more`)),
    make(
      "p.note",
      {},
      `${times} of ${count(graph.paths, "path")} (${percent(times / graph.paths)}). `,
      make(
        "button.link",
        { onclick: () => go({ view: "question", at, q: question, node: null }) },
        "A question with it",
      ),
    ),
  );
}
