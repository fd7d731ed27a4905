// Elements. Text only ever becomes text nodes: nothing that a model or a data set says is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `make("p.note", {title: …, onclick: …}, "text", child)`; null and false children are left out. */
function make(selector, properties = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(assign(element, properties), children);
}

/** The same in SVG: properties are attributes. */
function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return fill(element, children);
}

function assign(element, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

function fill(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** A list of rows of one height, of which only those in view exist. `row(i)` makes the i-th. */
function lazyList(total, height, row, selector = "div") {
  const inner = make("div.rows", { style: { height: `${total * height}px` } });
  const outer = make(`${selector}.lazy`, { tabindex: "-1", style: { "max-height": `${total * height + 2}px` } }, inner);
  let shown = "";
  outer.refresh = () => {
    const from = Math.max(0, Math.floor(outer.scrollTop / height) - 10);
    const to = Math.min(total, Math.ceil((outer.scrollTop + (outer.clientHeight || 800)) / height) + 10);
    if (shown === `${from} ${to}`) return;
    shown = `${from} ${to}`;
    inner.replaceChildren();
    for (let i = from; i < to; i++) inner.append(assign(row(i), { style: { top: `${i * height}px` } }));
  };
  outer.reveal = (i) => {
    if (i * height < outer.scrollTop || (i + 1) * height > outer.scrollTop + outer.clientHeight) {
      outer.scrollTop = Math.max(0, i * height - outer.clientHeight / 2);
    }
    shown = "";
    outer.refresh();
  };
  outer.addEventListener("scroll", outer.refresh, { passive: true });
  new ResizeObserver(outer.refresh).observe(outer);
  outer.refresh();
  return outer;
}

/** A colour of the diverging scale for `value` in [−most, most]: orange below zero, blue above; none at zero. */
function tint(value, most, strongest = 0.62) {
  if (!isNumber(value) || !value) return "transparent";
  const strength = Math.min(1, Math.abs(value) / most);
  const share = Math.round(100 * strongest * (0.15 + 0.85 * strength));
  return `color-mix(in srgb, var(--${value > 0 ? "plus" : "minus"}) ${share}%, transparent)`;
}

/** The scale itself, with its ends in figures. */
function legend(most, what) {
  return make(
    "div.legend",
    { title: "orange: less likely from now on; blue: more likely" },
    make("span", {}, what),
    make("span.number", {}, figure(-most)),
    make("span.scale"),
    make("span.number", {}, figure(most, true)),
  );
}

/** A status in words, e.g. "tool error". */
const inWords = (status) => String(status).replaceAll("_", " ");

const badge = (status) => make("span.badge", { title: `status: ${status}` }, "▲ ", inWords(status));

/** The part of `text` around its first match, the match marked. */
function excerpt(text, wanted, around = 70) {
  const at = text.toLowerCase().indexOf(wanted.toLowerCase());
  const from = Math.max(0, at - around),
    end = at + wanted.length;
  return [
    from > 0 ? "…" : "",
    text.slice(from, at),
    make("mark", {}, text.slice(at, end)),
    text.slice(end, end + 2 * around),
  ];
}
