// ---- curves: accuracy by rank, and the training loss

let width = 800; // of a curve in pixels; measured only on resize, because it costs a layout
const measure = () => { width = $("rank").clientWidth || 800; };

/** Draws lines over x = 0..1 and y = 0..top, and grey bars behind them on a scale of their own. */
function chart(svg, { lines, top, xTicks, xName, yName, behind, behindName }) {
  const height = 300;
  const box = { left: 46, right: width - (behind ? 52 : 12), top: 12, bottom: height - 44 };
  const x = (part) => box.left + part * (box.right - box.left);
  const y = (value) => box.bottom - (value / top) * (box.bottom - box.top);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  if (behind) {
    const most = Math.max(...behind, 1);
    const step = 1 / behind.length;
    const path = behind.map((v, i) => `L${x(i * step)} ${y((top * v) / most)}H${x((i + 1) * step)}`);
    const [start, end] = [`M${x(0)} ${box.bottom}`, `V${box.bottom}Z`];
    shape(svg, "path", { class: "bars", d: start + path.join("") + end });
    for (const part of [0, 0.5, 1]) {
      const at = { x: box.right + 6, y: y(part * top) + 4 };
      shape(svg, "text", at, String(Math.round(part * most)));
    }
    const turned = `rotate(90 ${width - 12} ${(box.top + box.bottom) / 2})`;
    const at = { x: width - 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle" };
    shape(svg, "text", { ...at, transform: turned }, behindName);
  }
  for (const part of [0, 0.25, 0.5, 0.75, 1]) {
    const level = y(part * top);
    shape(svg, "line", { class: "axis", x1: box.left, x2: box.right, y1: level, y2: level });
    const text = top >= 10 ? String(Math.round(part * top)) : (part * top).toPrecision(2);
    shape(svg, "text", { x: box.left - 6, y: level + 4, "text-anchor": "end" }, text);
  }
  const middle = (box.top + box.bottom) / 2;
  const turned = { transform: `rotate(-90 12 ${middle})`, "text-anchor": "middle" };
  shape(svg, "text", { x: 12, y: middle, ...turned }, yName);
  for (const [part, text] of xTicks) {
    shape(svg, "text", { x: x(part), y: box.bottom + 16, "text-anchor": "middle" }, text);
  }
  const below = { x: (box.left + box.right) / 2, y: height - 8, "text-anchor": "middle" };
  shape(svg, "text", below, xName);
  for (const { points, colour, dash } of lines) {
    const text = points.filter(([, v]) => v !== null).map(([p, v]) => `${x(p)},${y(v)}`).join(" ");
    shape(svg, "polyline", { points: text, style: `--stroke: ${colour}`, "stroke-dasharray": dash });
  }
}

const BIN = Math.ceil(classes / 60); // classes per point, so that 1,000 classes stay readable
const BINS = Math.ceil(classes / BIN);

function binned(perClass) {
  return Array.from({ length: BINS }, (_, b) =>
    mean(order.slice(b * BIN, (b + 1) * BIN).map((c) => perClass[c]).filter((v) => v !== null)));
}

const behind = binned(page.counts);
const LONGEST = Math.max(...page.names.map((name) => name.length));
const middleOf = (bin) => (bin + 0.5) / BINS;

function rankTicks() {
  const every = Math.ceil(BINS / Math.max(4, Math.floor(width / 70)));
  const room = (every * (width - 98)) / BINS; // pixels of a tick
  const named = BIN === 1 && (LONGEST <= 8 || LONGEST * 7 <= room);
  const text = (bin) => (named ? page.names[order[bin]] : bin * BIN + 1);
  const all = BINS <= 40 && LONGEST <= 2; // letters and digits
  return [...behind.keys()]
    .filter((bin) => all || bin % every === 0)
    .map((bin) => [middleOf(bin), text(bin)]);
}

function drawRank() {
  const lines = page.groups.map((group, g) => {
    const each = members[g].map((run) => binned(run.perClass));
    const values = each[0].map((v, bin) => (v === null ? null : mean(each.map((one) => one[bin]))));
    return { ...group, points: values.map((v, bin) => [middleOf(bin), v]) };
  });
  chart($("rank"), {
    lines, behind, top: 100, xTicks: rankTicks(), behindName: "training images",
    xName: "class, most to fewest training images", yName: "accuracy (%)",
  });
}

function drawLoss() {
  const trainings = new Map(page.runs.map((run) => [JSON.stringify(run.loss), run]));
  const drawn = [...trainings.values()].filter((run) => run.loss.length);
  const last = Math.max(1, ...drawn.map((run) => run.loss.at(-1)[0]));
  const top = Math.max(1e-9, ...drawn.flatMap((run) => run.loss.map(([, loss]) => loss)));
  const part = (epoch) => (last > 1 ? (epoch - 1) / (last - 1) : 0.5);
  const ticks = [...new Set([0, 0.25, 0.5, 0.75, 1].map((p) => Math.round(1 + p * (last - 1))))];
  chart($("loss"), {
    lines: drawn.map((run) => ({
      ...page.groups[run.group], points: run.loss.map(([epoch, loss]) => [part(epoch), loss]),
    })),
    top, xTicks: ticks.map((epoch) => [part(epoch), String(epoch)]), xName: "epoch", yName: "loss",
  });
}

function addLegends() {
  for (const list of document.querySelectorAll("[data-legend]")) {
    for (const { label, colour, dash } of page.groups) {
      const item = element("li");
      const sample = shape(item, "svg", { "aria-hidden": "true", viewBox: "0 0 28 10" });
      const line = { points: "0,5 28,5", style: `--stroke: ${colour}`, "stroke-dasharray": dash };
      shape(sample, "polyline", line);
      item.append(label);
      list.append(item);
    }
  }
}
