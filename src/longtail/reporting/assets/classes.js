// ---- two runs, class by class

/** Whether a run on the page already stays at alpha 0 with this run's weights. */
const isShownAtZero = (run) => page.runs.some((other) =>
  other.training === run.training && other.alpha === 0 && !other.follows);

/** Choices to compare: every run, and again at alpha 0 if it has an alpha. */
const choices = page.runs.flatMap((run) => [
  { run, fixed: null, name: run.name },
  ...(run.live && !isShownAtZero(run) ? [{ run, fixed: 0, name: `${run.name}, at alpha 0` }] : []),
]);

const choiceName = ({ run, fixed, name }) =>
  fixed === null && run.live ? `${name}, at alpha ${alphaOf(run)}` : name;
const picked = (id) => choices[$(id).selectedIndex];
const perClassOf = ({ run, fixed }) => (fixed === null ? run.perClass : run.atZero);

const HEADS = [...$("classes").tHead.rows[0].cells];
const COLUMNS = HEADS.map((head) => [head.dataset.key, head.textContent]);
const PAIR = COLUMNS.length > 6; // the page compares two runs

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
  const key = state.sort === "split" ? "rank" : state.sort; // ranks order the splits too
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
    const better = (one, other) => ({ className: PAIR && one > other ? "best" : "" });
    body.append(element("tr", {},
      element("td", {}, String(row.rank)),
      element("th", { scope: "row" }, row.name),
      element("td", { className: "text" }, row.split),
      element("td", {}, String(row.train)),
      element("td", {}, String(row.test)),
      ...(PAIR ? [element("td", better(row.first, row.second), shown(row.first))] : []),
      element("td", better(row.second, row.first), shown(row.second)),
      ...(PAIR ? [element("td", {}, shown(row.change))] : [])));
  }
  $("classes").tBodies[0].replaceChildren(body);
  const [first, second] = [choiceName(picked("first")), choiceName(picked("second"))];
  const part = visible.length < rows.length ? `, the first ${visible.length} of ${rows.length}` : "";
  const compared = PAIR ? `First: ${first}. Second: ${second}` : second;
  $("classes-caption").textContent = `${compared}. ${rows.length} classes${part}.`;
  $("more").hidden = rows.length <= SHOWN;
  $("more").textContent = state.all ? `Show the first ${SHOWN}` : `Show all ${rows.length}`;
  for (const head of HEADS) {
    const sorted = head.dataset.key === state.sort;
    head.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
  }
}

function drawExtremes() {
  const rows = classRows().filter((row) => row.second !== null);
  const changed = rows.filter((row) => row.change !== 0).sort((a, b) => b.change - a.change);
  const up = (row) => `${row.name} (${row.split}): ${shown(row.first)} \u2192 ${shown(row.second)}`;
  const lists = [
    [PAIR ? "Worst classes of the second" : "Worst classes", [...rows].sort((a, b) => a.second - b.second || b.rank - a.rank),
      (row) => `${row.name} (${row.split}): ${shown(row.second)}`],
    ...(PAIR ? [
      ["Most improved", changed.filter((row) => row.change > 0), up],
      ["Most lost", changed.filter((row) => row.change < 0).reverse(), up],
    ] : []),
  ];
  $("extremes").replaceChildren(...lists.map(([title, found, text]) =>
    element("div", {}, element("h3", {}, title), found.length
      ? element("ol", {}, ...found.slice(0, 5).map((row) => element("li", {}, text(row))))
      : element("p", { className: "note" }, "none"))));
}

function addSorting() {
  for (const head of HEADS) {
    const { key } = head.dataset;
    const button = element("button", { type: "button" }, ...head.childNodes);
    button.addEventListener("click", () => {
      state.down = state.sort === key ? !state.down : ["change", "train", "test"].includes(key);
      state.sort = key;
      drawClasses();
    });
    head.replaceChildren(button);
  }
}

/** All rows of the table, in its order and under its search, with full precision. */
function csv() {
  const plain = (text) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text); // or a spreadsheet would compute it
  const quoted = (text) => `"${plain(text).replaceAll('"', '""')}"`;
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
