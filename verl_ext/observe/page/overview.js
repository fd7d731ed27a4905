// The overview of a step: its agents, what failed, its questions.

const NOT_OK = "not ok: the share of calls that failed, were cut at a token limit, or could not be parsed";

function overview(questions, go) {
  const agents = byAgent(questions);
  const trajectories = questions.flatMap((question) => question.trajectories);
  const failed = trajectories.filter((trajectory) => trajectory.status !== "ok");
  const rewards = trajectories
    .filter((one) => one.status === "ok")
    .map((one) => one.reward)
    .filter(isNumber);
  const all = [...agents.flatMap((agent) => agent.rewards), ...rewards];
  const low = smallest(all, 0);
  const high = greatest(all, 1e-9);
  const tile = (value, label) => make("div.tile", {}, make("b", {}, value), make("span", {}, label));
  return make(
    "div.overview",
    {},
    make(
      "div.tiles",
      {},
      tile(aligned(mean(rewards)), "mean reward of a trajectory"),
      tile(questions.length, "questions logged"),
      tile(trajectories.length.toLocaleString("en"), "trajectories"),
      tile(agents.reduce((n, a) => n + a.calls, 0).toLocaleString("en"), "calls"),
      tile(failed.length.toLocaleString("en"), "trajectories that could not finish"),
    ),
    make("h2", {}, "Agents"),
    agentTable(agents, low, high),
    make("p.note", {}, NOT_OK),
    make("h2", {}, "Failures"),
    failures(questions, go),
    make("h2", {}, "Questions", make("span.aside", {}, "lowest reward first")),
    questionTable(questions, go),
  );
}

function agentTable(agents, low, high) {
  const head = [
    "agent",
    "calls",
    "reward",
    "shared",
    "own",
    "not ok",
    "tokens",
    `rewards from ${figure(low)} to ${figure(high)}`,
  ];
  return make(
    "div.wide",
    {},
    make(
      "table.figures",
      {},
      make("tr", {}, ...head.map((name) => make("th", {}, name))),
      ...agents.map((agent) =>
        make(
          "tr",
          { "data-agent": agent.name },
          make("td", {}, make("b", {}, agent.name), agent.policy && make("span.aside", {}, ` policy ${agent.policy}`)),
          ...[
            figure(agent.calls),
            aligned(agent.reward),
            aligned(agent.shared),
            aligned(agent.specific, true),
            percent(agent.notOk),
            aligned(agent.tokens, false, 1),
          ].map((text) => make("td.number", {}, text)),
          make("td", {}, bars(histogram(agent.rewards, low, high, 24))),
        ),
      ),
    ),
  );
}

function bars(heights) {
  const most = Math.max(1, ...heights);
  const title = draw("title", {}, heights.join(" "));
  return draw(
    "svg",
    { class: "bars", width: 24 * 8, height: 30, role: "img" },
    title,
    heights.map((height, i) =>
      draw("rect", {
        x: 8 * i,
        width: 7,
        y: 29 - (28 * height) / most,
        height: 1 + (28 * height) / most,
        class: height ? "" : "none",
      }),
    ),
  );
}

function failures(questions, go) {
  const found = new Map();
  const note = (kind, question, node, error) => {
    if (!found.has(kind)) found.set(kind, []);
    found.get(kind).push({ question, node, error });
  };
  questions.forEach((question, q) => {
    for (const call of question.calls) if (call.bad) note(`${call.agent}: ${call.status}`, q, call.node, call.error);
    for (const tool of question.tools) if (tool.bad) note(`${tool.name}: tool failed`, q, tool.node, tool.failure);
    for (const one of question.trajectories)
      if (one.status !== "ok") note(`trajectory: ${one.status}`, q, null, one.error);
  });
  if (!found.size) return make("p.note", {}, "None: every call, tool and trajectory ended well.");
  const rows = [...found].sort((a, b) => b[1].length - a[1].length).slice(0, 200);
  return make(
    "div.failures",
    {},
    ...rows.map(([kind, cases]) =>
      make(
        "button.row",
        {
          onclick: () => go({ view: "question", q: cases[0].question, node: cases[0].node }),
          "data-failure": kind,
        },
        make("span.number", {}, cases.length),
        make("b", {}, inWords(kind)),
        make("span.said", {}, cases[0].error || ""),
      ),
    ),
  );
}

function questionTable(questions, go) {
  const order = byReward(questions);
  return lazyList(
    order.length,
    40,
    (i) => questionRow(questions[order[i]], false, () => go({ view: "question", q: order[i], node: null })),
    "div.questions",
  );
}

function questionRow(question, here, open) {
  const share = Math.max(0, Math.min(1, question.reward ?? 0));
  return make(
    `button.row${here ? ".here" : ""}`,
    { onclick: open, title: question.text, "aria-current": here ? "true" : null },
    make("span.number", {}, isNumber(question.reward) ? aligned(question.reward, false, 2) : "–"),
    make("span.meter", {}, make("i", { style: { width: `${100 * share}%` } })),
    make("span.said", {}, question.text),
    question.bad && make("span.flag", { title: "something here did not end well" }, "▲"),
  );
}
