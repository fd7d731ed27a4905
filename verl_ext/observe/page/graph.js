// Draws the layout of an agent's decision graph (graph_layout.py): what it chose stands on a ring, arrows between them.

const PEN = document.createElement("canvas").getContext("2d"); // measures text; draws nothing

/** `text`, cut to the width that there is room for. */
function fitting(text, room) {
  PEN.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  const letters = [...text].slice(0, 60);
  const shown = () => letters.join("") + (letters.join("") === text ? "" : "…");
  while (letters.length > 1 && PEN.measureText(shown()).width > room) letters.pop();
  return shown();
}

/** The picture of `graph`, an entry of the index, with `labels` for its nodes. */
function graphView(graph, labels, name) {
  const whole = draw(
    "svg",
    { class: "graph", viewBox: `0 0 ${INDEX.picture.width} ${INDEX.picture.height}`, role: "group", "aria-label": name },
    graph.ways.map((way) => wayView(way, labels, graph.paths)),
    graph.nodes.map((node, i) => nodeView(node, i, inSentences(graph, labels, i))),
    graph.nodes.map((node, i) => labelView(node, labels[i])),
  );
  for (const node of whole.querySelectorAll(".node")) {
    const pick = (on) => {
      whole.classList.toggle("picked", on);
      for (const line of whole.querySelectorAll(".way")) {
        line.classList.toggle("on", on && [line.dataset.from, line.dataset.to].includes(node.dataset.choice));
      }
    };
    for (const event of ["focus", "mouseenter"]) node.addEventListener(event, () => pick(true));
    for (const event of ["blur", "mouseleave"]) node.addEventListener(event, () => pick(false));
  }
  return whole;
}

/** What a node and its ways show, in words. */
function inSentences(graph, labels, i) {
  const { share } = graph.nodes[i];
  if (!share) return `${labels[i]}: not chosen`;
  const first = graph.ways.find((way) => way.from === null && way.to === i);
  const after = graph.ways.filter((way) => way.from === i).sort((x, y) => y.times - x.times);
  const parts = [`${labels[i]}: ${percent(share)} of the choices`];
  if (first) parts.push(`the first in ${first.times} of ${count(graph.paths, "path")}`);
  if (after.length) parts.push(`then ${after.map(({ to, times }) => `${labels[to]} ${times} ×`).join(", ")}`);
  return parts.join("; ");
}

function nodeView({ x, y, radius, share }, i, words) {
  const looks = { class: share ? "node" : "node none", tabindex: "0", role: "img", "aria-label": words };
  const disc = draw("circle", { cx: x, cy: y, r: radius });
  return draw("g", { ...looks, "data-choice": i }, draw("title", {}, words), disc);
}

function labelView({ label: [x, y, anchor, room], share }, label) {
  return draw(
    "text",
    { class: share ? "choice" : "choice none", "text-anchor": anchor, "aria-hidden": "true" },
    draw("title", {}, label),
    draw("tspan", { x, y }, fitting(label, room)),
    draw("tspan", { x, y: y + INDEX.picture.line }, percent(share)),
  );
}

function wayView(way, labels, paths) {
  const starts = way.from === null;
  const title = starts
    ? `${labels[way.to]} is the first in ${way.times} of ${count(paths, "path")}`
    : `${labels[way.from]} → ${labels[way.to]}: ${way.times} ×`;
  const [begin, ...rest] = way.line;
  const kind = { 1: "L", 2: "Q", 3: "C" }[rest.length];
  const looks = { class: starts ? "way start" : way.from === way.to ? "way loop" : "way", opacity: way.opacity };
  return draw(
    "g",
    { ...looks, ...(starts ? {} : { "data-from": way.from }), "data-to": way.to },
    draw("title", {}, title),
    draw("path", { class: "line", d: `M${begin}${kind}${rest.join(" ")}`, "stroke-width": way.width }),
    starts && draw("circle", { cx: begin[0], cy: begin[1], r: 2.5 + way.width / 2 }),
    draw("path", { class: "head", d: `M${way.head.join("L")}Z` }),
  );
}
