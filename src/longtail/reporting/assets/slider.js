// ---- the slider, and the start of the page

const live = page.runs.filter((run) => run.live);

function addMarks() {
  const part = (alpha) => Math.min(1, (alpha * page.perUnit) / $("alpha").max);
  const at = (alpha) => `calc(8px + (100% - 16px) * ${part(alpha)})`;
  const place = (alpha, text, name) => {
    const mark = element("span", { className: name }, text);
    mark.style.left = at(alpha);
    $("marks").append(mark);
  };
  const own = [...new Set(live.map((run) => run.alpha).filter((alpha) => alpha > 0))].sort((a, b) => a - b);
  const clusters = []; // own alphas that are too close for a mark each share one
  for (const alpha of own) {
    if (clusters.length && alpha - clusters.at(-1).at(-1) < 0.4) clusters.at(-1).push(alpha);
    else clusters.push([alpha]);
  }
  const clear = (alpha) => own.every((other) => Math.abs(other - alpha) > 0.4);
  for (const alpha of [0, 1, 2, 3].filter(clear)) place(alpha, String(alpha), "");
  for (const alphas of clusters) place(mean(alphas), `\u25b2 ${alphas.map(alphaText).join(", ")}`, "chosen");
}

function update() {
  for (const run of page.runs) {
    const hits = hitsAt(run, positionOf(run));
    run.perClass = ratios(hits);
    run.figures = splitsOf(hits);
  }
  const own = state.position === null;
  const text = own ? "chosen by each run" : alphaAt(state.position).toFixed(2);
  $("alpha-shown").textContent = text;
  $("alpha").setAttribute("aria-valuetext", own ? `alpha: ${text}` : `alpha ${text}`);
  $("own").disabled = own;
  const summary = drawSplits();
  drawRank();
  if (live.length) drawPath();
  drawExtremes();
  drawClasses();
  drawConfusions();
  return summary;
}

let timer = 0;

/** Waits until the slider rests, so that a screen reader reads only its last position. */
function announce(summary) {
  clearTimeout(timer);
  timer = setTimeout(() => { $("announcement").textContent = summary; }, 400);
}

function moveTo(position) {
  state.position = position;
  if (position !== null) $("alpha").value = position;
  announce(update());
}

/** Follows a link to a slider position, as in report.html#alpha=1.25; false without one. */
function followLink() {
  const found = /^#alpha=(\d+(?:\.\d*)?)$/.exec(location.hash);
  if (!found || !live.length) return false;
  const position = Math.round(Number(found[1]) * page.perUnit);
  moveTo(Math.min(Number($("alpha").max), position));
  return true;
}

function writeLink() {
  const hash = state.position === null ? "" : `#alpha=${alphaText(alphaAt(state.position))}`;
  history.replaceState(null, "", location.pathname + hash);
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
  document.querySelector(".slider").hidden = $("alpha-section").hidden = !live.length;
  $("alpha").addEventListener("input", () => moveTo(Number($("alpha").value)));
  $("alpha").addEventListener("change", writeLink);
  $("own").addEventListener("click", () => { moveTo(null); writeLink(); });
  $("search").addEventListener("input", () => { state.search = $("search").value; drawClasses(); });
  $("more").addEventListener("click", () => { state.all = !state.all; drawClasses(); });
  $("csv").addEventListener("click", download);
  window.addEventListener("hashchange", followLink);
  window.addEventListener("resize", () => {
    const before = width;
    measureWidth();
    if (width === before) return; // scrolling on a phone changes only the height
    drawRank();
    if (live.length) drawPath();
    drawLoss();
  });
  measureWidth();
  if (live.length) measurePaths();
  if (BIN > 1) $("rank-bins").textContent = `Each point is the mean of ${BIN} classes.`;
  addMarks();
  addFollowers();
  addLegends();
  addMeasures();
  addSorting();
  addChosen();
  if (!followLink()) update();
  drawLoss();
}

begin();
