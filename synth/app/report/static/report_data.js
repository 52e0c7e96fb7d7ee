"use strict";
// The data of the page, and its texts. Everything that is drawn comes from here.
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const state = { index: 0, time: 0, mode: "total", view: "links", zoom: 1, magnified: 1, send: -1, under: -1, pinned: false, seen: 0, playing: false };
let view = null; // the algorithm that is shown

// Decode a table from base 64: each distinct row once, and the index of every row in them.
function unpackTable(table) {
  if (!table) return null;
  const bytes = Uint8Array.from(atob(table.data), (letter) => letter.charCodeAt(0));
  return { bins: table.bins, row: table.row, at: (row, bin) => bytes[table.row[row] * table.bins + bin] / 255 };
}

function prepareView(raw) {
  const v = { ...raw, now: null, heat: null, out: null, in: null, got: null, children: [], ofRow: [] };
  if (!raw.network || !(raw.span > 0)) return { ...v, network: null }; // nothing happens
  v.now = unpackTable(raw.network.now);
  v.heat = unpackTable(raw.rows.heat);
  for (const key of ["out", "in", "got"]) v[key] = unpackTable(raw.ranks[key]);
  const sends = raw.sends;
  v.children = Array.from({ length: sends.shown }, () => []);
  for (let i = 0; i < sends.shown; i++) for (const p of parents(raw, i)) v.children[p].push(i);
  v.ofRow = Array.from({ length: raw.rows.names.length }, () => []);
  v.byStart = Array.from({ length: sends.shown }, (_, i) => i).sort(inTime(sends));
  for (const send of v.byStart) v.ofRow[rowOf(raw, send)].push(send);
  v.longest = v.byStart.reduce((most, send) => Math.max(most, arrival(raw, send) - sends.start[send]), 0);
  v.hops = raw.sends.hop.reduce((a, b) => Math.max(a, b), 1);
  return v;
}

const parents = (v, send) => v.sends.from.slice(v.sends.from_ptr[send], v.sends.from_ptr[send + 1]);
const rowOf = (v, send) => v.sends.links.row[v.sends.link[send]];
function arrival(v, send) {
  if (v.sends.arrives) return v.sends.arrives[send];
  const alpha = v.sends.links.alpha;
  return v.sends.end[send] + (alpha ? alpha[v.sends.link[send]] : 0);
}

// Return the first `most` sends that are under way at a time.
function sendsUnderWay(time, most) {
  const found = [], order = view.byStart, start = view.sends.start;
  let low = 0, high = order.length;
  while (low < high) { const mid = (low + high) >> 1; if (start[order[mid]] <= time) low = mid + 1; else high = mid; }
  for (let i = low - 1; i >= 0 && start[order[i]] >= time - view.longest && found.length < most; i--) {
    if (arrival(view, order[i]) > time) found.push(order[i]);
  }
  return found;
}

// Return the share that a rank has received at a time of what it lacks at the start.
const gotAt = (rank, time) => (time >= view.span ? 1 : time <= 0 ? 0 : view.got.at(rank, binAt(view.got, time)));
const binAt = (table, time) => Math.max(0, Math.min(table.bins - 1, Math.floor(time / view.span * table.bins * (1 + 1e-12))));

// A quotient schedule holds one of many translated copies; `seen` is the rank from which the page shows it.
function translate(rank) {
  if (!view.fold || rank >= view.network.n) return rank;
  for (const [stride, extent] of view.fold) {
    const digit = Math.floor(rank / stride) % extent, by = Math.floor(state.seen / stride) % extent;
    rank += ((digit + by) % extent - digit) * stride;
  }
  return rank;
}

const name = (vertex) => view.network.names[translate(vertex)] ?? String(translate(vertex));
const ends = (send) => {
  const links = view.sends.links, link = view.sends.link[send];
  return [links.src[link], links.dst[link]];
};
const hopName = (send) => ends(send).map(name).join(" → ");

function formatTime(value) {
  if (view.unit === "steps") return `place ${Math.floor(value)}`;
  const unit = view.span >= 1e6 ? [1e6, "s"] : view.span >= 1e3 ? [1e3, "ms"] : [1, "µs"];
  const digits = Math.max(0, 3 - Math.floor(Math.log10(Math.max(view.span / unit[0], 1e-9))));
  return `${(value / unit[0]).toFixed(Math.min(6, digits))} ${unit[1]}`;
}
const formatPercent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 2 : 1)} %`;
const formatNumber = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, " ");

function formatRanks(list, more) {
  if (list === null) return "all ranks";
  const words = list.map((r) => name(r)).join(", ") + (more ? ` and ${more} more` : "");
  return `rank${list.length + more === 1 ? "" : "s"} ${words}`;
}

function describeChunk(send) {
  if (!view.chunks) return view.sends.words[view.sends.what[send]];
  const c = view.chunks, i = view.sends.chunk[send];
  const from = formatRanks(c.from[i], c.from_more[i]), to = formatRanks(c.to[i], c.to_more[i]);
  const what = c.sum[i] ? `sum of ${from}, for ${to}` : `from ${from} to ${to}`;
  return view.fold && state.seen ? what : `chunk ${c.id[i]}: ${what}`;
}

function describeRates(rank, bin) {
  const { top, top_gbs: gbs } = view.ranks;
  const rate = (share) => (gbs === undefined ? `${(share * top).toFixed(1)} connections` : `${(share * gbs).toFixed(1)} GB/s`);
  return `sends ${rate(view.out.at(rank, bin))}, gets ${rate(view.in.at(rank, bin))}`;
}

// Return all sends that brought what this send carries, by time; a sum has many.
const ancestors = (send) => follow(send, (one) => parents(view, one));
const descendants = (send) => follow(send, (one) => view.children[one]);
function follow(send, next) {
  const seen = new Set(), stack = [send];
  while (stack.length) for (const p of next(stack.pop())) if (!seen.has(p)) { seen.add(p); stack.push(p); }
  return [...seen].sort(inTime(view.sends));
}
const inTime = (sends) => (a, b) => sends.start[a] - sends.start[b] || a - b;

// Colours of the scheme (light or dark) that the reader has chosen.
const dark = matchMedia("(prefers-color-scheme: dark)");
const RAMPS = {
  load: { light: ["#dde5ee", "#a5c9f2", "#4a8fe6", "#1f52c4", "#3a1a8c"], dark: ["#283242", "#1f4f8a", "#2f86d6", "#5cc8f2", "#eafcff"] },
  copy: { light: ["#1b4fc4", "#0c86a6", "#0f9d6e", "#8aa213", "#c9a400"], dark: ["#6c9bff", "#3fc3e0", "#45d695", "#b6d94c", "#ffe066"] },
  sum: { light: ["#7d1d3f", "#b83227", "#d9631e", "#e89b2d"], dark: ["#ff7eb0", "#ff8a70", "#ffab5c", "#ffd37a"] },
};
const cache = new Map();
function ramp(kind, part) {
  const stops = RAMPS[kind][dark.matches ? "dark" : "light"];
  const step = Math.round(Math.max(0, Math.min(1, part)) * 100), key = kind + stops[0] + step;
  if (!cache.has(key)) {
    const at = step / 100 * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at)), f = at - i;
    const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
    const [a, b] = [rgb(stops[i]), rgb(stops[i + 1])];
    cache.set(key, `rgb(${a.map((x, k) => Math.round(x + (b[k] - x) * f)).join(" ")})`);
  }
  return cache.get(key);
}
const hopColour = (send) => ramp(view.sends.reduces[send] ? "sum" : "copy", view.hops > 1 ? (view.sends.hop[send] - 1) / (view.hops - 1) : 0);
const css = (key) => getComputedStyle(document.documentElement).getPropertyValue(key).trim();

// The frontier of the chosen algorithm's question.
function shownFigure() {
  return [...document.querySelectorAll("figure[data-algorithms]")].find((figure) => !figure.hidden);
}

function canvasOf(id, width, height) {
  const canvas = $(id), scale = Math.min(window.devicePixelRatio || 1, 32000 / Math.max(width, height));
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  setFont(g, 12);
  g.textAlign = "center";
  g.textBaseline = "middle";
  return g;
}
function setFont(g, size, weight = "") { g.font = `${weight}${size}px ${getComputedStyle(document.body).fontFamily}`; }
function setPen(g, colour, width) { g.strokeStyle = colour; g.lineWidth = width; }
const fillBox = (g, colour, ...box) => { g.fillStyle = colour; g.fillRect(...box); };
const circle = (g, x, y, radius) => { g.beginPath(); g.arc(x, y, radius, 0, 2 * Math.PI); };
const fillCircle = (g, colour, x, y, radius) => { circle(g, x, y, radius); g.fillStyle = colour; g.fill(); };

function element(tag, words, attributes = {}) {
  const made = document.createElement(tag);
  if (words !== undefined && words !== null) made.textContent = words;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function tableOf(heads, rows) {
  const table = element("table"), cells = (words, tag, attributes) => words.map((word) => element(tag, word, attributes));
  for (const row of [cells(heads, "th", { scope: "col" }), ...rows.map((words) => cells(words, "td"))]) {
    table.append(element("tr"));
    table.lastChild.append(...row);
  }
  return table;
}

function showTip(words, event) {
  const box = $("tip");
  box.hidden = !words;
  if (!words) return;
  box.textContent = words;
  const { width, height } = box.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - 12 - width : event.clientX + 16;
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - 10 - height : event.clientY + 18;
  box.style.left = `${Math.max(4, x)}px`;
  box.style.top = `${Math.max(4, y)}px`;
}
