// What is beside and around the forest: a call in detail, the overview of a step, search.

const LONG = 3000; // tokens, or characters of a message, shown before one asks for the rest

// --- one call ----------------------------------------------------------------------------------------------------------

function callDetail(call, question, choose) {
  const { shared, specific, total } = call.rewards;
  return make("article.detail", { "data-detail": call.node },
    make("header", {}, make("h2", {}, placeOf(call)), call.bad && badge(call.status)),
    call.error && make("p.error", {}, call.error),
    make("dl.sum", {},
      make("div", {}, make("dt", {}, "shared"), make("dd", {}, figure(shared))),
      make("div", {}, make("dt", {}, "own"), make("dd", {}, figure(specific, true))),
      make("div", {}, make("dt", {}, "total"), make("dd", {}, figure(total))),
      make("div", {}, make("dt", {}, "advantage"), make("dd", {}, figure(call.level, true)))),
    make("p.note", {}, ...whereFrom(call, choose)),
    call.reasoning && section("Reasoning", longText(call.reasoning)),
    section("Output", outputOf(call, question), call.tokens?.length ? count(call.tokens.length, "token") : ""),
    call.trained && section("Its group", groupOf(call, question, choose), String(call.group).replaceAll("/", " · ")),
    section("Prompt", promptOf(call)),
    section("Particulars", particulars(call, question)));
}

const section = (title, content, aside = "") =>
  make("section", {}, make("h3", {}, title, make("span.aside", {}, aside)), content);

/** Where the shared reward comes from: the calls that used this one's output, and the ends it is. */
function whereFrom(call, choose) {
  const parts = [
    ...listOf(call.ends).map((end) => `trajectory ${end.trajectory}: ${figure(end.reward)}`),
    ...call.children.slice(0, 12).map((child) =>
      make("button.link", { onclick: () => choose(child.node) }, `${placeOf(child)}: ${figure(child.rewards.shared)}`)),
  ];
  if (call.children.length > 12) parts.push(`and ${call.children.length - 12} more`);
  if (!parts.length) return ["Nothing came after it: no reward flowed back."];
  return ["Shared reward from ", ...parts.flatMap((part, i) => (i ? [", ", part] : [part]))];
}

function outputOf(call, question) {
  const tokens = listOf(call.tokens), whole = tokens.join("") === call.output && tokens.length > 0;
  if (!whole) return make("pre.text", {}, call.output || "(no text)");
  const each = Array.isArray(call.advantage) ? call.advantage : tokens.map(() => call.advantage);
  const box = make("pre.text.tokens");
  const show = (from, to) => box.append(...tokens.slice(from, to).map((piece, i) => {
    const value = each[from + i], title = `token ${from + i + 1}, advantage ${figure(value, true)}`;
    const style = { "background-color": tint(value, question.strongest) };
    return piece ? make("span.token", { style, title }, piece)
      : make("span.token.silent", { style, title: `${title}: no text of its own (special, or part of a character)` }, "·");
  }));
  show(0, LONG);
  if (tokens.length > LONG) box.append(rest(`${tokens.length - LONG} more tokens`, () => show(LONG)));
  return make("div", {}, box, call.trained ? legend(question.strongest, "advantage")
    : make("p.note", {}, "This call did not train, so its tokens have no advantage."));
}

const rest = (label, show) => make("button.more", { onclick: (event) => (event.target.remove(), show()) }, label);

function longText(text) {
  const box = make("pre.text", {}, text.slice(0, LONG));
  if (text.length > LONG) {
    box.append(rest(`${(text.length - LONG).toLocaleString("en")} more characters`, () => box.append(text.slice(LONG))));
  }
  return box;
}

function promptOf(call) {
  return make("div", {}, ...listOf(call.prompt).map((message) => {
    const text = typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 1);
    const first = text.trim().split("\n", 1)[0].slice(0, 90);
    const box = make("details.message", {}, make("summary", {}, make("b", {}, message.role), ` ${first}`));
    box.addEventListener("toggle", () => box.childElementCount === 1 && box.append(longText(text)));
    return box;
  }));
}

function groupOf(call, question, choose) {
  const members = question.calls.filter((other) => other.trained && other.group === call.group);
  const row = (other) => make(`button.member${other === call ? ".here" : ""}`, { onclick: () => choose(other.node) },
    make("span.number", {}, figure(other.rewards.total)),
    make("span.number", { style: { "background-color": tint(other.level, question.strongest) } }, figure(other.level, true)),
    make("span.said", {}, other.output.slice(0, 120)));
  members.sort((a, b) => (b.level ?? 0) - (a.level ?? 0));
  const note = call.group.startsWith("*batch") && "Its group reaches across questions; shown are its members in this one.";
  return make("div.members", {}, make("p.columns", {}, make("span", {}, "reward"), make("span", {}, "advantage"), "output"),
    ...members.slice(0, 40).map(row), members.length > 40 && make("p.note", {}, `and ${members.length - 40} more`),
    note && make("p.note", {}, note));
}

function particulars(call, question) {
  const notes = listOf(call.ends).slice(0, 4).flatMap(({ trajectory }) =>
    Object.entries(question.trajectories[trajectory]?.notes || {}).map(([name, value]) => [`note: ${name}`, JSON.stringify(value).slice(0, 600)]));
  const [low, high] = listOf(call.versions);
  const rows = [["trajectories", listOf(call.trajectories).join(", ")], ["stream", listOf(call.stream).join(" › ")],
    ["policy version", low === high ? figure(low) : `${figure(low)} to ${figure(high)}`],
    ["seconds", figure(call.seconds)], ...Object.entries(call.metrics || {}).map(([name, value]) => [name, figure(value)]), ...notes];
  return make("table.plain", {}, ...rows.map(([name, value]) => make("tr", {}, make("th", {}, name), make("td", {}, value))));
}

function toolDetail(tool) {
  const shown = (value) => longText(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "–");
  return make("article.detail", { "data-detail": tool.node },
    make("header", {}, make("h2", {}, tool.name), make("span.aside", {}, "tool"), tool.bad && badge("failed")),
    tool.bad && make("p.error", {}, tool.failure),
    section("Arguments", shown(tool.arguments)),
    !tool.bad && section("Result", shown(tool.result)));
}

function questionHead(question) {
  const gold = question.gold && typeof question.gold === "object" && "target" in question.gold ? question.gold.target : question.gold;
  const facts = [question.source, `no. ${question.index}`, count(question.calls.length, "call"),
    count(question.trajectories.length, "trajectory", "trajectories"), `mean reward ${figure(question.reward)}`];
  return make("header.question", {}, make("h1", {}, question.text),
    make("p", {}, make("span.gold", {}, "answer: ", make("b", {}, Array.isArray(gold) ? gold.join(" · ") : JSON.stringify(gold))),
      make("span.aside", {}, facts.join("  ·  "))),
    question.trajectories.filter((one) => one.status !== "ok").slice(0, 3).map((one) =>
      make("p.error", {}, `${one.status.replaceAll("_", " ")}: ${one.error}`)));
}

// --- a step ------------------------------------------------------------------------------------------------------------

function overview(questions, go) {
  const agents = byAgent(questions);
  const trajectories = questions.flatMap((question) => question.trajectories);
  const failed = trajectories.filter((trajectory) => trajectory.status !== "ok");
  const rewards = trajectories.filter((one) => one.status === "ok").map((one) => one.reward).filter(isNumber);
  const all = [...agents.flatMap((agent) => agent.rewards), ...rewards];
  const low = Math.min(0, ...all.map((x) => x)), high = Math.max(1e-9, ...all);
  const tile = (value, label) => make("div.tile", {}, make("b", {}, value), make("span", {}, label));
  return make("div.overview", {},
    make("div.tiles", {}, tile(aligned(mean(rewards)), "mean reward of a trajectory"), tile(questions.length, "questions logged"),
      tile(trajectories.length.toLocaleString("en"), "trajectories"), tile(agents.reduce((n, a) => n + a.calls, 0).toLocaleString("en"), "calls"),
      tile(failed.length.toLocaleString("en"), "trajectories that could not finish")),
    make("h2", {}, "Agents"), agentTable(agents, low, high),
    make("h2", {}, "Failures"), failures(questions, go),
    make("h2", {}, "Questions", make("span.aside", {}, "lowest reward first")), questionTable(questions, go));
}

function agentTable(agents, low, high) {
  const head = ["agent", "calls", "reward", "shared", "own", "not ok", "tokens", `rewards from ${figure(low)} to ${figure(high)}`];
  return make("div.wide", {}, make("table.figures", {}, make("tr", {}, ...head.map((name) => make("th", {}, name))),
    ...agents.map((agent) => make("tr", { "data-agent": agent.name }, make("td", {}, make("b", {}, agent.name)),
      ...[figure(agent.calls), aligned(agent.reward), aligned(agent.shared), aligned(agent.specific, true), percent(agent.notOk),
        aligned(agent.tokens, false, 1)].map((text) => make("td.number", {}, text)),
      make("td", {}, bars(histogram(agent.rewards, low, high, 24)))))));
}

function bars(heights) {
  const most = Math.max(1, ...heights);
  const title = draw("title", {}, heights.join(" "));
  return draw("svg", { class: "bars", width: 24 * 8, height: 30, role: "img" }, title, heights.map((height, i) =>
    draw("rect", { x: 8 * i, width: 7, y: 29 - 28 * height / most, height: 1 + 28 * height / most, class: height ? "" : "none" })));
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
    for (const one of question.trajectories) if (one.status !== "ok") note(`trajectory: ${one.status}`, q, null, one.error);
  });
  if (!found.size) return make("p.note", {}, "None: every call, tool and trajectory ended well.");
  const rows = [...found].sort((a, b) => b[1].length - a[1].length).slice(0, 200);
  return make("div.failures", {}, ...rows.map(([kind, cases]) => make("button.row", {
    onclick: () => go({ view: "question", q: cases[0].question, node: cases[0].node }), "data-failure": kind },
  make("span.number", {}, cases.length), make("b", {}, kind.replaceAll("_", " ")), make("span.said", {}, cases[0].error || ""))));
}

function questionTable(questions, go) {
  const order = questions.map((_, q) => q).sort((a, b) => (questions[a].reward ?? -Infinity) - (questions[b].reward ?? -Infinity));
  return lazyList(order.length, 40, (i) => questionRow(questions[order[i]], false, () => go({ view: "question", q: order[i], node: null })), "div.questions");
}

function questionRow(question, here, open) {
  const share = Math.max(0, Math.min(1, question.reward ?? 0));
  return make(`button.row${here ? ".here" : ""}`, { onclick: open, title: question.text, "aria-current": here ? "true" : null },
    make("span.number", {}, isNumber(question.reward) ? aligned(question.reward, false, 2) : "–"),
    make("span.meter", {}, make("i", { style: { width: `${100 * share}%` } })),
    make("span.said", {}, question.text), question.bad && make("span.flag", { title: "something here did not end well" }, "▲"));
}

// --- search ------------------------------------------------------------------------------------------------------------

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
  const head = make("p.note", {}, "Searching …"), hits = [];
  let list = lazyList(0, 56, () => null);
  holder.replaceChildren(make("div.overview", {}, make("h2", {}, `“${state.find}”`), head, list));
  for (const i of [current, ...INDEX.moments.keys()].filter((i, n, all) => all.indexOf(i) === n)) {
    (await load(i)).forEach((question, q) =>
      hitsIn(question, state.find).forEach((hit) => hits.length < MOST_HITS && hits.push({ ...hit, i, q })));
    if (!holder.contains(head)) return;
    head.textContent = hits.length < MOST_HITS ? `${count(hits.length, "place")} in ${count(INDEX.moments.length, "logged step")}`
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
  return make("button.row.hit", { onclick: open }, make("span.aside", {}, `${phase} ${step} · ${hit.where}`),
    make("span.said", {}, ...excerpt(hit.text, wanted)));
}
