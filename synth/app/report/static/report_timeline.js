// The timeline: a row is a link (or a band of links), a rank, or a threadblock; time goes to the right.
const AXIS = 26;
let plan = null; // the current rows

function planRows() {
  const box = $("timeline-box"), width = Math.max(320, box.clientWidth - 2), rows = rowsOf();
  const g = $("timeline").getContext("2d");
  setFont(g, 12);
  const widest = rows.names.reduce((most, name) => Math.max(most, g.measureText(name).width), 0);
  const left = Math.min(Math.max(54, widest + 22), Math.max(90, width * 0.25));
  return { ...rows, width, left, height: AXIS + rows.names.length * rows.each + 4 };
}

function rowsOf() {
  if (state.view === "ranks") return rankRows();
  if (state.view === "blocks") {
    const b = view.blocks;
    const names = b.rank.map((rank, i) => `${rank} · tb ${b.tb[i]}`), count = names.length;
    return { names, each: count <= 40 ? 20 : 14 };
  }
  const count = view.rows.names.length;
  if (view.heat) return { names: view.rows.names, each: Math.max(2, Math.min(14, Math.floor(1000 / count))) };
  const names = view.ofRow.map((row, i) => (row.length && view.fold ? `${ends(row[0]).map(name).join("→")} ×${view.rows.copies}` : view.rows.names[i]));
  return { names, each: count <= 12 ? 30 : count <= 64 ? 20 : 14 };
}

// Join ranks that do the same at all times into one row.
function rankRows() {
  const kinds = new Map();
  for (let rank = 0; rank < view.network.n; rank++) {
    const key = `${view.out.row[rank]} ${view.in.row[rank]} ${view.got ? view.got.row[rank] : 0}`;
    if (!kinds.has(key)) kinds.set(key, []);
    kinds.get(key).push(rank);
  }
  const groups = [...kinds.values()], net = view.network;
  const names = groups.map((g) => (g.length === net.n && net.n > 1 ? `all ${net.n} ranks` : g.length > 3 ? `rank ${net.names[g[0]]} + ${g.length - 1}` : `rank ${g.map((r) => net.names[r]).join(", ")}`));
  const count = names.length;
  return { names, groups, each: count <= 16 ? 34 : count <= 64 ? 22 : count <= 256 ? 12 : Math.max(2, Math.floor(2400 / count)) };
}

const xOf = (time) => plan.left + (time - plan.from) / (plan.to - plan.from) * (plan.width - plan.left - 10);
const timeAt = (x) => plan.from + (x - plan.left) / (plan.width - plan.left - 10) * (plan.to - plan.from);
const yOf = (row) => AXIS + row * plan.each;

function drawTimeline() {
  if (!view.network) return;
  plan = plan || planRows();
  const span = view.span / state.zoom;
  plan.from = Math.max(0, Math.min(view.span - span, state.time - span / 2));
  plan.to = plan.from + span;
  const g = canvasOf("timeline", plan.width, plan.height);
  g.save();
  g.beginPath();
  g.rect(plan.left, 0, plan.width - plan.left, plan.height);
  g.clip();
  drawAxis(g);
  if (state.view === "ranks") drawRanks(g);
  else if (state.view === "blocks") drawBlocks(g);
  else if (view.heat) drawHeat(g);
  else drawBars(g);
  g.restore();
  drawNames(g);
  movePlayhead();
}

function drawAxis(g) {
  const span = plan.to - plan.from, raw = span / Math.max(2, Math.floor((plan.width - plan.left) / 110));
  const power = 10 ** Math.floor(Math.log10(raw)), step = Math.max([1, 2, 5, 10].find((m) => m * power >= raw) * power, view.unit === "steps" ? 1 : 0);
  const soft = css("--soft"), line = css("--line");
  for (let t = Math.ceil(plan.from / step) * step; t <= plan.to * (1 + 1e-9); t += step) {
    const x = xOf(t);
    fillBox(g, line, x, AXIS - 6, 1, plan.height);
    g.fillStyle = soft;
    const words = view.unit === "steps" ? String(Math.round(t)) : formatTime(t), half = g.measureText(words).width / 2 + 3;
    g.fillText(words, Math.min(Math.max(x, plan.left + half), plan.width - half), 10);
  }
}

function drawNames(g) {
  const skip = Math.max(1, Math.ceil(12 / plan.each));
  fillBox(g, css("--card"), 0, 0, plan.left, plan.height);
  g.textAlign = "right";
  g.fillStyle = css("--soft");
  plan.names.forEach((name, row) => {
    if (row % skip === 0) g.fillText(name, plan.left - 8, yOf(row) + Math.max(plan.each, 6) / 2, plan.left - 12);
  });
}

function drawBars(g) {
  const lit = state.send >= 0 ? new Set([state.send, ...ancestors(state.send)]) : null;
  const after = lit ? new Set(descendants(state.send)) : null;
  const tail = css("--soft"), pad = plan.each > 16 ? 3 : 1.5;
  for (const [row, sends] of view.ofRow.entries()) {
    const y = yOf(row) + pad, height = plan.each - 2 * pad;
    for (const send of sends) {
      const x = xOf(view.sends.start[send]), end = xOf(view.sends.end[send]), come = xOf(arrival(view, send));
      if (come < plan.left || x > plan.width) continue;
      g.globalAlpha = !lit || lit.has(send) ? 1 : after.has(send) ? 0.55 : 0.13;
      if (come - end > 1) {
        fillBox(g, tail, end, y + height / 2 - 0.75, come - end, 1.5);
        fillBox(g, tail, come - 1, y + height / 2 - 3, 1, 6);
      }
      fillBox(g, hopColour(send), x, y, Math.max(1, end - x - (end - x > 3 ? 0.7 : 0)), height);
      if (send === state.send) {
        setPen(g, css("--ink"), 2);
        g.strokeRect(x, y, Math.max(2, end - x), height);
      }
    }
  }
  g.globalAlpha = 1;
}

// Call a function for every visible piece of time.
function eachBin(bins, draw) {
  const width = view.span / bins;
  for (let bin = 0; bin < bins; bin++) {
    const x = xOf(bin * width), end = xOf((bin + 1) * width);
    if (end >= plan.left && x <= plan.width) draw(bin, x, end - x);
  }
}

function drawHeat(g) {
  const table = view.heat, seam = plan.each > 5 ? 0.6 : 0;
  for (let row = 0; row < plan.names.length; row++) {
    eachBin(table.bins, (bin, x, width) => fillBox(g, ramp("load", table.at(row, bin)), x, yOf(row), width + 0.5, plan.each - seam));
  }
  if (state.send >= 0) {
    setPen(g, css("--c2"), 2);
    for (const send of [...ancestors(state.send), state.send]) {
      const x = xOf(view.sends.start[send]);
      g.strokeRect(x, yOf(rowOf(view, send)) - 1, Math.max(4, xOf(view.sends.end[send]) - x), Math.max(4, plan.each + 1));
    }
  }
}

// Draw the rate that a rank sends up from the middle of its row, and the rate that it receives down.
function drawRanks(g) {
  const up = css("--c0"), down = css("--c1"), line = css("--line");
  plan.groups.forEach((group, row) => {
    const middle = yOf(row) + plan.each / 2, most = plan.each / 2 - (plan.each > 10 ? 1.5 : 0.5);
    fillBox(g, line, plan.left, middle - 0.5, plan.width, 1);
    eachBin(view.out.bins, (bin, x, width) => {
      const out = view.out.at(group[0], bin) * most, into = view.in.at(group[0], bin) * most;
      fillBox(g, up, x, middle - out, width + 0.4, out);
      fillBox(g, down, x, middle, width + 0.4, into);
    });
  });
}

const opColour = (op) => css(["--c0", "--c1", "--c4", "--c2", "--c4", "--c3", "--c3", "--c3", "--soft"][op]);
function drawBlocks(g) {
  const ops = view.blocks.ops, colours = ops.map((_, op) => opColour(op)), card = css("--card");
  for (const [block, , tick, op] of view.blocks.listed) {
    const x = xOf(tick), end = xOf(tick + 1), y = yOf(block) + 1.5;
    if (end < plan.left || x > plan.width) continue;
    fillBox(g, colours[op], x + 0.5, y, Math.max(1, end - x - 1), plan.each - 3);
    if (end - x > 9 * ops[op].length + 4 && plan.each >= 14) {
      g.fillStyle = card;
      g.fillText(ops[op], (x + end) / 2, y + (plan.each - 3) / 2);
    }
  }
}

function movePlayhead() {
  if (!plan) return;
  const head = $("playhead"), x = xOf(state.time);
  head.style.transform = `translateX(${x}px)`;
  head.style.height = `${plan.height}px`;
  head.hidden = x < plan.left - 1 || x > plan.width;
}

function placeIn(event) {
  const box = $("timeline").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const row = Math.floor((y - AXIS) / plan.each);
  return { x, row: row >= 0 && row < plan.names.length ? row : -1, time: timeAt(x) };
}

// Return the send under the pointer: the send on the link at that time, else the last send still under way, or the
// nearest within a few pixels.
function sendAt({ x, row, time }) {
  if (row < 0 || x < plan.left || state.view !== "links") return -1;
  const slack = view.heat ? view.span / view.heat.bins : 4 * (plan.to - plan.from) / (plan.width - plan.left);
  let best = -1, least = Infinity;
  for (const send of view.ofRow[row]) {
    const away = Math.max(view.sends.start[send] - time, time - view.sends.end[send], 0);
    const near = away < slack || (time >= view.sends.start[send] && time <= arrival(view, send));
    if (near && away < least) { least = away; best = send; }
    if (least === 0) break;
  }
  return best;
}

function overTimeline(event) {
  if (!plan || !view.network) return;
  const at = placeIn(event);
  if (event.buttons & 1 && at.x >= plan.left) { // a drag moves through time
    if (state.mode !== "now") setMode("now");
    setTime(at.time);
  }
  if (at.row < 0 || at.x < plan.left) { showTip("", event); return; }
  if (state.view === "ranks") {
    const rank = plan.groups[at.row][0], got = view.got ? `\nhas ${formatPercent(gotAt(rank, at.time))} of what it lacks` : "";
    showTip(`${plan.names[at.row]} at ${formatTime(at.time)}\n${describeRates(rank, binAt(view.out, at.time))}${got}`, event);
    return;
  }
  if (state.view === "blocks") {
    const found = view.blocks.listed.find(([block, , tick]) => block === at.row && tick === Math.floor(at.time));
    showTip(found ? `${plan.names[at.row]}, step ${found[1]}: ${view.blocks.ops[found[3]]} ${found[4]}` : describeBlock(at.row), event);
    return;
  }
  const send = state.under = sendAt(at);
  if (!state.pinned && send !== state.send) chooseSend(send);
  const share = view.heat ? `\n${formatPercent(view.heat.at(at.row, binAt(view.heat, at.time)))} in use at ${formatTime(at.time)}` : "";
  showTip(send >= 0 ? `${hopName(send)}\n${describeChunk(send)}${share}` : `${plan.names[at.row]}: ${formatPercent(view.rows.load[at.row])} of the time in use${share}`, event);
}

function describeBlock(row) {
  const b = view.blocks, peers = [b.send[row] >= 0 ? `sends to ${b.send[row]}` : "", b.recv[row] >= 0 ? `receives from ${b.recv[row]}` : ""].filter(Boolean);
  return `rank ${b.rank[row]}, threadblock ${b.tb[row]}: channel ${b.channel[row]}${peers.length ? `, ${peers.join(", ")}` : ""}, ${b.steps[row]} instructions`;
}

function keyOnTimeline(event) {
  if (state.view !== "links" || !view.network) return;
  const row = state.send >= 0 ? rowOf(view, state.send) : view.ofRow.findIndex((r) => r.length);
  if (row < 0) return;
  const sends = view.ofRow[row], place = sends.indexOf(state.send);
  const next = { ArrowRight: () => sends[Math.min(sends.length - 1, place + 1)], ArrowLeft: () => sends[Math.max(0, place - 1)], ArrowDown: () => nearest(row, 1), ArrowUp: () => nearest(row, -1) }[event.key];
  if (event.key === "Enter" && state.send >= 0) setTime(view.sends.start[state.send]);
  else if (event.key === "Escape") { state.pinned = false; chooseSend(-1); }
  else if (next) {
    const send = next();
    if (send !== undefined) { state.pinned = true; chooseSend(send); keepVisible(send); }
  } else return;
  event.preventDefault();
}

function nearest(row, step) {
  const time = state.send >= 0 ? view.sends.start[state.send] : state.time;
  for (let next = row + step; next >= 0 && next < view.ofRow.length; next += step) {
    const sends = view.ofRow[next];
    if (sends.length) return sends.reduce((best, send) => (Math.abs(view.sends.start[send] - time) < Math.abs(view.sends.start[best] - time) ? send : best));
  }
  return undefined;
}

function keepVisible(send) {
  const box = $("timeline-box"), y = yOf(rowOf(view, send));
  if (y < box.scrollTop + AXIS) box.scrollTop = y - AXIS;
  else if (y + plan.each > box.scrollTop + box.clientHeight) box.scrollTop = y + plan.each - box.clientHeight;
  if (view.sends.start[send] < plan.from || view.sends.start[send] > plan.to) setTime(view.sends.start[send]);
}
