"use strict";
// The live part of a report. Eq. 8 makes every logit a line in alpha, so that a test image is right
// on an interval of the slider's positions; counting the intervals over a position gives the very
// counts that `longtail eval --alpha` gives there (see intervals.py).

const page = JSON.parse(document.getElementById("content").textContent);
const SPLITS = ["many", "medium", "few"];
const classes = page.names.length;
const order = [...page.counts.keys()].sort((a, b) => page.counts[b] - page.counts[a] || a - b);
const rankOf = [];
order.forEach((c, rank) => { rankOf[c] = rank + 1; });
const $ = (id) => document.getElementById(id);
const state = { position: null, sort: "rank", down: false, search: "", all: false };
const SHOWN = 100; // rows of the class table before it is asked for all

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
for (const run of page.runs) {
  run.live = run.starts !== undefined;
  if (run.live) [run.starts, run.stops] = [bytes(run.starts), bytes(run.stops)];
}

// ---- counting

/** Right test images of each class at a position; null is the run's own alpha. */
function hitsAt(run, position) {
  if (position === null || !run.live) return run.hits;
  const hits = new Array(classes).fill(0);
  let i = 0;
  for (let c = 0; c < classes; c++) {
    for (const end = i + run.pieces[c]; i < end; i++) {
      if (run.starts[i] <= position && position < run.stops[i]) hits[c]++;
    }
  }
  return hits;
}

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const ratios = (hits) => hits.map((n, c) => (page.seen[c] ? (100 * n) / page.seen[c] : null));

/** Overall over images; a split's figure is the mean of its classes' accuracies. */
function splitsOf(hits) {
  const total = page.seen.reduce((a, b) => a + b, 0);
  const perClass = ratios(hits);
  const figures = { overall: total ? (100 * hits.reduce((a, b) => a + b, 0)) / total : null };
  SPLITS.forEach((name, number) => {
    figures[name] = mean(perClass.filter((v, c) => v !== null && page.splits[c] === number));
  });
  return figures;
}

function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1));
}

/** One decimal as Python prints it: a tie, which only x.25 and x.75 can be, goes to the even digit. */
function shown(value) {
  if (value === null) return "-";
  const size = Math.abs(value);
  const text = (size % 1 === 0.25 ? size - 0.05 : size).toFixed(1);
  return (value < 0 && text !== "0.0" ? "\u2212" : "") + text;
}

const alphaText = (alpha) => String(Number(alpha.toPrecision(6)));
const alphaAt = (position) => position / page.perUnit;
const positionOf = (run) => (run.live && run.follows ? state.position : null);

function alphaOf(run) {
  if (!run.live) return "-";
  return alphaText(positionOf(run) === null ? run.alpha : alphaAt(state.position));
}

// ---- small builders

function element(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(parent, name, attributes, text) {
  const made = document.createElementNS($("rank").namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

// ---- the table of splits

const members = page.groups.map((_, g) => page.runs.filter((run) => run.group === g));

function drawSplits() {
  const said = [];
  [...$("splits").tBodies[0].rows].forEach((row, g) => {
    const runs = members[g];
    const alphas = [...new Set(runs.map(alphaOf))].join(", ");
    row.cells[1].textContent = alphas;
    ["overall", ...SPLITS].forEach((name, i) => {
      const values = runs.map((run) => run.figures[name]).filter((value) => value !== null);
      const spread = deviation(values);
      const cell = row.cells[3 + i];
      cell.textContent = shown(mean(values)) + (spread === null ? "" : ` ± ${shown(spread)}`);
      cell.dataset.value = mean(values);
    });
    const [overall, , , few] = [3, 4, 5, 6].map((i) => row.cells[i].textContent);
    said.push(`${page.groups[g].method}, alpha ${alphas}: overall ${overall}, few ${few}`);
  });
  return said.join(". ");
}

function addFollowers() {
  [...$("splits").tBodies[0].rows].forEach((row, g) => {
    const runs = members[g];
    if (!runs[0].live) return row.cells[7].append("no alpha");
    const box = element("input", { type: "checkbox", checked: runs[0].follows });
    box.setAttribute("aria-label", `${page.groups[g].method} follows the slider`);
    box.addEventListener("change", () => {
      for (const run of runs) run.follows = box.checked;
      update();
    });
    row.cells[7].append(box);
  });
}

// ---- curves

/** Lines over x = 0..1 and y = 0..top, with what lies behind them on its own scale. */
function chart(svg, { lines, top, xTicks, xName, yName, behind, behindName }) {
  const width = svg.clientWidth || 800;
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
    const turned = `rotate(90 ${width - 8} ${(box.top + box.bottom) / 2})`;
    const at = { x: width - 8, y: (box.top + box.bottom) / 2, "text-anchor": "middle" };
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
    shape(svg, "polyline", { points: text, stroke: colour, "stroke-dasharray": dash });
  }
}

const BIN = Math.ceil(classes / 60); // classes to a point, so that a thousand stay readable
const BINS = Math.ceil(classes / BIN);

function binned(perClass) {
  return Array.from({ length: BINS }, (_, b) =>
    mean(order.slice(b * BIN, (b + 1) * BIN).map((c) => perClass[c]).filter((v) => v !== null)));
}

const behind = binned(page.counts);
const middleOf = (bin) => (bin + 0.5) / BINS;

function rankTicks() {
  const every = Math.ceil(BINS / Math.max(4, Math.floor(($("rank").clientWidth || 800) / 70)));
  const short = Math.max(...page.names.map((name) => name.length)) <= 8;
  const text = (bin) => (BIN === 1 && short ? page.names[order[bin]] : String(bin * BIN + 1));
  const narrow = Math.max(...page.names.map((name) => name.length)) <= 2 && BIN === 1;
  return [...behind.keys()]
    .filter((bin) => (narrow && BINS <= 40 ? true : bin % every === 0))
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
    for (const { method, colour, dash } of page.groups) {
      const item = element("li");
      const sample = shape(item, "svg", { "aria-hidden": "true", viewBox: "0 0 28 10" });
      const line = { points: "0,5 28,5", stroke: colour, "stroke-dasharray": dash };
      shape(sample, "polyline", line);
      item.append(method);
      list.append(item);
    }
  }
}

// ---- two runs, class by class

/** What can be compared: each run as it stands, and each with an alpha also at 0. */
const choices = page.runs.flatMap((run) => [
  { run, fixed: null, name: run.name },
  ...(run.live ? [{ run, fixed: 0, name: `${run.name}, at alpha 0` }] : []),
]);

const choiceName = ({ run, fixed, name }) =>
  fixed === null && run.live ? `${name}, at alpha ${alphaOf(run)}` : name;
const picked = (id) => choices[$(id).selectedIndex];
const perClassOf = ({ run, fixed }) => (fixed === null ? run.perClass : run.atZero);

const COLUMNS = [
  ["rank", "rank"], ["name", "class"], ["split", "split"], ["train", "training images"],
  ["test", "test images"], ["first", "first (%)"], ["second", "second (%)"],
  ["change", "second \u2212 first"],
];

function classRows() {
  const [first, second] = [perClassOf(picked("first")), perClassOf(picked("second"))];
  return order.map((c) => ({
    rank: rankOf[c], name: page.names[c], split: SPLITS[page.splits[c]], train: page.counts[c],
    test: page.seen[c], first: first[c], second: second[c],
    change: first[c] === null ? null : second[c] - first[c],
  }));
}

function sortedRows() {
  const wanted = state.search.toLowerCase();
  const key = state.sort === "split" ? "rank" : state.sort; // splits lie in the order of the ranks
  const sign = state.down ? -1 : 1;
  const compared = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  return classRows()
    .filter((row) => row.name.toLowerCase().includes(wanted) || row.split === wanted)
    .sort((a, b) => {
      if (a[key] === null || b[key] === null) return (a[key] === null) - (b[key] === null);
      return sign * compared(a[key], b[key]) || a.rank - b.rank;
    });
}

function drawClasses() {
  const rows = sortedRows();
  const visible = state.all ? rows : rows.slice(0, SHOWN);
  const body = document.createDocumentFragment();
  for (const row of visible) {
    body.append(element("tr", {},
      element("td", {}, String(row.rank)),
      element("th", { scope: "row" }, row.name),
      element("td", { className: "text" }, row.split),
      element("td", {}, String(row.train)),
      element("td", {}, String(row.test)),
      element("td", {}, shown(row.first)),
      element("td", {}, shown(row.second)),
      element("td", {}, shown(row.change))));
  }
  $("classes").tBodies[0].replaceChildren(body);
  const [first, second] = [choiceName(picked("first")), choiceName(picked("second"))];
  const part = visible.length < rows.length ? `, the first ${visible.length} of ${rows.length}` : "";
  $("classes-caption").textContent = `First: ${first}. Second: ${second}. ${rows.length} classes${part}.`;
  $("more").hidden = rows.length <= SHOWN;
  $("more").textContent = state.all ? `Show the first ${SHOWN}` : `Show all ${rows.length}`;
  for (const head of $("classes").tHead.rows[0].cells) {
    const sorted = head.dataset.key === state.sort;
    head.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
  }
}

function drawExtremes() {
  const rows = classRows().filter((row) => row.second !== null);
  const changed = rows.filter((row) => row.change !== 0).sort((a, b) => b.change - a.change);
  const up = (row) => `${row.name} (${row.split}): ${shown(row.first)} \u2192 ${shown(row.second)}`;
  const lists = [
    ["Worst classes of the second", [...rows].sort((a, b) => a.second - b.second || b.rank - a.rank),
      (row) => `${row.name} (${row.split}): ${shown(row.second)}`],
    ["Most improved", changed.filter((row) => row.change > 0), up],
    ["Most lost", changed.filter((row) => row.change < 0).reverse(), up],
  ];
  $("extremes").replaceChildren(...lists.map(([title, found, text]) =>
    element("div", {}, element("h3", {}, title), found.length
      ? element("ol", {}, ...found.slice(0, 5).map((row) => element("li", {}, text(row))))
      : element("p", { className: "note" }, "none"))));
}

function addColumns() {
  for (const [key, title] of COLUMNS) {
    const button = element("button", { type: "button" }, title);
    button.addEventListener("click", () => {
      state.down = state.sort === key ? !state.down : ["change", "train", "test"].includes(key);
      state.sort = key;
      drawClasses();
    });
    const head = element("th", { scope: "col" }, button);
    head.dataset.key = key;
    if (["name", "split"].includes(key)) head.className = "text";
    $("classes").tHead.rows[0].append(head);
  }
}

/** The table as it is sorted and searched, whole, with full precision. */
function csv() {
  const quoted = (value) => `"${String(value).replaceAll('"', '""')}"`;
  const title = ([key, text]) =>
    ["first", "second"].includes(key) ? choiceName(picked(key)) : text.replace("\u2212", "-");
  const lines = [COLUMNS.map((column) => quoted(title(column))).join(",")];
  for (const row of sortedRows()) {
    const cells = COLUMNS.map(([key]) => row[key] ?? "");
    lines.push(cells.map((v) => (typeof v === "string" ? quoted(v) : v)).join(","));
  }
  return lines.join("\r\n") + "\r\n";
}

function download() {
  const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
  const name = `${page.data.replace(/[^\w.-]+/g, "-")}-classes.csv`;
  element("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// ---- the slider

const live = page.runs.filter((run) => run.live);

function addMarks() {
  const at = (alpha) => `calc(8px + (100% - 16px) * ${(alpha * page.perUnit) / $("alpha").max})`;
  const place = (alpha, text, name) => {
    const mark = element("span", { className: name }, text);
    mark.style.left = at(alpha);
    $("marks").append(mark);
  };
  const own = new Set(live.map((run) => run.alpha).filter((alpha) => alpha > 0));
  const clear = (alpha) => [...own].every((other) => Math.abs(other - alpha) > 0.3);
  for (const alpha of [0, 1, 2, 3].filter(clear)) place(alpha, String(alpha), "");
  for (const alpha of own) place(alpha, `\u25b2 ${alphaText(alpha)}`, "chosen");
}

function update() {
  for (const run of page.runs) {
    const hits = hitsAt(run, positionOf(run));
    run.perClass = ratios(hits);
    run.figures = splitsOf(hits);
  }
  const own = state.position === null;
  const text = own ? "of each run's own choice" : alphaAt(state.position).toFixed(2);
  $("alpha-shown").textContent = text;
  $("alpha").setAttribute("aria-valuetext", own ? `alpha: ${text}` : `alpha ${text}`);
  $("own").disabled = own;
  for (const id of ["first", "second"]) {
    choices.forEach((choice, i) => { $(id).options[i].textContent = choiceName(choice); });
  }
  const said = drawSplits();
  drawRank();
  drawExtremes();
  drawClasses();
  return said;
}

/** After a pause, so that a screen reader hears where the slider stopped and not the way. */
let pause = 0;
function announce(said) {
  clearTimeout(pause);
  pause = setTimeout(() => { $("said").textContent = said; }, 400);
}

function moveTo(position) {
  state.position = position;
  if (position !== null) $("alpha").value = position;
  announce(update());
}

/** report.html#alpha=1.25 is a link to a position of the slider. */
function fromLink() {
  const found = /^#alpha=([\d.]+)$/.exec(location.hash);
  if (!found || !live.length) return false;
  const position = Math.round(Number(found[1]) * page.perUnit);
  moveTo(Math.min(Number($("alpha").max), position || 0));
  return true;
}

function link() {
  const there = state.position === null ? "" : `#alpha=${alphaText(alphaAt(state.position))}`;
  history.replaceState(null, "", location.pathname + there);
}

function begin() {
  for (const id of ["first", "second"]) {
    $(id).append(...choices.map(({ name }) => element("option", {}, name)));
    $(id).addEventListener("change", update);
  }
  for (const run of live) run.atZero = ratios(hitsAt(run, 0));
  const best = page.runs.find((run) => run.alpha > 0) ?? page.runs.at(-1);
  const second = choices.findIndex((choice) => choice.run === best);
  const other = choices.findIndex((choice) => choice.run !== best);
  const first = other >= 0 ? other : choices.length - 1;
  [$("first").selectedIndex, $("second").selectedIndex] = [first, second];
  const chosen = best.alpha > 0 ? best.alpha : 0;
  $("alpha").value = Math.round(chosen * page.perUnit);
  document.querySelector(".slider").hidden = !live.length;
  $("alpha").addEventListener("input", () => moveTo(Number($("alpha").value)));
  $("alpha").addEventListener("change", link);
  $("own").addEventListener("click", () => { moveTo(null); link(); });
  $("search").addEventListener("input", () => { state.search = $("search").value; drawClasses(); });
  $("more").addEventListener("click", () => { state.all = !state.all; drawClasses(); });
  $("csv").addEventListener("click", download);
  window.addEventListener("hashchange", fromLink);
  let width = window.innerWidth; // a phone's address bar changes the height all the time
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; drawRank(); drawLoss(); }
  });
  if (BIN > 1) $("rank-bins").textContent = `Each point is the mean of ${BIN} classes.`;
  addMarks();
  addFollowers();
  addLegends();
  addColumns();
  if (!fromLink()) update();
  drawLoss();
}

begin();
