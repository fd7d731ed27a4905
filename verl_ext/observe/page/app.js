// The page: its address is its state, keys and clicks change the address, the address changes what is shown.

const at = (selector) => document.querySelector(selector);
const root = document.documentElement;
/** A logged step in words; an evaluation of a model that is no checkpoint has no step. */
const nameOf = (i) => [INDEX.moments[i].phase, INDEX.moments[i].step].filter((part) => part !== null).join(" ");
const addressOf = (i) => nameOf(i).replace(" ", ".");
let state = {},
  shownList = "",
  forest = null,
  turn = 0;

// --- the address ---------------------------------------------------------------------------------------------------

/** #at=train.12&view=question&q=3&node=c4: `at` and `b` name logged steps, the rest is as it says. */
function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const moment = (name, otherwise) => {
    const i = INDEX.moments.findIndex((_, n) => addressOf(n) === given.get(name));
    return i < 0 ? otherwise : i;
  };
  const here = moment(
    "at",
    INDEX.moments.findLastIndex(({ phase }) => phase === "train"),
  );
  const now = here < 0 ? INDEX.moments.length - 1 : here;
  const views = ["overview", "question", "compare", "search", ...(INDEX.collaboration.length ? ["collaboration"] : [])];
  return {
    at: now,
    view: views.includes(given.get("view")) ? given.get("view") : "overview",
    q: Number(given.get("q")) || 0,
    node: given.get("node"),
    pair: given.get("pair"),
    b: moment(
      "b",
      INDEX.moments.findIndex(({ phase }) => phase === INDEX.moments[now].phase),
    ),
    find: given.get("find") || "",
    bad: given.get("bad") === "1",
    filter: given.get("filter") || "",
  };
}

/** Whether the view is of two steps. */
const ofTwo = ({ view }) => view === "compare" || view === "collaboration";

function go(changes, replace = false) {
  const next = { ...state, ...changes },
    words = new URLSearchParams();
  words.set("at", addressOf(next.at));
  words.set("view", next.view);
  if (next.view === "question") words.set("q", next.q);
  if (next.view === "question" && next.node) words.set("node", next.node);
  if (ofTwo(next)) words.set("b", addressOf(next.b));
  if (next.view === "compare" && next.pair !== null) words.set("pair", next.pair);
  if (next.find) words.set("find", next.find);
  if (next.bad) words.set("bad", "1");
  if (next.filter) words.set("filter", next.filter);
  history[replace ? "replaceState" : "pushState"](null, "", `#${words}`);
  return render();
}

// --- what is shown -------------------------------------------------------------------------------------------------

async function render() {
  const mine = ++turn;
  state = read();
  navigation();
  const questions = await load(state.at);
  const second = state.view === "compare" ? await load(state.b) : null;
  if (mine !== turn) return;
  document.body.dataset.view = state.view;
  sidebar(questions);
  if (state.view === "question") showQuestion(questions);
  else if (state.view === "overview") show(overview(questions, go));
  else if (state.view === "collaboration") showCollaboration();
  else if (state.view === "compare")
    show(compareView(second, questions, [nameOf(state.b), nameOf(state.at)], state, go));
  else {
    forest = null;
    await searchView(state, state.at, go, at("#main"));
  }
  document.body.dataset.ready = `${turn}`;
}

function show(...content) {
  forest = null;
  at("#main").replaceChildren(...content);
}

function navigation() {
  for (const tab of document.querySelectorAll("[data-tab]")) {
    tab.setAttribute("aria-current", String(tab.dataset.tab === state.view));
  }
  at("#moment").value = String(state.at);
  at("#second").value = String(state.b);
  at("#second-part").hidden = !ofTwo(state);
  if (document.activeElement !== at("#find")) at("#find").value = state.find;
  at("#only-bad").checked = state.bad;
  if (document.activeElement !== at("#filter")) at("#filter").value = state.filter;
  for (const bar of document.querySelectorAll("#timeline [data-moment]")) {
    bar.classList.toggle("here", Number(bar.dataset.moment) === state.at);
  }
}

/** Numbers of the step's questions that pass the filters, lowest reward first. */
const listed = (questions) =>
  byReward(questions).filter(
    (q) => (!state.bad || questions[q].bad) && questions[q].text.toLowerCase().includes(state.filter.toLowerCase()),
  );

function sidebar(questions) {
  const key = `${state.at} ${state.bad} ${state.filter}`,
    numbers = listed(questions);
  const holder = at("#questions");
  if (key !== shownList) {
    shownList = key;
    at("#how-many").textContent = count(numbers.length, "question");
    holder.replaceChildren(
      lazyList(numbers.length, 52, (i) =>
        questionRow(questions[numbers[i]], state.view === "question" && numbers[i] === state.q, () =>
          go({ view: "question", q: numbers[i], node: null }),
        ),
      ),
    );
  }
  holder.firstChild.reveal(Math.max(0, numbers.indexOf(state.q)));
}

function showQuestion(questions) {
  const question = questions[state.q] ?? questions[0];
  if (!question) return show(make("p.note", {}, "No question was logged at this step."));
  const chosen = question.nodes.get(state.node) ?? null;
  const choose = (node) => go({ node }, true);
  const kept = forest?.question === question ? [forest.view.scrollTop, forest.view.scrollLeft] : null;
  const focused = forest && forest.view.contains(document.activeElement);
  const view = forestView(question, chosen, choose);
  const item = chosen ?? question.calls[0];
  const detail = item ? ("agent" in item ? callDetail(item, question, choose) : toolDetail(item)) : null;
  at("#main").replaceChildren(
    make(
      "div.reading",
      {},
      make("div.picture", {}, questionHead(question), view, footnote(question)),
      make("aside.side", {}, detail),
    ),
  );
  forest = { question, view };
  view.refresh();
  if (kept) [view.scrollTop, view.scrollLeft] = kept;
  else if (chosen) bring(view, chosen);
  view.refresh();
  if (focused) view.focus({ preventScroll: true });
}

/** The view is kept while it shows other steps, and with it the focus. */
function showCollaboration() {
  const open = at("main > .collaboration");
  if (open) open.update(state);
  else show(collaborationView(state, go));
}

const footnote = (question) =>
  make(
    "footer.foot",
    {},
    question.calls.some((call) => isNumber(call.level)) && legend(question.strongest, "advantage (left edge)"),
    make("span.aside", {}, "figures on the lines: shared reward flowing back"),
  );

function bring(view, item) {
  const place = view.layout.items.find((one) => one.item === item);
  if (!place) return;
  if (place.y + place.height > view.scrollTop + view.clientHeight || place.y < view.scrollTop)
    view.scrollTop = place.y - 120;
  if (place.x + place.width > view.scrollLeft + view.clientWidth || place.x < view.scrollLeft)
    view.scrollLeft = place.x - 120;
}

// --- the frame -----------------------------------------------------------------------------------------------------

function timeline() {
  const known = INDEX.moments.map((moment) => moment.reward).filter(isNumber);
  const low = Math.min(0, ...known);
  const span = Math.max(1e-9, ...known) - low;
  for (const phase of new Set(INDEX.moments.map((moment) => moment.phase))) {
    const numbers = [...INDEX.moments.keys()].filter((i) => INDEX.moments[i].phase === phase);
    const bars = numbers.map((i) => momentBar(i, low, span));
    if (bars.length) at("#timeline").append(make("div.strip", {}, make("span.aside", {}, phase), bars));
  }
  for (const select of [at("#moment"), at("#second")]) {
    select.replaceChildren(...INDEX.moments.map((_, i) => make("option", { value: i }, nameOf(i))));
  }
}

function momentBar(i, low, span) {
  const { reward, failed } = INDEX.moments[i];
  const height = isNumber(reward) ? 15 + (85 * (reward - low)) / span : 15;
  const lost = failed ? `, ${failed} could not finish` : "";
  const words = `${nameOf(i)}: mean reward ${figure(reward)}${lost}`;
  const open = () => go({ at: i, node: null, pair: null });
  const looks = { title: words, "aria-label": words, "data-moment": i, tabindex: "-1", onclick: open };
  return make("button.bar", looks, make("i", { style: { height: `${height}%` } }));
}

function theme(name) {
  root.dataset.theme = name;
  try {
    localStorage.setItem("verl_ext.viewer.theme", name);
  } catch {
    /* a page opened from a file may have no storage */
  }
}

function startTheme() {
  let stored = null;
  try {
    stored = localStorage.getItem("verl_ext.viewer.theme");
  } catch {
    /* as above */
  }
  root.dataset.theme = stored ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

const otherTheme = () => theme(root.dataset.theme === "dark" ? "light" : "dark");

async function step(by) {
  const { phase } = INDEX.moments[state.at];
  const same = [...INDEX.moments.keys()].filter((i) => INDEX.moments[i].phase === phase);
  const next = same[same.indexOf(state.at) + by];
  if (next === undefined) return;
  const [now, then] = await Promise.all([load(state.at), load(next)]);
  const q = then.findIndex((question) => question.identity === now[state.q]?.identity);
  await go({ at: next, q: Math.max(0, q), node: null, pair: null });
}

/** Opens the comparison: of the first and the last validation if there are two, for they log the same questions. */
function compare() {
  const validations = [...INDEX.moments.keys()].filter((i) => INDEX.moments[i].phase === "val");
  const ends = validations.length > 1 && !ofTwo(state) ? { at: validations.at(-1), b: validations[0] } : {};
  return go({ view: "compare", pair: null, ...ends });
}

async function question(by) {
  const numbers = listed(await load(state.at));
  const next = numbers[state.view === "question" ? numbers.indexOf(state.q) + by : 0];
  if (next !== undefined) await go({ view: "question", q: next, node: null });
}

const KEYS = {
  j: () => question(1),
  k: () => question(-1),
  "]": () => step(1),
  "[": () => step(-1),
  o: () => go({ view: "overview" }),
  c: compare,
  g: () => INDEX.collaboration.length && go({ view: "collaboration" }),
  q: () => go({ view: "question" }),
  f: () => go({ bad: !state.bad }),
  t: otherTheme,
  "/": () => at("#find").focus(),
  "?": () => at("#help").showModal(),
};

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey || at("#help").open) return;
  if (event.key.startsWith("Arrow") && forest) {
    const next = neighbour(forest.view.layout, forest.question.nodes.get(state.node), event.key);
    event.preventDefault();
    if (next) go({ node: next.node }, true).then(() => bring(forest.view, next));
  } else if (Object.hasOwn(KEYS, event.key)) {
    event.preventDefault();
    KEYS[event.key]();
  }
}

function start() {
  startTheme();
  if (!INDEX.moments.length) return show(make("p.note", {}, "The log holds no records."));
  timeline();
  at("[data-tab='compare']").hidden = INDEX.moments.length < 2;
  at("[data-tab='collaboration']").hidden = !INDEX.collaboration.length;
  for (const tab of document.querySelectorAll("[data-tab]"))
    tab.addEventListener("click", () => (tab.dataset.tab === "compare" ? compare() : go({ view: tab.dataset.tab })));
  at("#moment").addEventListener("change", (event) => go({ at: Number(event.target.value), node: null, pair: null }));
  at("#second").addEventListener("change", (event) => go({ b: Number(event.target.value), pair: null }));
  at("#find").addEventListener(
    "keydown",
    (event) =>
      event.key === "Enter" && go({ find: event.target.value, view: event.target.value ? "search" : "overview" }),
  );
  at("#filter").addEventListener("input", (event) => go({ filter: event.target.value }, true));
  at("#only-bad").addEventListener("change", (event) => go({ bad: event.target.checked }));
  at("#theme").addEventListener("click", otherTheme);
  at("#help-button").addEventListener("click", () => at("#help").showModal());
  addEventListener("keydown", keys);
  addEventListener("hashchange", render); // by hand, or back and forth
  render();
}

start();
