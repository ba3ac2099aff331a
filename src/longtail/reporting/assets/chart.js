// ---- a chart: lines with bands over x = 0..1, bars behind them, and names where the pointer is

const HEIGHT = 300; // pixels, without slanted names
const SLANT = 55; // degrees
const LETTER = 6; // pixels of a letter, on average
let width = 800; // of a chart in pixels; measured only on resize, because it costs a layout
const measureWidth = () => { width = $("loss").clientWidth || 800; };

/** Multiples of 1, 2, 2.5 or 5 times a power of ten, about `count`, from below `low` to above `high`. */
function roundTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(6)));
}

/** 1 and the round numbers up to `last`. */
function countTicks(last, count) {
  const ticks = roundTicks(0, last, count);
  return [1, ...ticks.filter((tick) => tick > 1 && tick <= last && Number.isInteger(tick))];
}

const cut = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}\u2026` : name);

/**
 * Draws a chart. lines: points [x, y or null], colour, dash, band of [low, high]; yTicks from bottom
 * to top; xTicks [x, text], slanted if asked; behind: bars on a scale of their own; bounds between
 * the splits; mark: x of a vertical line; dots; hover: its x values, and the text at each.
 */
function chart(svg, spec) {
  const { lines, yTicks, xTicks, slanted, behind, bounds = [], mark = null, dots = [], hover } = spec;
  const longest = Math.max(0, ...xTicks.map(([, text]) => String(text).length));
  const depth = slanted ? longest * LETTER * Math.sin((SLANT * Math.PI) / 180) : 0;
  const height = HEIGHT + depth;
  const box = {
    left: slanted ? Math.max(52, longest * LETTER * Math.cos((SLANT * Math.PI) / 180)) : 52,
    right: width - (behind ? 56 : 14), top: bounds.length ? 26 : 12, bottom: HEIGHT - 44,
  };
  const [low, high] = [yTicks[0], yTicks.at(-1)];
  const x = (part) => box.left + part * (box.right - box.left);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.height = `${height}px`;
  svg.replaceChildren();
  if (behind) drawBars(svg, spec, box, x);
  drawAxes(svg, spec, box, x, y, height);
  for (const { at, name, middle, room } of bounds) {
    if (at > 0) shape(svg, "line", { class: "bound", x1: x(at), x2: x(at), y1: box.top, y2: box.bottom });
    if (room * (box.right - box.left) < name.length * LETTER) continue;
    shape(svg, "text", { class: "bound", x: x(middle), y: box.top - 8, "text-anchor": "middle" }, name);
  }
  if (mark !== null) {
    shape(svg, "line", { class: "mark", x1: x(mark), x2: x(mark), y1: box.top, y2: box.bottom });
  }
  for (const { points, colour, band } of lines) {
    if (!band) continue;
    const edge = (side) => band.map((pair, i) => `${x(points[i][0])},${y(pair[side])}`);
    const outline = [...edge(0), ...edge(1).reverse()].join(" ");
    shape(svg, "polygon", { points: outline, style: `--stroke: ${colour}` });
  }
  for (const { points, colour, dash } of lines) {
    const text = points.filter(([, v]) => v !== null).map(([p, v]) => `${x(p)},${y(v)}`).join(" ");
    shape(svg, "polyline", { points: text, style: `--stroke: ${colour}`, "stroke-dasharray": dash });
  }
  for (const [part, value, colour] of dots) {
    shape(svg, "circle", { cx: x(part), cy: y(value), r: 4, style: `--stroke: ${colour}` });
  }
  if (hover) followPointer(svg, hover, box, x);
}

function drawBars(svg, { behind, behindName }, box, x) {
  const ticks = roundTicks(0, Math.max(...behind, 1), 4);
  const y = (value) => box.bottom - (value / ticks.at(-1)) * (box.bottom - box.top);
  const step = 1 / behind.length;
  const path = behind.map((v, i) => `L${x(i * step)} ${y(v)}H${x((i + 1) * step)}`);
  shape(svg, "path", { class: "bars", d: `M${x(0)} ${box.bottom}${path.join("")}V${box.bottom}Z` });
  for (const tick of ticks.filter(Number.isInteger)) {
    shape(svg, "text", { x: box.right + 6, y: y(tick) + 4 }, String(tick));
  }
  const middle = (box.top + box.bottom) / 2;
  const turned = { transform: `rotate(90 ${width - 10} ${middle})`, "text-anchor": "middle" };
  shape(svg, "text", { x: width - 10, y: middle, ...turned }, behindName);
}

function drawAxes(svg, { yTicks, xTicks, slanted, xName, yName }, box, x, y, height) {
  for (const tick of yTicks) {
    shape(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) });
    shape(svg, "text", { x: box.left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(tick));
  }
  const middle = (box.top + box.bottom) / 2;
  const turned = { transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" };
  shape(svg, "text", { x: 12, y: middle, ...turned }, yName);
  for (const [part, text] of xTicks) {
    const at = { x: x(part), y: box.bottom + 16, "text-anchor": "middle" };
    const slant = { x: x(part) + 4, "text-anchor": "end", transform: `rotate(${-SLANT} ${x(part) + 4} ${at.y - 4})`, y: at.y - 4 };
    shape(svg, "text", { class: "tick", ...at, ...(slanted ? slant : {}) }, text);
  }
  const below = { x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" };
  shape(svg, "text", below, xName);
}

/** Shows the text of the nearest x value beside the pointer. */
function followPointer(svg, { parts, text }, box, x) {
  const line = shape(svg, "line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const tip = svg.parentNode.querySelector(".tip") ?? element("div", { className: "tip", hidden: true });
  svg.after(tip);
  tip.hidden = true;
  svg.onpointermove = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const near = (i) => Math.abs(x(parts[i]) - at);
    const best = [...parts.keys()].reduce((a, b) => (near(b) < near(a) ? b : a), 0);
    const place = x(parts[best]);
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    line.setAttribute("visibility", "visible");
    tip.replaceChildren(...text(best).map(([value, colour]) => element("div", {},
      ...(colour ? [element("i", { style: `--stroke: ${colour}` })] : []), value)));
    tip.hidden = false;
    const room = place < width / 2 ? place + 12 : place - 12 - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, width - tip.offsetWidth))}px`;
  };
  svg.onpointerleave = () => { tip.hidden = true; line.setAttribute("visibility", "hidden"); };
}
