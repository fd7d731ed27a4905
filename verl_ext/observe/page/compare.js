// Two steps side by side: what each agent says and earns, over all that was logged and question by question.

const DIFFERENCES = [
  ["mean reward", (agent) => agent.reward, aligned],
  ["mean shared reward", (agent) => agent.shared, aligned],
  ["not ok", (agent) => agent.notOk, percent],
  ["output tokens", (agent) => agent.tokens, (value) => aligned(value, false, 1)],
];

function compareView(a, b, names, state, go) {
  const common = pairs(a, b);
  const chosen = common[Number(state.pair)] ?? null;
  return make(
    "div.overview.compare",
    {},
    make("h2", {}, "Agents", make("span.aside", {}, `${names[0]} → ${names[1]}`)),
    differenceTable(byAgent(a), byAgent(b)),
    make("p.note", {}, NOT_OK),
    make(
      "h2",
      {},
      "Questions in both",
      make("span.aside", {}, common.length ? "largest change first" : "none: the two steps share no logged question"),
    ),
    common.length > 0 &&
      lazyList(
        common.length,
        40,
        (i) => pairRow(common[i], common[i] === chosen, () => go({ pair: i })),
        "div.questions.pairs",
      ),
    chosen &&
      make(
        "div.pair",
        { "data-pair": state.pair },
        make("h3", {}, chosen.before.text),
        outputs(chosen.before.calls, chosen.after.calls, names),
      ),
  );
}

/** Questions logged at both steps, those whose reward changed most first. */
function pairs(a, b) {
  const before = new Map(a.map((question) => [question.identity, question]));
  const found = b
    .filter((after) => before.has(after.identity))
    .map((after) => ({ before: before.get(after.identity), after }));
  for (const pair of found) {
    const known = isNumber(pair.before.reward) && isNumber(pair.after.reward);
    pair.change = known ? pair.after.reward - pair.before.reward : null;
  }
  return found.sort((x, y) => Math.abs(y.change ?? 0) - Math.abs(x.change ?? 0));
}

function pairRow({ before, after, change }, here, open) {
  return make(
    `button.row${here ? ".here" : ""}`,
    { onclick: open, title: after.text, "aria-current": here ? "true" : null },
    make("span.number", {}, `${figure(before.reward)} → ${figure(after.reward)}`),
    make("span.number.change", { style: { "background-color": tint(change, 1) } }, figure(change, true)),
    make("span.said", {}, after.text),
  );
}

function differenceTable(before, after) {
  const names = [...new Set([...before, ...after].map((agent) => agent.name))];
  const one = (agents, name) => agents.find((agent) => agent.name === name);
  const cell = (name, [, value, words]) => {
    const x = one(before, name) && value(one(before, name)),
      y = one(after, name) && value(one(after, name));
    const change = isNumber(x) && isNumber(y) ? y - x : null;
    const shown = words === percent ? `${figure(100 * change, true, 1)} points` : figure(change, true);
    return make("td.number", {}, `${words(x)} → ${words(y)}`, make("small", {}, change === null ? "" : shown));
  };
  return make(
    "div.wide",
    {},
    make(
      "table.figures",
      {},
      make("tr", {}, make("th", {}, "agent"), ...DIFFERENCES.map(([label]) => make("th", {}, label))),
      ...names.map((name) =>
        make(
          "tr",
          { "data-agent": name },
          make("td", {}, make("b", {}, name)),
          ...DIFFERENCES.map((what) => cell(name, what)),
        ),
      ),
    ),
  );
}

/** Per place in the workflow, the distinct outputs before and after. */
function outputs(before, after, names) {
  const places = [...new Set([...before, ...after].map(placeOf))];
  const column = (calls, name, place) => {
    const rows = distinct(calls.filter((call) => placeOf(call) === place));
    return make(
      "div",
      {},
      make("p.aside", {}, name),
      rows.length === 0 && make("p.note", {}, "–"),
      ...rows
        .slice(0, 6)
        .map((row) =>
          make(
            "div.said-often",
            {},
            make("span.number", { title: "how often" }, `${row.calls.length} ×`),
            make("span.number", { title: "mean reward" }, figure(row.reward)),
            make("pre.text", {}, row.text.slice(0, 600) || "(no text)"),
          ),
        ),
      rows.length > 6 && make("p.note", {}, `and ${count(rows.length - 6, "other output")}`),
    );
  };
  return make(
    "div.outputs",
    {},
    ...places.map((place) =>
      make(
        "section",
        {},
        make("h3", {}, place),
        make("div.two", {}, column(before, names[0], place), column(after, names[1], place)),
      ),
    ),
  );
}
