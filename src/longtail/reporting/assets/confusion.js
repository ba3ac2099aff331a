// ---- confusion: of the splits, which follows the slider, and of chosen classes

const MOST_CHOSEN = 6; // so that the table fits a phone
const isCoupled = (run) => run.confusions.length === run.hits.length; // not in files of format 1

function confusionAt(run, position) {
  return position === null || !run.live || !isCoupled(run) ? run.ownConfusion : run.confusions[position];
}

function fillCell(cell, percent, text = shown(percent)) {
  cell.textContent = text;
  if (percent === null) cell.removeAttribute("style");
  else cell.style.setProperty("--share", `${Math.round(percent)}%`);
}

function drawConfusions() {
  for (const table of document.querySelectorAll("table[data-group]")) {
    const g = Number(table.dataset.group);
    if (!members[g].every(isCoupled)) continue;
    const alphas = [...new Set(members[g].map(alphaOf))].join(", ");
    table.caption.textContent = `${page.groups[g].label}, ${alphas === "-" ? "no alpha" : `alpha ${alphas}`}`;
    const each = members[g].map((run) => confusionAt(run, positionOf(run)));
    [...table.tBodies[0].rows].forEach((row, i) => {
      const numbers = SPLITS.map((_, j) => each.reduce((sum, confusion) => sum + confusion[i][j], 0));
      const total = numbers.reduce((a, b) => a + b, 0);
      numbers.forEach((n, j) => fillCell(row.cells[j + 1], total ? (100 * n) / total : null));
    });
  }
}

// ---- chosen classes

const confused = page.groups.map((_, g) => g).filter((g) => page.groups[g].mistakes);
const confusedGroup = () => confused[$("confused-group").selectedIndex];
const imagesOf = (g, c) => page.seen[c] * members[g].length;
const correctOf = (g, c) => members[g].reduce((sum, run) => sum + run.ownHits[c], 0);

/** Classes of the most frequent confusions, head to tail. */
function confusedClasses(g) {
  const found = new Set();
  for (const [c, other] of page.groups[g].mistakes) {
    if (new Set([...found, c, other]).size <= MOST_CHOSEN) found.add(c).add(other);
  }
  return [...found].sort((a, b) => rankOf[a] - rankOf[b]);
}

function drawChosen() {
  const g = confusedGroup();
  const { label, mistakes, complete } = page.groups[g];
  const { chosen } = state;
  const numbers = new Map(mistakes.map(([c, other, n]) => [c * classes + other, n]));
  const between = (c, other) => (c === other ? correctOf(g, c) : numbers.get(c * classes + other) ?? 0);
  const table = $("chosen-table");
  table.caption.textContent = `${label}, columns are the rows' numbers`;
  table.tHead.rows[0].replaceChildren(element("td", {}, "true \\ predicted"),
    ...chosen.map((c, i) => element("th", { scope: "col", title: page.names[c] }, String(i + 1))),
    element("th", { scope: "col" }, "rest"));
  table.tBodies[0].replaceChildren(...chosen.map((c, i) => {
    const row = element("tr", {}, element("th", { scope: "row" }, `${i + 1} ${page.names[c]}`));
    const found = chosen.map((other) => between(c, other));
    const total = imagesOf(g, c);
    const percent = (n) => (total ? (100 * n) / total : null);
    const whole = (n) => (total ? String(Math.round(percent(n))) : "-");
    for (const n of found) fillCell(row.insertCell(), percent(n), whole(n));
    row.insertCell().textContent = whole(total - found.reduce((a, b) => a + b, 0));
    return row;
  }));
  const list = (found, at) => found.slice(0, 5).map((pair) => `${page.names[pair[at]]} (${pair[2]})`).join(", ") || "none";
  $("takers").replaceChildren(...chosen.flatMap((c) => [
    element("dt", {}, `${page.names[c]}: ${correctOf(g, c)} of ${imagesOf(g, c)} correct`),
    element("dd", {}, `taken for: ${list(mistakes.filter(([own]) => own === c), 1)}`),
    element("dd", {}, `takes images of: ${list(mistakes.filter(([, other]) => other === c), 0)}`)]));
  $("chosen-part").textContent = complete ? "" : "The rarest confusions are left out and count as the rest.";
  $("chips").replaceChildren(...chosen.map((c) => {
    const chip = element("button", { type: "button", ariaLabel: `remove ${page.names[c]}` }, `${page.names[c]} \u00d7`);
    chip.addEventListener("click", () => { state.chosen = chosen.filter((o) => o !== c); drawChosen(); });
    return chip;
  }));
}

function addChosen() {
  $("chosen-section").hidden = !confused.length;
  if (!confused.length) return;
  $("confused-group").append(...confused.map((g) => element("option", {}, page.groups[g].label)));
  $("confused-group").selectedIndex = Math.max(0, confused.findIndex((g) => members[g].some((run) => run.alpha > 0)));
  $("class-names").append(...page.names.map((value) => element("option", { value })));
  state.chosen = confusedClasses(confusedGroup());
  $("confused-group").addEventListener("change", drawChosen);
  $("add-class").addEventListener("change", () => {
    const wanted = $("add-class").value;
    const same = (text) => (name) => text(name) === text(wanted);
    const exact = page.names.findIndex(same((name) => name));
    const found = exact >= 0 ? exact : page.names.findIndex(same((name) => name.trim().toLowerCase()));
    if (found < 0) return;
    state.chosen = [...state.chosen.filter((c) => c !== found), found].slice(-MOST_CHOSEN);
    $("add-class").value = "";
    drawChosen();
  });
  drawChosen();
}
