// The forest of a question's calls: a lane per trajectory, time from left to right, what trajectories share drawn once.

// Pixels. A card is never narrower than `narrow`, and up to `named` wide enough for its agent's name and reward.
const CARD = { narrow: 140, named: 190, wide: 250, height: 52, reward: 66, letter: 8 };
const PILL = { width: 78, height: 28 };
const GAP = { x: 38, y: 10 };
// Margins: the left one holds the lanes' numbers, the right one the ends of trajectories, in words where one failed.
const LEFT = 34;
const TOP = 16;
const rightMargin = (question) => (question.failed ? 140 : 74);

/** Trajectories in an order in which those with the longest common beginning are neighbours. */
function laneOrder(question) {
  const paths = question.trajectories.map(() => []);
  for (const item of [...question.calls].sort((a, b) => a.depth - b.depth)) {
    for (const number of listOf(item.trajectories)) paths[number]?.push(item.node);
  }
  const order = [];
  const walk = (numbers, at) => {
    const groups = new Map();
    for (const number of numbers) {
      const node = paths[number][at];
      if (node === undefined) order.push(number);
      else groups.set(node, [...(groups.get(node) || []), number]);
    }
    for (const group of groups.values()) group.length === 1 ? order.push(group[0]) : walk(group, at + 1);
  };
  walk(
    question.trajectories.map((_, number) => number),
    0,
  );
  return order;
}

/** Column of a tool call: half a step after the last call before it. */
function toolDepth(question, tool) {
  const before = listOf(tool.after)
    .map((id) => question.byId.get(id))
    .filter(Boolean);
  return Math.max(-1, ...before.map((call) => call.depth)) + 0.5;
}

/** Where everything stands: [{item, x, y, width, height}], links, lanes, and the size of it all.
 *  Cards are as wide as `room` pixels allow, within bounds. */
function layOut(question, room) {
  const lanes = laneOrder(question);
  const columns = new Set(question.calls.map((call) => call.depth)).size || 1;
  const gaps = new Set(question.tools.map((tool) => toolDepth(question, tool))).size;
  const taken = LEFT + rightMargin(question) - GAP.x + gaps * (PILL.width + GAP.x);
  const free = (room - taken) / columns - GAP.x;
  const longest = Math.max(0, ...question.calls.map((call) => call.agent.length));
  const least = Math.min(CARD.named, Math.max(CARD.narrow, CARD.reward + CARD.letter * longest));
  const width = Math.floor(Math.max(least, Math.min(CARD.wide, free)));
  const items = [
    ...question.calls.map((item) => ({ item, depth: item.depth, width, height: CARD.height })),
    ...question.tools.map((item) => ({ item, depth: toolDepth(question, item), ...PILL, tool: true })),
  ];
  const right = setColumns(items, width);
  const { tops, bottom } = setLanes(items, lanes);
  const whole = { width: right + rightMargin(question) - GAP.x, height: bottom + TOP };
  return { items, links: links(question, items), lanes, tops, right, ...whole };
}

/** Gives every place its `x` by depth; returns where the next column would begin. */
function setColumns(items, width) {
  const x = new Map();
  let right = LEFT;
  for (const depth of [...new Set(items.map((place) => place.depth))].sort((a, b) => a - b)) {
    x.set(depth, right);
    right += (Number.isInteger(depth) ? width : PILL.width) + GAP.x;
  }
  for (const place of items) place.x = x.get(place.depth);
  return right;
}

/** Gives every place its `y`: in the lane of the first trajectory that has it, below others of its lane and depth. */
function setLanes(items, lanes) {
  const laneOf = new Map(lanes.map((number, lane) => [number, lane]));
  const cells = new Map();
  for (const place of items) {
    const lane = smallest(listOf(place.item.trajectories).map((number) => laneOf.get(number) ?? 0), lanes.length);
    const key = `${lane} ${place.depth}`;
    if (!cells.has(key)) cells.set(key, { lane, stack: [] });
    cells.get(key).stack.push(place);
  }
  const heights = new Array(Math.max(1, lanes.length)).fill(CARD.height);
  for (const { lane, stack } of cells.values()) {
    const tall = stack.reduce((sum, place) => sum + place.height + GAP.y, -GAP.y);
    heights[lane] = Math.max(heights[lane] || 0, tall);
  }
  const tops = [];
  let bottom = TOP;
  for (const height of heights) {
    tops.push(bottom);
    bottom += height + GAP.y;
  }
  for (const { lane, stack } of cells.values()) {
    let y = tops[lane] + (stack.length === 1 ? (CARD.height - stack[0].height) / 2 : 0);
    for (const place of stack) {
      place.y = y;
      y += place.height + GAP.y;
    }
  }
  return { tops, bottom: bottom - GAP.y };
}

/** Edges as drawn: parent to child, by way of the tool calls between the two. `back` is the reward that flows back. */
function links(question, items) {
  const placed = new Map(items.map((place) => [place.item.node, place]));
  const tools = items.filter((place) => place.tool);
  const found = [];
  for (const place of items) {
    const sources = place.tool
      ? listOf(place.item.after)
          .map((id) => question.byId.get(id))
          .filter(Boolean)
      : place.item.parentCalls;
    const mine = new Set(place.item.trajectories);
    const between = place.tool
      ? []
      : tools.filter(
          (tool) =>
            tool.depth < place.depth &&
            listOf(tool.item.trajectories).some((number) => mine.has(number)) &&
            (tool.item.after.length ? tool.item.after.some((id) => place.item.parents.includes(id)) : !sources.length),
        );
    const covered = new Set(between.flatMap((tool) => tool.item.after));
    const direct = sources.filter((call) => !covered.has(call.id)).map((call) => placed.get(call.node));
    const back = place.tool ? null : place.item.rewards.shared;
    for (const from of [...direct, ...between]) found.push({ from, to: place, back, calls: sources });
  }
  return found;
}

function curve(x1, y1, x2, y2) {
  const bend = Math.min(40, Math.max(16, (x2 - x1) / 2));
  return Math.abs(y1 - y2) < 1
    ? `M${x1} ${y1}H${x2}`
    : `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

/** The scrolling picture. `chosen` is the selected node, `choose(node)` selects one. */
function forestView(question, chosen, choose) {
  const lines = draw("svg", { class: "lines", "aria-hidden": "true" }),
    cards = make("div.cards");
  const sheet = make("div.sheet", {}, lines, cards);
  const outer = make("div.forest", { tabindex: "0", role: "group", "aria-label": "calls of this question" }, sheet);
  let shown = "",
    room = 0,
    layout = null;
  outer.refresh = () => {
    if (!layout || room !== outer.clientWidth) {
      room = outer.clientWidth;
      outer.layout = layout = layOut(question, room);
      assign(sheet, { style: { width: `${layout.width}px`, height: `${layout.height}px` } });
      for (const side of ["width", "height"]) lines.setAttribute(side, layout[side]);
      shown = "";
    }
    const low = Math.floor((outer.scrollTop - 400) / 200) * 200,
      high = low + (outer.clientHeight || 900) + 1000;
    if (shown === `${low} ${high}`) return;
    shown = `${low} ${high}`;
    const seen = (place) => place.y < high && place.y + place.height > low;
    cards.replaceChildren(...layout.items.filter(seen).map((place) => card(place, question, chosen, choose)));
    lines.replaceChildren(...layout.links.filter((link) => seen(link.to)).flatMap((link) => line(link, chosen)));
    layout.lanes.forEach((number, lane) => {
      if (layout.tops[lane] < high && layout.tops[lane] > low) ending(question, layout, number, lane, cards, lines);
    });
  };
  outer.addEventListener("scroll", outer.refresh, { passive: true });
  new ResizeObserver(outer.refresh).observe(outer);
  return outer;
}

function card(place, question, chosen, choose) {
  const { item } = place;
  const style = { left: `${place.x}px`, top: `${place.y}px`, width: `${place.width}px`, height: `${place.height}px` };
  const on = {
    onclick: () => choose(item.node),
    "data-node": item.node,
    style,
    "aria-pressed": String(item === chosen),
  };
  const bad = item.bad ? ".bad" : "";
  if (place.tool) {
    return make(`button.pill${bad}`, { ...on, title: item.failure }, item.bad ? "▲ " : "", item.name);
  }
  const { total, shared, specific } = item.rewards;
  style["border-left-color"] = item.level ? tint(item.level, question.strongest, 1) : "var(--line)";
  const sum = `reward ${figure(total)} = shared ${figure(shared)}, own ${figure(specific, true)}`;
  return make(
    `button.card${bad}`,
    { ...on, title: item.bad ? `${item.status}: ${item.error}` : sum },
    make(
      "span.top",
      {},
      make("b", {}, placeOf(item)),
      item.bad && make("span.flag", {}, "▲"),
      make("span.number", {}, figure(total)),
    ),
    make(
      "span.low",
      {},
      make("span.said", {}, item.output.slice(0, 160) || (item.error || "no text").slice(0, 160)),
      specific ? make("small.number", { title: "agent-specific reward" }, `own ${figure(specific, true)}`) : "",
      isNumber(item.level) && make("small.number", { title: "advantage" }, `A ${figure(item.level, true)}`),
    ),
  );
}

function line({ from, to, back, calls }, chosen) {
  const y1 = from.y + from.height / 2,
    y2 = to.y + to.height / 2;
  const strong = chosen && (to.item === chosen || from.item === chosen || calls.includes(chosen)) ? " strong" : "";
  const parts = [draw("path", { class: `edge${strong}`, d: curve(from.x + from.width, y1, to.x, y2) })];
  if (isNumber(back)) {
    const title = draw("title", {}, "shared reward that flows back from this call");
    parts.push(
      draw("text", { class: `flow${strong}`, x: to.x - 5, y: y2 - 5, "text-anchor": "end" }, figure(back), title),
    );
  }
  return parts;
}

/** The number of a lane, and how its trajectory ended. */
function ending(question, layout, number, lane, cards, lines) {
  const trajectory = question.trajectories[number],
    y = layout.tops[lane] + CARD.height / 2;
  const ok = trajectory.status === "ok",
    sinks = new Set(trajectory.sinks);
  const fork = forkOf(trajectory) ? `, forked from ${forkOf(trajectory)}` : "";
  cards.append(make("span.lane", { style: { top: `${y}px` }, title: `trajectory ${number}${fork}` }, number));
  const last = layout.items.filter((place) => !place.tool && place.item.trajectories.includes(number));
  for (const place of ok ? last.filter((one) => sinks.has(one.item.id)) : last.slice(-1)) {
    const path = curve(place.x + place.width, place.y + place.height / 2, layout.right - GAP.x + 16, y);
    lines.append(draw("path", { class: ok ? "edge" : "edge lost", d: path }));
  }
  const words = ok ? figure(trajectory.reward) : `▲ ${inWords(trajectory.status)}`;
  const title = ok ? `reward of trajectory ${number}` : `trajectory ${number} could not finish: ${trajectory.error}`;
  const left = `${layout.right - GAP.x + 16}px`;
  cards.append(make(ok ? "span.end" : "span.end.bad", { style: { left, top: `${y}px` }, title }, words));
}

/** The node next to `item` in a direction of the arrow keys, or null. */
function neighbour(layout, item, key) {
  const here = layout.items.find((place) => place.item === item);
  if (!here) return layout.items[0]?.item ?? null;
  const sideways = key === "ArrowLeft" || key === "ArrowRight",
    sign = key === "ArrowLeft" || key === "ArrowUp" ? -1 : 1;
  let best = null,
    least = Infinity;
  for (const place of layout.items) {
    const dx = place.x - here.x,
      dy = place.y + place.height / 2 - here.y - here.height / 2;
    if ((sideways ? dx : dy) * sign <= 1) continue;
    const distance = sideways ? Math.abs(dx) + 3 * Math.abs(dy) : Math.abs(dy) + 8 * Math.abs(dx);
    if (distance < least) [best, least] = [place.item, distance];
  }
  return best;
}
