// The graph of an agent's decisions: what it chose stands on a ring, an edge leads from each choice to the next one.

const RING = { width: 620, height: 490, x: 162, y: 160 };
const TURN = Math.PI / 3.3; // from a node's outward direction to that of its loop, and back to that of its start
const PEN = document.createElement("canvas").getContext("2d"); // measures text; draws nothing

const toward = ({ x, y }, angle, distance) => ({
  x: x + distance * Math.cos(angle),
  y: y + distance * Math.sin(angle),
});
const point = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;

/** `text`, cut to what a label of this many units has room for. */
function fitting(text, room) {
  PEN.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  const letters = [...text].slice(0, 60);
  const shown = () => letters.join("") + (letters.join("") === text ? "" : "…");
  while (letters.length > 1 && PEN.measureText(shown()).width > room) letters.pop();
  return shown();
}

/** Places of `n` nodes, clockwise from the top; `out` is the direction away from the middle. */
function ringOf(n) {
  return Array.from({ length: n }, (_, i) => {
    const out = (2 * Math.PI * i) / n - Math.PI / 2;
    const far = n > 1 ? 1 : 0;
    return { x: RING.width / 2 + far * RING.x * Math.cos(out), y: RING.height / 2 + far * RING.y * Math.sin(out), out };
  });
}

/** How often per path the most frequent edge was taken: the width of edges is relative to it. */
const busiest = (graph) =>
  greatest(
    graph.edges.map(([, , times]) => times / graph.paths),
    0,
  );

/** The picture of `graph`, an entry of the index, with `labels` for its nodes; edges are as wide as `most` says. */
function graphView(graph, labels, name, most) {
  const total = graph.counts.reduce((sum, n) => sum + n, 0);
  const nodes = ringOf(labels.length).map((place, i) => {
    const share = graph.counts[i] / total;
    const radius = share ? 8 + 24 * Math.sqrt(share) : 4;
    // Its loop and its start stand beside it: a long label above or below it keeps clear of them.
    const busy = graph.first[i] || graph.edges.some(([a, b]) => a === i && b === i);
    return { ...place, i, label: labels[i], share, radius, busy };
  });
  const wide = (times) => 1 + (7 * times) / graph.paths / (most || 1);
  const lines = graph.edges.map(([a, b, times]) => edgeView(nodes[a], nodes[b], wide(times), times));
  const starts = nodes
    .filter((node) => graph.first[node.i])
    .map((node) => startView(node, 1 + (5 * graph.first[node.i]) / graph.paths, graph.first[node.i], graph.paths));
  const whole = draw(
    "svg",
    { class: "graph", viewBox: `0 0 ${RING.width} ${RING.height}`, role: "group", "aria-label": name },
    lines,
    starts,
    nodes.map((node) => nodeView(node, inSentences(graph, nodes, node))),
    nodes.map(labelView),
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

/** What a node and its edges show, in words. */
function inSentences(graph, nodes, { i, label, share }) {
  if (!share) return `${label}: not chosen`;
  const after = graph.edges.filter(([a]) => a === i).sort((x, y) => y[2] - x[2]);
  const parts = [`${label}: ${percent(share)} of the choices`];
  if (graph.first[i]) parts.push(`the first in ${graph.first[i]} of ${count(graph.paths, "path")}`);
  if (after.length) parts.push(`then ${after.map(([, b, times]) => `${nodes[b].label} ${times} ×`).join(", ")}`);
  return parts.join("; ");
}

function nodeView(node, words) {
  const { x, y, radius, share, i } = node;
  const looks = { class: share ? "node" : "node none", tabindex: "0", role: "img", "aria-label": words };
  const disc = draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: radius.toFixed(1) });
  return draw("g", { ...looks, "data-choice": i }, draw("title", {}, words), disc);
}

function labelView({ x, y, out, radius, label, share, busy }) {
  const side = Math.abs(Math.cos(out)) < 0.3 ? "middle" : Math.cos(out) > 0 ? "start" : "end";
  const at = toward({ x, y }, out, radius + (busy && side === "middle" && label.length > 8 ? 23 : 8));
  const room = side === "middle" ? 140 : (side === "start" ? RING.width - at.x : at.x) - 6;
  const above = -2 + 14 * Math.sin(out);
  const line = (dy, words) => draw("tspan", { x: at.x.toFixed(1), y: (at.y + dy).toFixed(1) }, words);
  return draw(
    "text",
    { class: share ? "choice" : "choice none", "text-anchor": side, "aria-hidden": "true" },
    draw("title", {}, label),
    line(above, fitting(label, Math.min(140, room))),
    line(above + 15, percent(share)),
  );
}

function edgeView(a, b, width, times) {
  const title = draw("title", {}, `${a.label} → ${b.label}: ${times} ×`);
  const [path, tip, angle, length] = a.i === b.i ? loop(a, width) : arc(a, b, width);
  const line = draw("path", { class: "line", d: path, "stroke-width": width.toFixed(2) });
  const looks = { class: a.i === b.i ? "way loop" : "way", "data-from": a.i, "data-to": b.i };
  const opacity = Math.min(0.85, 0.3 + width / 12).toFixed(2); // rare ways do not hide the others
  return draw("g", { ...looks, opacity }, title, line, arrowHead(tip, angle, width, length));
}

/** Of an edge of this width, at most half of the room that there is. */
const headLength = (width, room = Infinity) => Math.min(5 + 1.4 * width, room / 2);

/** From node to node, bent inwards, where no other node is; against the clock more, so that there and back are apart.
 *  As of `loop`, what is returned is the path without its head, the head's tip, direction and length. */
function arc(a, b, width) {
  const [dx, dy] = [b.x - a.x, b.y - a.y],
    far = Math.hypot(dx, dy);
  const clockwise = (b.out - a.out + 2 * Math.PI) % (2 * Math.PI) < Math.PI + 1e-6;
  const side = clockwise ? 0.14 : -0.14 - 38 / far;
  const bend = { x: (a.x + b.x) / 2 - side * dy, y: (a.y + b.y) / 2 + side * dx };
  const away = Math.atan2(bend.y - a.y, bend.x - a.x);
  const into = Math.atan2(b.y - bend.y, b.x - bend.x);
  const tip = toward(b, into, -b.radius - 2);
  const length = headLength(width, far - a.radius - b.radius);
  const end = toward(tip, into, -length);
  return [`M${point(toward(a, away, a.radius))}Q${point(bend)} ${point(end)}`, tip, into, length];
}

function loop(node, width) {
  const middle = node.out + TURN,
    open = 0.42,
    far = node.radius + 36,
    length = headLength(width, 20);
  const tip = toward(node, middle + open, node.radius + 2);
  const into = middle + open + Math.PI + 0.25;
  const end = toward(tip, into, -length);
  const [c1, c2] = [toward(node, middle - open, far), toward(node, middle + open + 0.1, far)];
  return [
    `M${point(toward(node, middle - open, node.radius))}C${point(c1)} ${point(c2)} ${point(end)}`,
    tip,
    into,
    length,
  ];
}

/** An arrow out of nowhere to a choice with which paths begin. */
function startView(node, width, times, paths) {
  const from = toward(node, node.out - TURN, node.radius + 32);
  const tip = toward(node, node.out - TURN, node.radius + 2);
  const into = node.out - TURN + Math.PI,
    length = headLength(width, 24);
  const line = {
    class: "line",
    d: `M${point(from)}L${point(toward(tip, into, -length))}`,
    "stroke-width": width.toFixed(2),
  };
  return draw(
    "g",
    { class: "way start", "data-to": node.i },
    draw("title", {}, `${node.label} is the first in ${times} of ${count(paths, "path")}`),
    draw("path", line),
    draw("circle", { cx: from.x.toFixed(1), cy: from.y.toFixed(1), r: (2.5 + width / 2).toFixed(1) }),
    arrowHead(tip, into, width, length),
  );
}

function arrowHead(tip, angle, width, length) {
  const base = toward(tip, angle, -length);
  const [left, right] = [
    toward(base, angle + Math.PI / 2, 2.5 + width),
    toward(base, angle - Math.PI / 2, 2.5 + width),
  ];
  return draw("path", { class: "head", d: `M${point(tip)}L${point(left)}L${point(right)}Z` });
}
