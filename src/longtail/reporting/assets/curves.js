// ---- curves: accuracy by rank, accuracy against alpha, and the training loss

const BIN = Math.ceil(classes / 60); // classes per point, so that 1,000 classes stay readable
const BINS = Math.ceil(classes / BIN);
const classesOf = (bin) => order.slice(bin * BIN, (bin + 1) * BIN);

function binned(perClass) {
  return Array.from({ length: BINS }, (_, bin) =>
    mean(classesOf(bin).map((c) => perClass[c]).filter((v) => v !== null)));
}

const behind = binned(page.counts);
const middleOf = (bin) => (bin + 0.5) / BINS;
const PERCENT = [0, 20, 40, 60, 80, 100];

/** Names of the classes as far as they fit, straight or slanted; round ranks for binned classes. */
function rankTicks() {
  const each = (width - 108) / BINS; // pixels of a class
  if (BIN > 1) {
    const ticks = countTicks(classes, Math.max(3, Math.floor(width / 90)));
    return { xTicks: ticks.map((rank) => [(rank - 0.5) / classes, rank]), slanted: false };
  }
  const names = order.map((c) => cut(page.names[c], width < 600 ? 16 : 26));
  const slanted = Math.max(...names.map((name) => name.length)) * 7 > Math.max(each, 11);
  const least = slanted ? (width < 600 ? 26 : 15) : 11; // pixels between names
  const every = Math.ceil(least / each);
  const xTicks = names.map((name, bin) => [middleOf(bin), name]).filter((_, bin) => bin % every === 0);
  return { xTicks, slanted };
}

/** Where the splits begin, as parts of the axis. */
function splitBounds() {
  const found = [];
  let begin = 0;
  SPLITS.forEach((name, number) => {
    const room = page.splits.filter((split) => split === number).length / classes;
    if (room) found.push({ at: begin, name, middle: begin + room / 2, room });
    begin += room;
  });
  return found;
}

function describeBin(bin, lines) {
  const inside = classesOf(bin);
  const [first, last] = [inside[0], inside.at(-1)];
  const number = (kind) => inside.reduce((sum, c) => sum + page[kind][c], 0);
  const names = inside.slice(0, 3).map((c) => cut(page.names[c], 24)).join(", ");
  const title = inside.length > 1
    ? `${rankOf[first]}\u2013${rankOf[last]}: ${names}${inside.length > 3 ? ", \u2026" : ""}` : page.names[first];
  return [
    [title], [`${SPLITS[page.splits[first]]}: ${number("counts")} training, ${number("seen")} evaluated images`],
    ...lines.map(({ label, colour, points }) => [`${label}: ${shown(points[bin][1])}`, colour]),
  ];
}

function drawRank() {
  const lines = page.groups.map((group, g) => {
    const each = members[g].map((run) => binned(run.perClass));
    const values = each[0].map((v, bin) => (v === null ? null : mean(each.map((one) => one[bin]))));
    return { ...group, points: values.map((v, bin) => [middleOf(bin), v]) };
  });
  chart($("rank"), {
    ...rankTicks(), lines, behind, yTicks: PERCENT, behindName: "training images", bounds: splitBounds(),
    xName: "class, most to fewest training images", yName: "accuracy (%)",
    hover: { parts: [...behind.keys()].map(middleOf), text: (bin) => describeBin(bin, lines) },
  });
}

// ---- accuracy against alpha

const LAST = Math.max(...page.runs.map((run) => run.hits.length)) - 1;
const partOf = (alpha) => (alpha * page.perUnit) / LAST;

/** Mean and 95 % interval over a group's seeds of the chosen figure; null without test images. */
function figureWithInterval(runs, position) {
  const intervals = runs.map((run) =>
    (position === null || !run.live ? run.ownIntervals : run.intervals[position])[state.measure]);
  if (intervals.includes(null)) return null;
  const middle = mean(runs.map((run) => splitsOf(hitsAt(run, position))[state.measure]));
  return [middle, mean(intervals.map(([low]) => low)), mean(intervals.map(([, high]) => high))];
}

let paths = []; // of the groups, by `state.measure`

function measurePaths() {
  const drawn = new Set();
  const hasAlpha = (g) => members[g].some((run) => run.alpha > 0);
  const withAlphaFirst = [...page.groups.keys()].sort((a, b) => hasAlpha(b) - hasAlpha(a) || a - b);
  paths = withAlphaFirst.flatMap((g) => {
    const [group, runs] = [page.groups[g], members[g]];
    const live = runs.some((run) => run.live); // seeds of auto may ship different rules
    const training = JSON.stringify(runs.map((run) => run.training));
    if (runs.every((run) => run.live)) {
      if (drawn.has(training)) return [];
      drawn.add(training);
    }
    const positions = live ? Array.from({ length: LAST + 1 }, (_, p) => p) : [0, LAST];
    const figures = positions.map((p) => figureWithInterval(runs, p));
    if (figures.includes(null)) return [];
    return [{
      ...group, positions, figures, live,
      points: positions.map((p, i) => [p / LAST, figures[i][0]]), band: figures.map(([, ...band]) => band),
    }];
  });
}

function drawPath() {
  const values = paths.flatMap(({ band }) => band.flat());
  const yTicks = roundTicks(Math.min(...values), Math.max(...values), 5);
  const dots = page.groups.flatMap((group, g) => {
    const own = members[g].filter((run) => run.live).map((run) => run.alpha);
    const figure = own.length ? figureWithInterval(members[g], null) : null;
    const alpha = Math.min(mean(own), alphaAt(LAST));
    return figure ? [[partOf(alpha), figure[0], group.colour]] : [];
  });
  const text = (position) => [
    [`alpha ${alphaText(alphaAt(position))}`],
    ...paths.map(({ label, colour, figures, live }) => {
      const [middle, low, high] = figures[live ? position : 0];
      return [`${label}: ${shown(middle)} (${shown(low)} to ${shown(high)})`, colour];
    }),
  ];
  chart($("path"), {
    lines: paths, yTicks: values.length ? yTicks : PERCENT, dots,
    xTicks: roundTicks(0, alphaAt(LAST), width < 500 ? 3 : 6).map((alpha) => [partOf(alpha), String(alpha)]),
    xName: "alpha", yName: `${state.measure === "overall" ? "overall accuracy" : state.measure} (%)`,
    mark: state.position === null ? null : state.position / LAST,
    hover: { parts: Array.from({ length: LAST + 1 }, (_, p) => p / LAST), text },
  });
}

function addMeasures() {
  $("measure").append(...FIGURES.map((name) => element("option", { selected: name === state.measure }, name)));
  $("measure").addEventListener("change", () => {
    state.measure = $("measure").value;
    measurePaths();
    drawPath();
  });
}

// ---- the training loss

function drawLoss() {
  const trainings = new Map(page.runs.map((run) => [JSON.stringify(run.loss), run]));
  const drawn = [...trainings.values()].filter((run) => run.loss.length);
  const last = Math.max(1, ...drawn.map((run) => run.loss.at(-1)[0]));
  const top = Math.max(1e-9, ...drawn.flatMap((run) => run.loss.map(([, loss]) => loss)));
  const part = (epoch) => (last > 1 ? (epoch - 1) / (last - 1) : 0.5);
  const ticks = countTicks(last, width < 500 ? 4 : 8);
  const text = (i) => [[`epoch ${i + 1}`], ...drawn.flatMap((run) => {
    const found = run.loss.find(([epoch]) => epoch === i + 1);
    return found ? [[`${run.name}: ${found[1].toPrecision(3)}`, page.groups[run.group].colour]] : [];
  })];
  chart($("loss"), {
    lines: drawn.map((run) => ({
      ...page.groups[run.group], points: run.loss.map(([epoch, loss]) => [part(epoch), loss]),
    })),
    yTicks: roundTicks(0, top, 5), xTicks: ticks.map((epoch) => [part(epoch), String(epoch)]),
    xName: "epoch", yName: "loss",
    hover: { parts: Array.from({ length: last }, (_, i) => part(i + 1)), text },
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
