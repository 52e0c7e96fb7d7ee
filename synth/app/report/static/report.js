// The page: choosing an algorithm, moving through time, and the sources of the chunk under the pointer.
const frame = { asked: false };
function requestDraw() {
  if (frame.asked) return;
  frame.asked = true;
  requestAnimationFrame(() => { frame.asked = false; drawNetwork(); drawTimeline(); });
}

function show(index) {
  state.index = index;
  Object.assign(state, { time: 0, send: -1, under: -1, pinned: false, zoom: 1, magnified: 1, seen: 0, view: "links", mode: "total" });
  play(false);
  view = prepareView(DATA.algorithms[index]);
  shape = plan = null;
  for (const part of document.querySelectorAll("[data-algorithm]")) {
    const mine = Number(part.dataset.algorithm) === index;
    if (part.closest("figure")) part.classList.toggle("chosen", mine);
    else part.hidden = !mine;
  }
  for (const figure of document.querySelectorAll("figure[data-algorithms]")) figure.hidden = !figure.dataset.algorithms.split(" ").includes(String(index));
  const figure = shownFigure();
  $("frontier-card").hidden = !figure.querySelector("svg");
  for (const row of document.querySelectorAll("tr[data-row]")) row.classList.toggle("chosen", Number(row.dataset.row) === index);
  if ($("chooser")) $("chooser").value = String(index);
  const drawn = Boolean(view.network);
  $("network-card").hidden = $("timeline-card").hidden = !drawn;
  $("columns").classList.toggle("one", $("frontier-card").hidden || !drawn);
  $("seen-label").hidden = !view.fold;
  $("seen").value = 0;
  fillBlocksTable();
  if (!drawn) return;
  $("seen").max = view.network.n - 1;
  $("network-what").textContent = view.unit === "µs" ? "of the time in use" : "of the busiest connection's chunks";
  $("ramp").style.background = `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map((part) => ramp("load", part)).join(", ")})`;
  const views = [["links", view.kind === "program" ? "Connections" : "Links"], ["ranks", "Ranks"]].filter(([key]) => key !== "ranks" || view.out);
  if (view.blocks && view.blocks.listed.length) views.push(["blocks", "Threadblocks"]);
  $("views").replaceChildren(...views.map(([key, word]) => {
    const button = element("button", word, { type: "button", "data-view": key });
    button.onclick = () => { state.view = key; plan = null; markPressed(); writeNotes(); requestDraw(); };
    return button;
  }));
  // There are too many links to draw, so only the figures are shown.
  const few = view.network.names.length > 0;
  $("network").parentElement.hidden = $("legend-row").hidden = $("modes").hidden = !few;
  $("links-details").open = !few;
  const net = view.network, cut = new Set(net.stub.map(([, dx, dy]) => (Math.abs(dx) === Math.abs(dy) ? "slanted ends lead to the next plane" : "straight ones round the edge")));
  $("network-note").textContent = !few || !net.u.length ? `${formatNumber(net.n)} ranks, ${formatNumber(net.edges)} links: too many to be drawn.`
    : cut.size ? `Links cut short: ${[...cut].sort().join(", ")}.` : "";
  fillLinksTable();
  markPressed();
  writeNotes();
  setTime(0);
  chooseSend(-1);
  requestDraw();
}

function markPressed() {
  for (const button of document.querySelectorAll("[data-mode]")) button.setAttribute("aria-pressed", button.dataset.mode === state.mode);
  for (const button of document.querySelectorAll("[data-view]")) button.setAttribute("aria-pressed", button.dataset.view === state.view);
  $("zoom").textContent = `${state.zoom} ×`;
  $("magnified").textContent = `${state.magnified} ×`;
}

// Explain the rows, the colours and what the page omits, below the controls.
function writeNotes() {
  const s = view.sends, lines = [];
  if (state.view === "links") {
    if (view.rows.copies > 1) lines.push(`Each row stands for ${view.rows.copies} links that are used equally: the schedule is one plan and its ${view.rows.copies} translates. What is shown is that of one rank.`);
    else if (view.rows.used < view.rows.links) lines.push(`${formatNumber(view.rows.used)} of ${formatNumber(view.rows.links)} links are used.`);
    if (view.heat) lines.push("The darker (lighter, in the dark), the larger the part of the time in which the links of a row are in use.");
    if (s.shown < s.stored) lines.push(view.kind === "program" ? `The first ${formatNumber(s.shown)} of ${formatNumber(s.stored)} transmissions are shown one by one.` : `Of ${formatNumber(s.stored)} sends, those of a sample of the chunks (${formatNumber(s.shown)}) are shown one by one.`);
    if (view.unit === "steps") lines.push("Without a network there are no times: an instruction stands at the earliest place in the order of waiting, from 0.");
  }
  $("timeline-note").textContent = lines.join(" ");
  $("provenance").hidden = state.view !== "links";
  const legend = [];
  const key = (colour, words) => {
    const item = element("li"), chip = element("i");
    chip.style.background = colour;
    item.append(chip, words);
    legend.push(item);
  };
  if (state.view === "links" && !view.heat) {
    // Hops that occur: all of a few, otherwise the first, the middle and the last.
    for (const [reduces, colour, words] of [[0, "copy", "copy"], [1, "sum", "added at the far end"]]) {
      const hops = [...new Set(s.hop.filter((_, i) => s.reduces[i] === reduces))].sort((a, b) => a - b);
      const few = hops.length <= 6 ? hops : [hops[0], hops[hops.length >> 1], hops[hops.length - 1]];
      for (const hop of few) key(ramp(colour, view.hops > 1 ? (hop - 1) / (view.hops - 1) : 0), `${words}, hop ${hop}`);
    }
    if (s.links.alpha) key(css("--soft"), "thin line: latency until it can be used");
  } else if (state.view === "ranks") {
    const top = view.ranks.top_gbs;
    key(css("--c0"), `up: sends, at most ${top === undefined ? `${view.ranks.top} connections at once` : `${top} GB/s`}`);
    key(css("--c1"), "down: gets");
  } else if (state.view === "blocks") {
    view.blocks.ops.forEach((op, i) => { if (view.blocks.count[i]) key(opColour(i), `${op} × ${formatNumber(view.blocks.count[i])}`); });
  }
  $("timeline-legend").replaceChildren(...legend);
}

function setTime(time) {
  state.time = Math.max(0, Math.min(view.span, time));
  $("time").value = String(view.span > 0 ? Math.round(state.time / view.span * 1000) : 0);
  const words = `${formatTime(state.time)} of ${view.unit === "steps" ? view.span : formatTime(view.span)}`;
  $("now").textContent = words;
  $("time").setAttribute("aria-valuetext", words);
  drawNetwork();
  if (state.zoom > 1) drawTimeline();
  else movePlayhead();
}

function play(on) {
  state.playing = on;
  $("play").setAttribute("aria-pressed", on);
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  if (!on) return;
  if (state.time >= view.span) setTime(0);
  setMode("now");
  let last = performance.now();
  const step = (now) => {
    if (!state.playing) return;
    // The whole run is shown in eight seconds, whatever its time on the machine.
    setTime(state.time + (now - last) / 8000 * view.span);
    last = now;
    if (state.time >= view.span) play(false);
    else requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function setMode(mode) {
  state.mode = mode;
  markPressed();
  drawNetwork();
}

function chooseSend(send) {
  state.send = send;
  showProvenance(send);
  requestDraw();
}

function showProvenance(send) {
  const box = $("provenance");
  box.replaceChildren();
  if (send < 0) {
    box.append(element("span", "Point at a send to see where its chunk came from, hop by hop; click to hold it. With the keyboard: arrow keys in the timeline."));
    return;
  }
  const before = ancestors(send), after = descendants(send), links = view.sends, most = 40;
  box.append(element("b", describeChunk(send)));
  if (links.count && links.count[send] > 1) box.append(` (${links.count[send]} chunks)`);
  const list = element("ol"), left = Math.max(0, before.length - most);
  if (left) list.append(element("li", `… ${left} sends before these`));
  for (const one of [...before.slice(left), send]) {
    const item = element("li", null, one === send ? { class: "this" } : {}), own = links.own[one] && parents(view, one).length;
    item.append(`${hopName(one)}: leaves ${formatTime(links.start[one])}, there ${formatTime(arrival(view, one))}`);
    if (links.reduces[one]) item.append(", added to what is there");
    if (own) item.append(`, with ${name(ends(one)[0])}'s own`);
    if (links.place) item.append(`, rank ${links.place[one][0]} tb ${links.place[one][1]} step ${links.place[one][2]}`);
    list.append(item);
  }
  list.setAttribute("start", String(Math.max(1, left)));
  box.append(list);
  box.scrollTop = 0;
  const on = after.length ? `From there it goes on in ${after.length} more send${after.length > 1 ? "s" : ""}.` : "It is not sent on from there.";
  box.append(element("p", on, { class: "note" }));
}

function fillBlocksTable() {
  const card = $("blocks-card"), blocks = view.blocks;
  card.hidden = !blocks;
  if (!blocks) return;
  const peer = (rank) => (rank < 0 ? "–" : rank);
  const rows = blocks.rank.map((rank, i) => [rank, blocks.tb[i], blocks.channel[i], peer(blocks.send[i]), peer(blocks.recv[i]), blocks.steps[i]]);
  const table = tableOf(["rank", "threadblock", "channel", "sends to", "receives from", "instructions"], rows);
  const note = blocks.rank.length < blocks.of ? `The first ${blocks.rank.length} of ${blocks.of} threadblocks.` : "";
  $("blocks-table").replaceChildren(element("p", note, { class: "note" }), table);
}

function start() {
  $("time").oninput = () => { play(false); if (state.mode !== "now") setMode("now"); setTime(Number($("time").value) / 1000 * view.span); };
  $("play").onclick = () => play(!state.playing);
  for (const button of document.querySelectorAll("[data-mode]")) button.onclick = () => setMode(button.dataset.mode);
  const zoom = (by) => { state.zoom = Math.max(1, Math.min(1024, state.zoom * by)); markPressed(); requestDraw(); };
  $("zoom-in").onclick = () => zoom(2);
  $("zoom-out").onclick = () => zoom(0.5);
  // The middle of what is seen stays there.
  const magnify = (by) => {
    const box = $("network").parentElement, now = Math.max(1, Math.min(8, state.magnified * by)), times = now / state.magnified;
    const middle = [box.scrollLeft + box.clientWidth / 2, box.scrollTop + box.clientHeight / 2];
    state.magnified = now;
    shape = null;
    markPressed();
    drawNetwork();
    box.scrollTo(middle[0] * times - box.clientWidth / 2, middle[1] * times - box.clientHeight / 2);
  };
  $("larger").onclick = () => magnify(2);
  $("smaller").onclick = () => magnify(0.5);
  $("seen").oninput = () => {
    state.seen = Math.max(0, Math.min(view.network.n - 1, Math.floor(Number($("seen").value)) || 0));
    plan = null;
    chooseSend(state.send);
  };
  if ($("chooser")) $("chooser").onchange = () => show(Number($("chooser").value));
  for (const link of document.querySelectorAll("[data-choose]")) link.onclick = (event) => { event.preventDefault(); show(Number(link.dataset.choose)); };
  for (const button of document.querySelectorAll("[data-save]")) button.onclick = () => saveFigure(...button.dataset.save.split(" "));
  const network = $("network"), line = $("timeline"), out = (event) => showTip("", event);
  network.onpointermove = overNetwork;
  network.onpointerleave = out;
  line.onpointermove = overTimeline;
  line.onpointerleave = (event) => { out(event); if (!state.pinned && state.send >= 0) chooseSend(-1); };
  line.onclick = (event) => {
    if (!plan) return;
    // A click's place is rounded to whole pixels, so the send that the pointer last showed counts.
    const at = placeIn(event), send = state.view === "links" ? state.under : -1;
    if (at.x >= plan.left) { play(false); if (state.mode !== "now") setMode("now"); setTime(at.time); }
    state.pinned = send >= 0;
    chooseSend(send);
  };
  line.onkeydown = keyOnTimeline;
  const anew = () => { shape = plan = null; requestDraw(); };
  addEventListener("resize", anew);
  dark.addEventListener("change", () => { cache.clear(); show(state.index); });
  $("links-details").ontoggle = requestDraw;
  const asked = /^#algorithm-(\d+)$/.exec(location.hash);
  show(asked && Number(asked[1]) < DATA.algorithms.length ? Number(asked[1]) : DATA.first);
}
start();
