"use strict";
// The live part of a report. For each run the page holds the correct test images of each class at
// every slider position, the same counts as `longtail eval --alpha` (see evaluation/slider.py).

const page = JSON.parse(document.getElementById("content").textContent);
const SPLITS = ["many", "medium", "few"];
const classes = page.names.length;
const order = [...page.counts.keys()].sort((a, b) => page.counts[b] - page.counts[a] || a - b);
const rankOf = [];
order.forEach((c, rank) => { rankOf[c] = rank + 1; });
const $ = (id) => document.getElementById(id);
const state = {
  position: null, sort: "rank", down: false, search: "", all: false, measure: page.measure, chosen: [],
};
const SHOWN = 50; // rows of the class table until the button shows all

for (const run of page.runs) run.live = run.hits.length > 1; // its head has an alpha

// ---- counting

/** Correct test images of each class at a slider position, or at the run's own alpha for null. */
const hitsAt = (run, position) =>
  (position === null || !run.live ? run.ownHits : run.hits[position]);

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);
const ratios = (hits) => hits.map((n, c) => (page.seen[c] ? (100 * n) / page.seen[c] : null));

/** Overall is the mean over images; splits and the class mean are means over classes. */
function splitsOf(hits) {
  const total = page.seen.reduce((a, b) => a + b, 0);
  const perClass = ratios(hits);
  const figures = {
    overall: total ? (100 * hits.reduce((a, b) => a + b, 0)) / total : null,
    "class mean": mean(perClass.filter((v) => v !== null)),
  };
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

/** One decimal, rounded as Python does: ties, only x.25 and x.75, go to the even digit. */
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

const FIGURES = [...$("splits").tHead.rows[0].cells].slice(3, -1).map((cell) => cell.textContent);
const members = page.groups.map((_, g) => page.runs.filter((run) => run.group === g));

/** Marks the cells with the highest value of their column, as shown; of one row none is best. */
function markBest(rows, column) {
  const values = rows.map((row) => row.cells[column].dataset.value);
  const tenths = values.map((value) => (value === "" ? -1 : Number(shown(Number(value)))));
  const best = Math.max(...tenths);
  rows.forEach((row, g) => {
    row.cells[column].classList.toggle("best", rows.length > 1 && best >= 0 && tenths[g] === best);
  });
}

function drawSplits() {
  const summary = [];
  [...$("splits").tBodies[0].rows].forEach((row, g) => {
    const runs = members[g];
    const alphas = [...new Set(runs.map(alphaOf))].join(", ");
    row.cells[1].textContent = alphas;
    FIGURES.forEach((name, i) => {
      const values = runs.map((run) => run.figures[name]).filter((value) => value !== null);
      const spread = deviation(values);
      const cell = row.cells[3 + i];
      cell.textContent = shown(mean(values)) + (spread === null ? "" : ` ± ${shown(spread)}`);
      cell.dataset.value = mean(values) ?? "";
    });
    const [overall, , , few] = [3, 4, 5, 6].map((i) => row.cells[i].textContent);
    summary.push(`${page.groups[g].label}, alpha ${alphas}: overall ${overall}, few ${few}`);
  });
  FIGURES.forEach((_, i) => markBest([...$("splits").tBodies[0].rows], 3 + i));
  return summary.join(". ");
}

function addFollowers() {
  [...$("splits").tBodies[0].rows].forEach((row, g) => {
    const runs = members[g];
    if (!runs.some((run) => run.live)) return row.lastElementChild.append("no alpha");
    const box = element("input", { type: "checkbox", checked: runs.every((run) => run.follows) });
    box.setAttribute("aria-label", `${page.groups[g].label} follows the slider`);
    box.addEventListener("change", () => {
      for (const run of runs) run.follows = box.checked;
      update();
    });
    row.lastElementChild.append(box);
  });
}
