// The network: ranks and switches at their places, links in the colour of their load, and sends under way.
let shape = null; // places in pixels, made anew when the page's width or the algorithm changes

function placeVertices() {
  const net = view.network, box = $("network").parentElement, by = state.magnified, width = Math.max(260, box.clientWidth) * by;
  const ends = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const [lowX, highX] = ends(net.x), [lowY, highY] = ends(net.y);
  const pad = net.n > 64 ? 20 : 34, spanX = Math.max(highX - lowX, 1e-9), spanY = Math.max(highY - lowY, 1e-9);
  const height = Math.round(Math.max(200, Math.min((net.n > 64 ? 560 : 430) * by, (width - 2 * pad) * spanY / spanX + 2 * pad)));
  const scale = Math.min((width - 2 * pad) / spanX, (height - 2 * pad) / spanY, 130 * by);
  const x = net.x.map((v) => width / 2 + (v - (lowX + highX) / 2) * scale);
  const y = net.y.map((v) => height / 2 + (v - (lowY + highY) / 2) * scale);
  const gap = net.spacing * scale, radius = Math.max(1.6, Math.min(19, gap * 0.29));
  const stub = new Map(net.stub.map(([edge, dx, dy]) => [edge, [dx, dy]]));
  const pairs = new Map(net.u.map((u, edge) => [u * net.names.length + net.v[edge], edge]));
  return { width, height, x, y, gap, radius, stub, pairs, edgeOf: (a, b) => pairs.get(a * net.names.length + b) };
}

// Return a link as a curve bent to its right, so that both directions are visible: [x0, y0, control x, y, x1, y1].
function curve(edge) {
  const net = view.network, s = shape, u = net.u[edge], v = net.v[edge], cut = s.stub.get(edge);
  if (cut) {
    const length = Math.min(s.gap * 0.5, 30), x = s.x[u], y = s.y[u];
    return [x, y, x + cut[0] * length / 2, y + cut[1] * length / 2, x + cut[0] * length, y + cut[1] * length];
  }
  return between(u, v);
}
function between(u, v) {
  const s = shape, dx = s.x[v] - s.x[u], dy = s.y[v] - s.y[u], length = Math.hypot(dx, dy) || 1;
  // Along a row or a column, other vertices are between the ends, so the curve is wide.
  const flat = Math.min(Math.abs(dx), Math.abs(dy)) < 0.5, far = length > s.gap * 1.6 ? (flat ? 0.14 : 0.03) * length : 0;
  const bend = Math.min(far, 46) + Math.min(4, s.gap * 0.09);
  const nx = -dy / length, ny = dx / length, side = Math.min(3, s.gap * 0.07);
  return [
    s.x[u] + nx * side, s.y[u] + ny * side,
    (s.x[u] + s.x[v]) / 2 + nx * (bend * 2 - side), (s.y[u] + s.y[v]) / 2 + ny * (bend * 2 - side),
    s.x[v] + nx * side, s.y[v] + ny * side,
  ];
}
const along = ([x0, y0, cx, cy, x1, y1], t) => [
  (1 - t) * (1 - t) * x0 + 2 * t * (1 - t) * cx + t * t * x1, (1 - t) * (1 - t) * y0 + 2 * t * (1 - t) * cy + t * t * y1,
];

const edgeShare = (edge) => state.mode === "total" ? view.network.load[edge] : view.now.at(edge, binAt(view.now, state.time));

function stroke(g, c) {
  g.beginPath();
  g.moveTo(c[0], c[1]);
  g.quadraticCurveTo(c[2], c[3], c[4], c[5]);
  g.stroke();
}

function drawNetwork() {
  const net = view.network;
  if (!net || !net.names.length) return;
  shape = shape || placeVertices();
  $("network").style.width = state.magnified > 1 ? `${shape.width}px` : "";
  const s = shape, g = canvasOf("network", s.width, s.height), n = net.n, wide = Math.max(0.9, Math.min(3.6, s.gap * 0.07) * Math.min(1, Math.sqrt(160 / Math.max(1, net.u.length))));
  const order = net.u.map((_, edge) => edge).sort((a, b) => edgeShare(a) - edgeShare(b) || a - b);
  for (const edge of order) {
    const share = edgeShare(edge);
    setPen(g, ramp("load", share), share > 0 ? wide * (0.6 + 0.7 * Math.min(1, share)) : wide * 0.5);
    stroke(g, curve(edge));
  }
  const steps = state.send >= 0 ? [...ancestors(state.send).slice(-200), state.send] : [];
  if (steps.length) drawLineage(g, steps);
  drawVertices(g);
  if (steps.length) drawStops(g, steps);
  drawDots(g);
  $("network").setAttribute("aria-label", `The network: ${n} ranks, ${formatNumber(net.edges)} links, the busiest in use ${formatPercent(net.busiest)} of the time`);
}

function drawVertices(g) {
  const net = view.network, s = shape, r = s.radius, half = Math.max(4, Math.min(12, s.gap * 0.22));
  const card = css("--card"), ink = css("--ink"), soft = css("--soft"), done = css("--good"), line = css("--line"), written = [];
  for (let i = 0; i < net.names.length; i++) {
    const x = s.x[i], y = s.y[i], isSwitch = i >= net.n, relay = i >= net.members && !isSwitch;
    if (isSwitch) {
      g.beginPath();
      g.rect(x - half, y - half, 2 * half, 2 * half);
    } else circle(g, x, y, r);
    g.fillStyle = card;
    g.fill();
    setPen(g, isSwitch || !view.got || r <= 7 || relay ? soft : line, r > 7 ? 1.4 : 1);
    g.setLineDash(relay ? [3, 3] : []);
    g.stroke();
    g.setLineDash([]);
    // The ring fills as the rank receives what it wants.
    const share = view.got && !isSwitch ? gotAt(i, state.time) : 0;
    if (share > 0 && r > 7) {
      g.beginPath();
      g.arc(x, y, r, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * share);
      setPen(g, done, Math.max(2, r * 0.22));
      g.stroke();
    } else if (share > 0) fillCircle(g, done, x, y, r * Math.sqrt(share)); // its area is the share
    g.fillStyle = ink;
    if (isSwitch && net.names.length - net.n <= 24) {
      setFont(g, 10.5);
      switchName(g, net.names[i], x, y - half - 8, card, written);
    } else if (!isSwitch && r >= 5 + net.names[i].length * 1.1) {
      setFont(g, Math.max(9, Math.min(13, r * 0.85)));
      g.fillText(net.names[i], x, y + 0.5);
    }
  }
}

// Draw a switch's name above it, unless another name is there already.
function switchName(g, name, x, y, card, written) {
  const half = g.measureText(name).width / 2 + 2;
  if (written.some(([left, right, at]) => Math.abs(at - y) < 12 && x - half < right && x + half > left)) return;
  written.push([x - half, x + half, y]);
  setPen(g, card, 4);
  g.strokeText(name, x, y);
  g.fillText(name, x, y);
}

// Draw sends under way as dots, if they are few enough to be distinct.
function drawDots(g) {
  if (state.mode !== "now" || view.network.n > 64 || view.sends.shown < view.sends.stored || view.fold) return;
  const card = css("--card");
  const found = sendsUnderWay(state.time, 600), small = found.length > 120;
  for (const send of found) {
    const [a, b] = ends(send), begin = view.sends.start[send], part = (state.time - begin) / Math.max(arrival(view, send) - begin, 1e-12);
    const legs = sendCurves(send, a, b), leg = Math.min(legs.length - 1, Math.floor(part * legs.length));
    const [x, y] = along(legs[leg], Math.min(1, part * legs.length - leg));
    fillCircle(g, hopColour(send), x, y, small ? 2.4 : 4.2);
    setPen(g, card, small ? 0.6 : 1.2);
    g.stroke();
  }
}

// Return the curves of one send: over its physical links if their order is known, otherwise a straight line.
function sendCurves(send, a, b) {
  const net = view.network, known = view.fold && state.seen ? [] : view.sends.links.path[view.sends.link[send]];
  const legs = [];
  for (let at = translate(a), left = [...known]; at !== translate(b) && left.length;) {
    const i = left.findIndex((edge) => net.u[edge] === at);
    if (i < 0) break;
    legs.push(curve(left[i]));
    at = net.v[left[i]];
    left.splice(i, 1);
    if (at === translate(b)) return legs;
  }
  const edge = shape.edgeOf(translate(a), translate(b));
  return [edge === undefined ? between(translate(a), translate(b)) : curve(edge)];
}

function drawLineage(g, steps) {
  const accent = css("--c2"), card = css("--card");
  g.lineCap = "round";
  for (const [number, send] of steps.entries()) {
    const [a, b] = ends(send), legs = sendCurves(send, a, b);
    for (const c of legs) {
      setPen(g, card, 6);
      stroke(g, c);
      setPen(g, accent, send === state.send ? 4 : 2.6);
      stroke(g, c);
    }
    const [x, y] = along(legs[legs.length - 1], 0.55);
    if (steps.length <= 24 && shape.gap > 40) {
      fillCircle(g, accent, x, y, 7.5);
      g.fillStyle = card;
      setFont(g, 10, "bold ");
      g.fillText(String(number + 1), x, y + 0.5);
    }
  }
  g.lineCap = "butt";
}

// Mark the ranks where the chunk began (thick), where it is now (thin), and where it passed.
function drawStops(g, steps) {
  const s = shape, accent = css("--c2");
  const [first] = ends(steps[0]), [, last] = ends(state.send);
  g.strokeStyle = g.fillStyle = accent;
  for (const send of steps) {
    const stop = translate(ends(send)[1]);
    circle(g, s.x[stop], s.y[stop], s.radius + 1);
    g.lineWidth = 1.8;
    if (s.radius < 8) g.fill();
    else g.stroke();
  }
  for (const [vertex, wide] of [[translate(first), 3.4], [translate(last), 1.8]]) {
    circle(g, s.x[vertex], s.y[vertex], s.radius + 4);
    g.lineWidth = wide;
    g.stroke();
  }
}

function overNetwork(event) {
  const net = view.network, s = shape, box = $("network").getBoundingClientRect();
  if (!net || !s) return;
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let best = -1, near = s.radius + 4;
  net.names.forEach((_, i) => { const d = Math.hypot(s.x[i] - x, s.y[i] - y); if (d < near) { near = d; best = i; } });
  if (best >= 0) { showTip(describeVertex(best), event); return; }
  near = 7;
  for (let edge = 0; edge < net.u.length; edge++) {
    const c = curve(edge);
    for (let t = 0.08; t < 1; t += 0.08) {
      const [px, py] = along(c, t), d = Math.hypot(px - x, py - y);
      if (d < near) { near = d; best = edge; }
    }
  }
  showTip(best >= 0 ? describeEdge(best) : "", event);
}

function describeVertex(i) {
  const net = view.network;
  if (i >= net.n) return `switch ${net.names[i]}`;
  const got = view.got ? `\nhas ${formatPercent(gotAt(i, state.time))} of what it lacks` : "";
  const rates = describeRates(i, binAt(view.out, state.time));
  return `rank ${net.names[i]}${i >= net.members ? " (relay)" : ""}\nat ${formatTime(state.time)}: ${rates}${got}`;
}

function describeEdge(edge) {
  const net = view.network, lines = [`${net.names[net.u[edge]]} → ${net.names[net.v[edge]]}${net.gbs.length ? ` · ${net.gbs[edge]} GB/s` : ""}`];
  if (net.moved) lines.push(`${formatNumber(net.moved[edge])} chunks`);
  lines.push(`${formatPercent(net.load[edge])} ${view.unit === "µs" ? "of the whole time in use" : "of the busiest connection's chunks"}`);
  if (view.unit === "µs") lines.push(`at ${formatTime(state.time)}: ${formatPercent(view.now.at(edge, binAt(view.now, state.time)))}`);
  return lines.join("\n");
}

function fillLinksTable() {
  const net = view.network, box = $("links-table");
  box.replaceChildren();
  const spread = element("div", null, { class: "spread", role: "img", "aria-label": "How many links have which load, from 0 to 100 %" });
  const top = Math.max(1, ...net.spread);
  for (const many of net.spread) {
    const bar = element("i");
    bar.style.height = `${many ? Math.max(4, 100 * many / top) : 1}%`;
    spread.append(bar);
  }
  box.append(spread, element("p", `Links by load, from 0 % (left) to 100 % (right). ${formatNumber(net.edges)} links${net.u.length ? "" : ", too many to be drawn"}.`));
  const order = net.u.map((_, edge) => edge).sort((a, b) => net.load[b] - net.load[a] || a - b).slice(0, 60);
  const rows = order.map((edge) => [`${net.names[net.u[edge]]} → ${net.names[net.v[edge]]}`, net.gbs.length ? net.gbs[edge] : net.moved[edge], formatPercent(net.load[edge])]);
  for (const limit of net.limits) rows.push([`limit ${limit.name}`, limit.gbs, formatPercent(limit.load)]);
  if (rows.length) box.append(tableOf(["link", net.gbs.length ? "GB/s" : "chunks", "load"], rows));
}
