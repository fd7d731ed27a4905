// One call, or one tool call, in detail; and the head of its question.

const LONG = 3000; // tokens, or characters of a message, shown before one asks for the rest
const MOST_OPTIONS = 100; // texts shown of those that a decision was among

function callDetail(call, question, choose) {
  const { shared, specific, total } = call.rewards;
  return make(
    "article.detail",
    { "data-detail": call.node },
    make("header", {}, make("h2", {}, placeOf(call)), call.bad && badge(call.status)),
    call.error && make("p.error", {}, call.error),
    make(
      "dl.sum",
      {},
      make("div", {}, make("dt", {}, "shared"), make("dd", {}, figure(shared))),
      make("div", {}, make("dt", {}, "own"), make("dd", {}, figure(specific, true))),
      make("div", {}, make("dt", {}, "total"), make("dd", {}, figure(total))),
      isNumber(call.level) && make("div", {}, make("dt", {}, "advantage"), make("dd", {}, figure(call.level, true))),
    ),
    make("p.note", {}, ...whereFrom(call, choose)),
    call.decision &&
      section("Decision", decisionOf(call.decision), `among ${count(call.decision.options.length, "text")}`),
    call.reasoning && section("Reasoning", longText(call.reasoning)),
    section("Output", outputOf(call, question), call.generated_tokens ? count(call.generated_tokens, "token") : ""),
    call.trained && section("Its group", groupOf(call, question, choose), String(call.group).replaceAll("/", " · ")),
    section("Prompt", promptOf(call)),
    section("Particulars", particulars(call, question)),
  );
}

const section = (title, content, aside = "") =>
  make("section", {}, make("h3", {}, title, make("span.aside", {}, aside)), content);

/** Where the shared reward comes from: the calls that used this one's output, and the ends it is. */
function whereFrom(call, choose) {
  const parts = [
    ...listOf(call.ends).map((end) => `trajectory ${end.trajectory}: ${figure(end.reward)}`),
    ...call.children
      .slice(0, 12)
      .map((child) =>
        make(
          "button.link",
          { onclick: () => choose(child.node) },
          `${placeOf(child)}: ${figure(child.rewards.shared)}`,
        ),
      ),
  ];
  if (call.children.length > 12) parts.push(`and ${call.children.length - 12} more`);
  if (!parts.length) return ["Nothing came after it: no reward flowed back."];
  return ["Shared reward from ", ...parts.flatMap((part, i) => (i ? [", ", part] : [part]))];
}

function outputOf(call, question) {
  const tokens = listOf(call.tokens),
    whole = tokens.join("") === call.output && tokens.length > 0;
  if (!whole) return make("pre.text", {}, call.output || "(no text)");
  const each = Array.isArray(call.advantage) ? call.advantage : tokens.map(() => call.advantage);
  const box = make("pre.text.tokens");
  const show = (from, to) =>
    box.append(
      ...tokens.slice(from, to).map((piece, i) => {
        const value = each[from + i],
          learned = isNumber(value) || !call.trained ? `advantage ${figure(value, true)}` : "does not train",
          title = `token ${from + i + 1}, ${learned}`;
        const style = { "background-color": tint(value, question.strongest) };
        return piece
          ? make("span.token", { style, title }, piece)
          : make(
              "span.token.silent",
              { style, title: `${title}: no text of its own (special, or part of a character)` },
              "·",
            );
      }),
    );
  show(0, LONG);
  if (tokens.length > LONG) box.append(rest(`${tokens.length - LONG} more tokens`, () => show(LONG)));
  return make(
    "div",
    {},
    box,
    call.trained
      ? legend(question.strongest, "advantage")
      : make("p.note", {}, "This call did not train, so its tokens have no advantage."),
  );
}

/** The texts that an agent had to choose from, and how probable the chosen one was. */
function decisionOf({ options, chosen, log_prob: logProb }) {
  const first = options.filter((text, i) => i < MOST_OPTIONS || text === chosen);
  const item = (text) =>
    make(text === chosen ? "li.chosen" : "li", { "aria-current": text === chosen ? "true" : null }, text || "(empty)");
  const sure = isNumber(logProb)
    ? `Chosen with probability ${figure(Math.exp(logProb), false, 3)} (log π ${figure(logProb, false, 3)}).`
    : "How probable it was is not known.";
  return make(
    "div",
    {},
    make("ol.options", {}, ...first.map(item)),
    options.length > first.length && make("p.note", {}, `and ${options.length - first.length} more`),
    make("p.note", {}, chosen === null ? "What it said is none of them." : sure),
  );
}

const rest = (label, show) => make("button.more", { onclick: (event) => (event.target.remove(), show()) }, label);

function longText(text) {
  const box = make("pre.text", {}, text.slice(0, LONG));
  if (text.length > LONG) {
    box.append(
      rest(`${(text.length - LONG).toLocaleString("en")} more characters`, () => box.append(text.slice(LONG))),
    );
  }
  return box;
}

function promptOf(call) {
  return make(
    "div",
    {},
    ...listOf(call.prompt).map((message) => {
      const text = typeof message.content === "string" ? message.content : JSON.stringify(message.content, null, 1);
      const first = text.trim().split("\n", 1)[0].slice(0, 90);
      const box = make("details.message", {}, make("summary", {}, make("b", {}, message.role), ` ${first}`));
      box.addEventListener("toggle", () => box.childElementCount === 1 && box.append(longText(text)));
      return box;
    }),
  );
}

function groupOf(call, question, choose) {
  const members = question.calls.filter((other) => other.trained && other.group === call.group);
  const row = (other) =>
    make(
      `button.member${other === call ? ".here" : ""}`,
      { onclick: () => choose(other.node) },
      make("span.number", {}, figure(other.rewards.total)),
      make(
        "span.number",
        { style: { "background-color": tint(other.level, question.strongest) } },
        figure(other.level, true),
      ),
      make("span.said", {}, other.output.slice(0, 120)),
    );
  members.sort((a, b) => (b.level ?? 0) - (a.level ?? 0));
  const note =
    call.group.startsWith("*batch") && "Its group reaches across questions; shown are its members in this one.";
  return make(
    "div.members",
    {},
    make("p.columns", {}, make("span", {}, "reward"), make("span", {}, "advantage"), "output"),
    ...members.slice(0, 40).map(row),
    members.length > 40 && make("p.note", {}, `and ${members.length - 40} more`),
    note && make("p.note", {}, note),
  );
}

const exponential = (value) => (isNumber(value) ? value.toExponential(1) : value); // an infinity is text

function particulars(call, question) {
  const ends = listOf(call.ends)
    .slice(0, 4)
    .map(({ trajectory }) => question.trajectories[trajectory] ?? {});
  const scores = (end) => Object.entries({ ...end.metrics, ...end.recall });
  const [low, high] = listOf(call.versions);
  const rows = [
    ["trajectories", listOf(call.trajectories).join(", ")],
    ...(forkOf(call) ? [["forked from", forkOf(call)]] : []),
    ["policy version", low === high ? figure(low) : `${figure(low)} to ${figure(high)}`],
    ...(call.policy ? [["policy", call.policy]] : []),
    ...(call.adapter == null ? [] : [["adapter", call.adapter || "none (the base alone)"]]),
    ...(call.weight == null ? [] : [["weight in the loss", figure(call.weight)]]),
    ...(call.difference == null ? [] : [["|log π| trainer − rollout", exponential(call.difference)]]),
    ["seconds", figure(call.seconds)],
    ["prompt tokens", figure(call.prompt_tokens)],
    ...Object.entries(call.metrics || {}).map(([name, value]) => [name, figure(value)]),
    ...ends.flatMap((end) => scores(end).map(([name, value]) => [`score: ${name}`, figure(value)])),
    ...ends.flatMap((end) =>
      Object.entries(end.notes || {}).map(([name, value]) => [`note: ${name}`, JSON.stringify(value).slice(0, 600)]),
    ),
  ];
  return make(
    "table.plain",
    {},
    ...rows.map(([name, value]) => make("tr", {}, make("th", {}, name), make("td", {}, value))),
  );
}

function toolDetail(tool) {
  const shown = (value) => longText(typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "–"));
  return make(
    "article.detail",
    { "data-detail": tool.node },
    make("header", {}, make("h2", {}, tool.name), make("span.aside", {}, "tool"), tool.bad && badge("failed")),
    tool.bad && make("p.error", {}, tool.failure),
    section("Arguments", shown(tool.arguments)),
    !tool.bad && section("Result", shown(tool.result)),
  );
}

function questionHead(question) {
  const gold =
    question.gold && typeof question.gold === "object" && "target" in question.gold
      ? question.gold.target
      : question.gold;
  const facts = [
    question.source,
    `no. ${question.index}`,
    count(question.calls.length, "call"),
    count(question.trajectories.length, "trajectory", "trajectories"),
    `mean reward ${figure(question.reward)}`,
  ];
  return make(
    "header.question",
    {},
    make("h1", {}, question.text),
    make(
      "p",
      {},
      make("span.gold", {}, "answer: ", make("b", {}, Array.isArray(gold) ? gold.join(" · ") : JSON.stringify(gold))),
      make("span.aside", {}, facts.join("  ·  ")),
    ),
    question.trajectories
      .filter((one) => one.status !== "ok")
      .slice(0, 3)
      .map((one) => make("p.error", {}, `${inWords(one.status)}: ${one.error}`)),
  );
}
