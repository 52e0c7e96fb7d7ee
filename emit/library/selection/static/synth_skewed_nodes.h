/* The planner of groups in nodes whose ranks all have links, joined by NICs; see `synth.engines.skewed.loop`.
 *
 * It is a part of synth_skewed.h, which includes it.
 */
#ifndef SYNTH_SKEWED_NODES_H
#define SYNTH_SKEWED_NODES_H

/* Lay the columns of a table out, in their order; see synth_skewed_columns. */
static inline void synth_skewed_nodes_columns(struct synth_skewed *t, struct synth_skewed_cursor *c) {
  const struct synth_skewed_head *h = t->head;
  uint64_t k = h->positions, n = h->nodes, lanes = h->lanes, links = h->links;
  t->node_ptr = SYNTH_SKEWED_INTS(n + 1), t->nic_ptr = SYNTH_SKEWED_INTS((uint64_t)h->nics + 1);
  t->lane_ptr = SYNTH_SKEWED_INTS(n * n + 1), t->part_ports = SYNTH_SKEWED_INTS(h->parts);
  t->part_base = SYNTH_SKEWED_INTS((uint64_t)h->parts + 1);
  t->lane_end = SYNTH_SKEWED_REALS(lanes), t->lane_ticks = SYNTH_SKEWED_REALS(lanes);
  t->rank_us = SYNTH_SKEWED_REALS(2 * k), t->rank_alpha_us = SYNTH_SKEWED_REALS(2 * k);
  t->node_us = SYNTH_SKEWED_REALS(2 * n), t->node_alpha_us = SYNTH_SKEWED_REALS(2 * n);
  t->least_us = SYNTH_SKEWED_REALS(k * k), t->straight_us = SYNTH_SKEWED_REALS(2 * k * n);
  t->alpha = SYNTH_SKEWED_REALS(links), t->link_us = SYNTH_SKEWED_REALS(links), t->gap = SYNTH_SKEWED_REALS(links);
  t->node_of = SYNTH_SKEWED_WORDS(k), t->node_rank = SYNTH_SKEWED_WORDS(k), t->nic_of = SYNTH_SKEWED_WORDS(k);
  t->nic_rank = SYNTH_SKEWED_WORDS(n > 1 ? k : 0), t->between = SYNTH_SKEWED_WORDS(k * k);
  t->lane_from = SYNTH_SKEWED_WORDS(lanes), t->lane_to = SYNTH_SKEWED_WORDS(lanes);
  t->lane_source = SYNTH_SKEWED_WORDS(lanes), t->lane_goal = SYNTH_SKEWED_WORDS(lanes);
  t->lane_flow = SYNTH_SKEWED_WORDS(lanes), t->leaves = SYNTH_SKEWED_WORDS(k * n), t->enters = SYNTH_SKEWED_WORDS(k * n);
  t->first_port = SYNTH_SKEWED_WORDS(links), t->last_port = SYNTH_SKEWED_WORDS(links);
}

static inline const char *synth_skewed_lanes_error(const struct synth_skewed *t) {
  const struct synth_skewed_head *h = t->head;
  uint64_t k = h->positions, n = h->nodes, i, j, a, b;
  for (i = 0; i < k; i++)
    for (j = 0; j < k; j++)
      if (i != j && t->node_of[i] == t->node_of[j] && t->between[i * k + j] == SYNTH_SKEWED_NO_LINK)
        return "has a node without a link between two positions";
  for (a = 0; a < n; a++)
    for (i = (uint64_t)t->node_ptr[a]; i < (uint64_t)t->node_ptr[a + 1]; i++)
      if (t->node_of[t->node_rank[i]] != a || (i > (uint64_t)t->node_ptr[a] && t->node_rank[i] <= t->node_rank[i - 1]))
        return "has a position in two nodes";
  if (n == 1) return NULL;
  for (a = 0; a < h->nics; a++)
    for (i = (uint64_t)t->nic_ptr[a]; i < (uint64_t)t->nic_ptr[a + 1]; i++)
      if (t->nic_of[t->nic_rank[i]] != a || (i > (uint64_t)t->nic_ptr[a] && t->nic_rank[i] <= t->nic_rank[i - 1]))
        return "has a position at two NICs";
  for (a = 0; a < n; a++)
    for (b = 0; b < n; b++) {
      int64_t lane, first = t->lane_ptr[a * n + b], last = t->lane_ptr[a * n + b + 1] - 1;
      if (a != b && (last < first || !(t->lane_end[last] >= 1.0))) return "has two nodes without lanes";
      for (lane = first; lane <= last; lane++) {
        uint32_t from = t->lane_from[lane], to = t->lane_to[lane];
        if (lane > first && t->lane_end[lane] < t->lane_end[lane - 1]) return "has lanes in no order";
        if (!(t->lane_ticks[lane] >= 0.999 && t->lane_ticks[lane] < 16.001)) return "has a lane of no rate";
        if (t->nic_of[t->lane_source[lane]] != from || t->nic_of[t->lane_goal[lane]] != to)
          return "has a lane whose ends are at other NICs";
        for (i = (uint64_t)t->nic_ptr[from]; i < (uint64_t)t->nic_ptr[from + 1]; i++)
          for (j = (uint64_t)t->nic_ptr[to]; j < (uint64_t)t->nic_ptr[to + 1]; j++) {
            uint64_t source = t->nic_rank[i], goal = t->nic_rank[j];
            if (t->node_of[source] != a || t->node_of[goal] != b || t->between[source * k + goal] == SYNTH_SKEWED_NO_LINK)
              return "has a lane without a link";
          }
      }
    }
  for (i = 0; i < k; i++)
    for (b = 0; b < n; b++) {
      uint64_t out = t->leaves[i * n + b], into = t->enters[i * n + b];
      if (b != t->node_of[i] && (t->node_of[out] != t->node_of[i] || t->node_of[into] != b ||
                                 t->between[out * k + into] == SYNTH_SKEWED_NO_LINK))
        return "has a straight path without a link";
    }
  for (i = 0; i < h->parts; i++)
    if (t->part_ports[i] < 1 || t->part_ports[i] > 2048 ||
        t->part_base[i + 1] - t->part_base[i] != t->part_ports[i] * t->part_ports[i])
      return "has a matrix of a wrong size";
  return h->tick_us >= 1e-9 ? NULL : "has no length of a tick";
}

/* Return why the columns are no table of nodes, NULL where they are one; all counts fit. */
static inline const char *synth_skewed_nodes_error(const struct synth_skewed *t) {
  const struct synth_skewed_head *h = t->head;
  uint64_t k = h->positions, n = h->nodes, lanes = h->lanes, links = h->links, i;
  for (i = 0; i < k * k; i++)
    if (t->between[i] != SYNTH_SKEWED_NO_LINK && t->between[i] >= links) return "has a link beyond its end";
  if (synth_skewed_above(t->node_rank, k, k) ||
      (n > 1 && (synth_skewed_above(t->nic_of, k, h->nics) || synth_skewed_above(t->nic_rank, k, k))) ||
      synth_skewed_above(t->lane_from, lanes, h->nics) || synth_skewed_above(t->lane_to, lanes, h->nics) ||
      synth_skewed_above(t->lane_source, lanes, k) || synth_skewed_above(t->lane_goal, lanes, k) ||
      synth_skewed_above(t->lane_flow, lanes, h->cells) || synth_skewed_above(t->leaves, k * n, k) ||
      synth_skewed_above(t->enters, k * n, k) || synth_skewed_above(t->first_port, links, h->resources) ||
      synth_skewed_above(t->last_port, links, h->resources))
    return "has an index beyond its end";
  if (synth_skewed_falls(t->node_ptr, n, k) || synth_skewed_falls(t->nic_ptr, h->nics, n > 1 ? k : 0) ||
      synth_skewed_falls(t->lane_ptr, n * n, lanes) || synth_skewed_falls(t->part_base, h->parts, h->cells))
    return "has pointers in no order";
  if (synth_skewed_odd(t->lane_end, lanes) || synth_skewed_odd(t->lane_ticks, lanes) ||
      synth_skewed_odd(t->straight_us, 2 * k * n))
    return "has a figure that is no time";
  return synth_skewed_lanes_error(t);
}

/* Lay the columns of a workspace out; see synth_skewed_lay. */
static inline void synth_skewed_nodes_lay(const struct synth_skewed *t, struct synth_skewed_work *w, struct synth_skewed_cursor *c) {
  uint64_t k = t->head->positions, n = t->head->nodes, lanes = t->head->lanes, most = 0, i, ports, cells, r = (uint64_t)w->room;
  for (i = 0; i < n; i++)
    if ((uint64_t)(t->node_ptr[i + 1] - t->node_ptr[i]) > most) most = (uint64_t)(t->node_ptr[i + 1] - t->node_ptr[i]);
  ports = most;
  for (i = 0; i < t->head->parts; i++)
    if ((uint64_t)t->part_ports[i] > ports) ports = (uint64_t)t->part_ports[i];
  cells = most * most > t->head->cells ? most * most : t->head->cells;
  w->most_rows = 3 * w->room, w->buckets = 256;
  while (w->buckets < w->room / 2) w->buckets *= 2;
  w->cell = SYNTH_SKEWED_INTS(cells), w->left = SYNTH_SKEWED_INTS(k * k), w->sent = SYNTH_SKEWED_INTS(k * k);
  w->row_left = SYNTH_SKEWED_INTS(k), w->first = SYNTH_SKEWED_INTS(k), w->lane_left = SYNTH_SKEWED_INTS(lanes);
  w->lane_seg = SYNTH_SKEWED_INTS(lanes), w->lane_at = SYNTH_SKEWED_INTS(lanes);
  w->piece_bytes = SYNTH_SKEWED_INTS(r), w->seg_flow = SYNTH_SKEWED_INTS(r), w->seg_begin = SYNTH_SKEWED_INTS(r);
  w->seg_end = SYNTH_SKEWED_INTS(r), w->seg_ptr = SYNTH_SKEWED_INTS(cells + 1), w->flow_begin = SYNTH_SKEWED_INTS(r);
  w->flow_end = SYNTH_SKEWED_INTS(r), w->padded = SYNTH_SKEWED_INTS(ports * ports);
  w->real = SYNTH_SKEWED_INTS(ports * ports), w->match = SYNTH_SKEWED_INTS(ports), w->owner = SYNTH_SKEWED_INTS(ports);
  w->since = SYNTH_SKEWED_INTS(ports), w->queue = SYNTH_SKEWED_INTS(ports + 1), w->came = SYNTH_SKEWED_INTS(ports);
  w->longest = SYNTH_SKEWED_INTS(2 * k);
  w->row_key = SYNTH_SKEWED_REALS(3 * r), w->sorted_key = SYNTH_SKEWED_REALS(3 * r), w->ready = SYNTH_SKEWED_REALS(r);
  w->release = SYNTH_SKEWED_REALS(t->head->resources), w->port_us = SYNTH_SKEWED_REALS(2 * k);
  w->filled = SYNTH_SKEWED_REALS(2 * k);
  w->piece_source = SYNTH_SKEWED_WORDS(r), w->piece_goal = SYNTH_SKEWED_WORDS(r), w->piece_lane = SYNTH_SKEWED_WORDS(r);
  w->row_chunk = SYNTH_SKEWED_WORDS(3 * r), w->row_link = SYNTH_SKEWED_WORDS(3 * r);
  w->row_step = SYNTH_SKEWED_WORDS(3 * r), w->row_bucket = SYNTH_SKEWED_WORDS(3 * r);
  w->order = SYNTH_SKEWED_WORDS(3 * r), w->bucket_ptr = SYNTH_SKEWED_WORDS((uint64_t)w->buckets);
  synth_skewed_lay_plan(w, 0, r, 3 * r, c);
  synth_skewed_lay_plan(w, 1, k * k + 1, 3 * (k * k + 1), c);
}

static inline int64_t synth_skewed_line(const int64_t *cell, int64_t n) {
  int64_t p, q, most = 0;
  for (p = 0; p < n; p++) {
    int64_t row = 0, column = 0;
    for (q = 0; q < n; q++) row += cell[p * n + q], column += cell[q * n + p];
    most = synth_skewed_max(most, synth_skewed_max(row, column));
  }
  return most;
}

/* Decompose a matrix of ticks into segments; return their number so far, or SYNTH_SKEWED_FULL. */
static inline int64_t synth_skewed_rounds(const int64_t *cell, int64_t n, int64_t flow, int64_t count, struct synth_skewed_work *w) {
  int64_t most = synth_skewed_line(cell, n), now = 0, p, q, first, ticks, before;
  if (most == 0) return count;
  for (p = 0; p < n; p++) {
    int64_t row = 0, column = 0;
    for (q = 0; q < n; q++) {
      w->real[p * n + q] = w->padded[p * n + q] = cell[p * n + q];
      row += cell[p * n + q], column += cell[q * n + p];
    }
    w->since[p] = most - row, w->came[p] = most - column;
    w->match[p] = w->owner[p] = -1;
  }
  for (p = q = 0; p < n && q < n;) {
    ticks = synth_skewed_min(w->since[p], w->came[q]);
    w->padded[p * n + q] += ticks, w->since[p] -= ticks, w->came[q] -= ticks;
    if (w->since[p] == 0) p++;
    else q++;
  }
  for (;;) {
    for (first = 0; first < n; first++) {
      int64_t head = 0, tail = 1, open = -1;
      if (w->match[first] >= 0) continue;
      for (q = 0; q < n; q++) w->came[q] = -1;
      w->queue[0] = first;
      while (open < 0) {
        p = w->queue[head++];
        for (q = 0; q < n; q++)
          if (w->came[q] < 0 && w->padded[p * n + q] > 0) {
            w->came[q] = p;
            if (w->owner[q] < 0) {
              open = q;
              break;
            }
            w->queue[tail++] = w->owner[q];
          }
      }
      while (open >= 0) {
        p = w->came[open], before = w->match[p];
        if (before >= 0 && (ticks = now - w->since[p]) > 0) {
          w->padded[p * n + before] -= ticks;
          ticks = synth_skewed_min(ticks, w->real[p * n + before]);
          if (ticks > 0) {
            if (count == w->room) return SYNTH_SKEWED_FULL;
            w->seg_flow[count] = flow + p * n + before;
            w->seg_begin[count] = w->since[p], w->seg_end[count++] = w->since[p] + ticks;
            w->real[p * n + before] -= ticks;
          }
        }
        w->match[p] = open, w->owner[open] = p, w->since[p] = now;
        open = before;
      }
    }
    for (p = 0, first = most; p < n; p++) first = synth_skewed_min(first, w->since[p] + w->padded[p * n + w->match[p]]);
    now = first;
    for (p = 0; p < n; p++) {
      q = w->match[p];
      if (w->since[p] + w->padded[p * n + q] == now) {
        ticks = w->real[p * n + q];
        if (ticks > 0) {
          if (count == w->room) return SYNTH_SKEWED_FULL;
          w->seg_flow[count] = flow + p * n + q;
          w->seg_begin[count] = w->since[p], w->seg_end[count++] = w->since[p] + ticks;
        }
        w->padded[p * n + q] = w->real[p * n + q] = 0;
        w->match[p] = w->owner[q] = -1;
      }
    }
    if (now == most) return count;
  }
}

/* Split what nodes send over the lanes between them; return the number of pieces, or SYNTH_SKEWED_FULL. */
static inline int64_t synth_skewed_split(const struct synth_skewed *t, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, n = t->head->nodes, count = 0, a, b, x, y, lane;
  for (a = 0; a < n; a++)
    for (b = 0; b < n; b++) {
      int64_t total = w->pair[a * n + b], goals = t->node_ptr[b], ngoals = t->node_ptr[b + 1] - goals, begin = 0;
      int64_t first_lane = t->lane_ptr[a * n + b], end_lane = t->lane_ptr[a * n + b + 1];
      int relayed;
      if (a == b || total == 0) continue;
      for (x = t->node_ptr[a]; x < t->node_ptr[a + 1]; x++)
        w->row_left[t->node_rank[x]] = w->to_node[t->node_rank[x] * n + b], w->first[t->node_rank[x]] = 0;
      for (lane = first_lane; lane < end_lane; lane++) {
        int64_t end = t->lane_end[lane] >= 1.0 ? total : synth_skewed_min(total, (int64_t)(t->lane_end[lane] * (double)total));
        double exact = (double)(end - begin) * t->lane_ticks[lane];
        int64_t ticks = (int64_t)exact;
        w->lane_left[lane] = end - begin;
        if ((double)ticks < exact) ticks++;
        w->cell[t->lane_flow[lane]] = synth_skewed_max(w->cell[t->lane_flow[lane]], ticks);
        begin = end;
      }
      for (relayed = 0; relayed < 2; relayed++)
        for (lane = first_lane; lane < end_lane; lane++) {
          uint32_t into = t->lane_to[lane], from = t->lane_from[lane];
          int64_t low = relayed ? t->node_ptr[a] : t->nic_ptr[from], high = relayed ? t->node_ptr[a + 1] : t->nic_ptr[from + 1];
          if (w->lane_left[lane] == 0) continue;
          for (x = low; x < high; x++) {
            int64_t i = relayed ? t->node_rank[x] : t->nic_rank[x], j, take, here, turn, other, direct = 0;
            int64_t amount = synth_skewed_min(w->row_left[i], w->lane_left[lane]);
            int leading = 1;
            if (amount == 0) continue;
            if (count + ngoals >= w->room) return SYNTH_SKEWED_FULL;
            w->row_left[i] -= amount, w->lane_left[lane] -= amount;
            for (y = t->nic_ptr[into]; y < t->nic_ptr[into + 1]; y++) direct += w->left[i * k + t->nic_rank[y]];
            direct = synth_skewed_min(direct, amount), other = amount - direct;
            turn = w->first[i], y = (i + 1 + turn) % ngoals;
            while (other > 0) {
              j = t->node_rank[goals + y], turn++, y = y + 1 < ngoals ? y + 1 : 0;
              here = w->left[i * k + j];
              if (here > 0 && t->nic_of[j] != into) {
                take = synth_skewed_min(here, other);
                w->piece_source[count] = (uint32_t)i, w->piece_goal[count] = (uint32_t)j;
                w->piece_lane[count] = (uint32_t)lane, w->piece_bytes[count++] = take;
                w->left[i * k + j] = here - take, other -= take, here -= take;
              }
              leading = leading && here == 0;
              if (leading) w->first[i] = turn;
            }
            for (y = t->nic_ptr[into]; y < t->nic_ptr[into + 1]; y++) {
              j = t->nic_rank[y], take = synth_skewed_min(w->left[i * k + j], direct);
              if (take <= 0) continue;
              w->piece_source[count] = (uint32_t)i, w->piece_goal[count] = (uint32_t)j;
              w->piece_lane[count] = (uint32_t)lane, w->piece_bytes[count++] = take;
              w->left[i * k + j] -= take, direct -= take;
            }
          }
        }
    }
  return count;
}

static inline void synth_skewed_segments(int64_t flows, int64_t segments, struct synth_skewed_work *w) {
  int64_t f, s, total = 0;
  memset(w->seg_ptr, 0, (size_t)(flows + 1) * 8);
  for (s = 0; s < segments; s++) w->seg_ptr[w->seg_flow[s]]++;
  for (f = 0; f < flows; f++) total += w->seg_ptr[f], w->seg_ptr[f] = total;
  w->seg_ptr[flows] = total;
  for (s = segments - 1; s >= 0; s--) {
    int64_t to = --w->seg_ptr[w->seg_flow[s]];
    w->flow_begin[to] = w->seg_begin[s], w->flow_end[to] = w->seg_end[s];
  }
}

static inline void synth_skewed_row(struct synth_skewed_work *w, uint32_t link, uint32_t step, double key) {
  w->row_chunk[w->rows] = (uint32_t)w->chunks, w->row_link[w->rows] = link, w->row_step[w->rows] = step;
  w->row_key[w->rows++] = key;
}

/* Cut the pieces of all lanes, and add the sends of every chunk; 0, or SYNTH_SKEWED_FULL. */
static inline int synth_skewed_cut(const struct synth_skewed *t, int64_t span, int64_t pieces, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, lanes = t->head->lanes, port, lane, piece;
  double tick_us = t->head->tick_us;
  int64_t finest = synth_skewed_max(synth_skewed_max(span / 96, (int64_t)(4.0 / tick_us)), 1);
  for (port = 0; port < 2 * k; port++) {
    int busy = (double)w->rank[port] * t->rank_us[port] > 0.6 * (double)span * tick_us;
    w->port_us[port] = 0.0, w->longest[port] = synth_skewed_max(finest, span / (busy ? 48 : 16));
  }
  for (lane = 0; lane < lanes; lane++) {
    int64_t seg = w->seg_ptr[t->lane_flow[lane]];
    w->lane_seg[lane] = seg, w->lane_at[lane] = seg < w->seg_ptr[t->lane_flow[lane] + 1] ? w->flow_begin[seg] : 0;
  }
  for (piece = 0; piece < pieces; piece++) {
    int64_t i = w->piece_source[piece], j = w->piece_goal[piece], remaining = w->piece_bytes[piece];
    uint32_t step, relay, link;
    int64_t source, goal, last, at, seg, offset;
    double ticks, per_tick;
    lane = w->piece_lane[piece], ticks = t->lane_ticks[lane], per_tick = 1.0 / ticks;
    source = t->nic_of[i] == t->lane_from[lane] ? i : (int64_t)t->lane_source[lane];
    goal = t->nic_of[j] == t->lane_to[lane] ? j : (int64_t)t->lane_goal[lane];
    link = t->between[source * k + goal], last = w->seg_ptr[t->lane_flow[lane] + 1] - 1;
    at = w->lane_at[lane], seg = w->lane_seg[lane], offset = w->sent[i * k + j];
    while (remaining > 0) {
      int64_t bytes = remaining;
      double starts;
      if (seg < last) {
        int64_t room = (int64_t)((double)(w->flow_end[seg] - at) * per_tick);
        if (room == 0) {
          at = w->flow_begin[++seg];
          continue;
        }
        bytes = synth_skewed_min(bytes, room);
      }
      if (source != i)
        bytes = synth_skewed_min(bytes, (int64_t)((double)synth_skewed_min(w->longest[i], synth_skewed_max(finest, at / 2)) * per_tick) + 1);
      if (goal != j) {
        int64_t rest = span - at;
        rest = rest > 0 ? rest / 2 : 0;
        bytes = synth_skewed_min(bytes, (int64_t)((double)synth_skewed_min(w->longest[k + j], synth_skewed_max(finest, rest)) * per_tick) + 1);
      }
      if (w->chunks == w->room || w->rows >= w->most_rows - 3) return SYNTH_SKEWED_FULL;
      synth_skewed_chunk(w, 0, i, j, offset, bytes);
      offset += bytes, remaining -= bytes;
      starts = (double)at * tick_us, step = 0;
      at += (int64_t)((double)bytes * ticks);
      if (source != i) {
        relay = t->between[i * k + source];
        w->port_us[i] += (double)bytes * t->link_us[relay], w->port_us[k + source] += (double)bytes * t->link_us[relay];
        synth_skewed_row(w, relay, step++, starts * 0.5);
      }
      synth_skewed_row(w, link, step, starts);
      if (goal != j) {
        relay = t->between[goal * k + j];
        w->port_us[goal] += (double)bytes * t->link_us[relay], w->port_us[k + j] += (double)bytes * t->link_us[relay];
        synth_skewed_row(w, relay, step + 1, (double)at * tick_us + t->alpha[link]);
      }
      w->chunks++;
    }
    w->lane_at[lane] = at, w->lane_seg[lane] = seg, w->sent[i * k + j] = offset;
  }
  return 0;
}

/* Add the sends inside one node; 0, or SYNTH_SKEWED_FULL. */
static inline int synth_skewed_inner(const struct synth_skewed *t, const int64_t *size, int64_t node, double outer_us, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, base = t->node_ptr[node], members = t->node_ptr[node + 1] - base, x, y, s;
  int64_t total = 0, count = 0, most = synth_skewed_min(w->room - w->chunks, w->most_rows - 3 - w->rows);
  int has_ports = t->head->has_ports != 0, side;
  double byte_us = 0.0;
  for (x = 0; x < members; x++) {
    int64_t i = t->node_rank[base + x];
    for (side = 0; side < 2; side++) {
      int64_t port = side * k + i;
      double busy = outer_us > 0.0 && has_ports ? w->port_us[port] / outer_us : 0.0;
      w->filled[port] = 0.0, w->port_us[port] = 1.0 / (1.0 - (busy < 0.95 ? busy : 0.95));
    }
    for (y = 0; y < members; y++) {
      int64_t j = t->node_rank[base + y], bytes = x != y ? size[i * k + j] : 0;
      w->cell[x * members + y] = bytes;
      if (bytes > 0) total += bytes, byte_us = synth_skewed_later(byte_us, t->link_us[t->between[i * k + j]]);
    }
  }
  if (total == 0) return 0;
  if (has_ports && (double)synth_skewed_line(w->cell, members) * byte_us > 0.3 * outer_us) {
    count = synth_skewed_rounds(w->cell, members, 0, 0, w);
    if (count == SYNTH_SKEWED_FULL) return SYNTH_SKEWED_FULL;
  } else {
    for (y = 1; y < members; y++)
      for (x = 0; x < members; x++) {
        int64_t flow = x * members + (x + y) % members;
        if (w->cell[flow] > 0) w->seg_flow[count] = flow, w->seg_begin[count] = 0, w->seg_end[count++] = w->cell[flow];
      }
  }
  for (s = 0; s < count; s++) {
    int64_t row = w->seg_flow[s] / members, i = t->node_rank[base + row], j = t->node_rank[base + w->seg_flow[s] - row * members];
    int64_t bytes = w->seg_end[s] - w->seg_begin[s], block = i * k + j, parts = 1, begin = 0, share;
    uint32_t link = t->between[block];
    if (outer_us > 0.0) {
      double exact = (double)bytes * t->link_us[link] * 24 / outer_us;
      parts = synth_skewed_min(exact < 48.0 ? 1 + (int64_t)exact : 48, bytes);
      parts = synth_skewed_min(parts, 48);
    }
    if (parts > most) return SYNTH_SKEWED_FULL;
    most -= parts, share = parts == 1 ? bytes : bytes / parts + 1;
    while (begin < bytes) {
      int64_t end = synth_skewed_min(bytes, begin + share);
      double key = (double)(w->seg_begin[s] + begin) * byte_us;
      synth_skewed_chunk(w, 0, i, j, w->sent[block], end - begin);
      w->sent[block] += end - begin;
      if (has_ports) {
        key = synth_skewed_later(key, synth_skewed_later(w->filled[i], w->filled[k + j]));
        w->filled[i] = key + (double)(end - begin) * t->link_us[link] * w->port_us[i];
        w->filled[k + j] = key + (double)(end - begin) * t->link_us[link] * w->port_us[k + j];
      }
      synth_skewed_row(w, link, 0, key);
      begin = end, w->chunks++;
    }
  }
  return 0;
}

/* Add the sends of whole blocks on straight paths. */
static inline void synth_skewed_straight(const struct synth_skewed *t, const int64_t *size, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, n = t->head->nodes, i, turn;
  memset(w->port_us, 0, (size_t)(2 * k) * 8);
  for (turn = 1; turn < k; turn++)
    for (i = 0; i < k; i++) {
      int64_t j = (i + turn) % k, bytes = size[i * k + j], stops[4], hop;
      uint32_t step = 0;
      double at = 0.0;
      if (bytes == 0) continue;
      synth_skewed_chunk(w, 1, i, j, 0, bytes);
      stops[0] = stops[1] = i, stops[2] = stops[3] = j;
      if (t->between[i * k + j] == SYNTH_SKEWED_NO_LINK) {
        stops[1] = t->leaves[i * n + t->node_of[j]];
        if (t->between[stops[1] * k + j] == SYNTH_SKEWED_NO_LINK) stops[2] = t->enters[i * n + t->node_of[j]];
      }
      for (hop = 0; hop < 3; hop++) {
        int64_t source = stops[hop], goal = stops[hop + 1], port;
        uint32_t link;
        double starts;
        if (source == goal) continue;
        link = t->between[source * k + goal], port = t->node_of[source] == t->node_of[goal] ? source : k + source;
        starts = synth_skewed_later(at, w->port_us[port]);
        synth_skewed_row(w, link, step++, starts);
        w->port_us[port] = starts + (double)bytes * t->link_us[link], at = w->port_us[port] + t->alpha[link];
      }
      w->chunks++;
    }
}

/* Sort the rows by key, time them, and set the sends; return when the last chunk has arrived. */
static inline double synth_skewed_times(const struct synth_skewed *t, int which, struct synth_skewed_work *w) {
  int64_t rows = w->rows, row, x, y, b;
  uint32_t total = 0;
  double most = 0.0, scale, last = 0.0;
  for (row = 0; row < rows; row++) most = synth_skewed_later(most, w->row_key[row]);
  scale = most > 0.0 ? (double)(w->buckets - 1) / most : 0.0;
  memset(w->bucket_ptr, 0, (size_t)w->buckets * 4);
  for (row = 0; row < rows; row++) w->bucket_ptr[w->row_bucket[row] = (uint32_t)(w->row_key[row] * scale)]++;
  for (b = 0; b < w->buckets; b++) {
    uint32_t count = w->bucket_ptr[b];
    w->bucket_ptr[b] = total, total += count;
  }
  for (row = 0; row < rows; row++) {
    x = w->bucket_ptr[w->row_bucket[row]]++;
    w->order[x] = (uint32_t)row, w->sorted_key[x] = w->row_key[row];
  }
  for (x = 1; x < rows; x++) {
    double key = w->sorted_key[x];
    uint32_t moved = w->order[x];
    for (y = x; y > 0 && w->sorted_key[y - 1] > key; y--)
      w->sorted_key[y] = w->sorted_key[y - 1], w->order[y] = w->order[y - 1];
    w->sorted_key[y] = key, w->order[y] = moved;
  }
  for (x = 0; x < w->chunks; x++) w->ready[x] = t->head->start_us;
  memset(w->release, 0, (size_t)t->head->resources * 8);
  for (x = 0; x < rows; x++) {
    uint32_t at = w->order[x], chunk = w->row_chunk[at], link = w->row_link[at];
    uint32_t first = t->first_port[link], second = t->last_port[link];
    double start = synth_skewed_later(w->ready[chunk], synth_skewed_later(w->release[first], w->release[second]));
    double end = start + (double)w->chunk_bytes[which][chunk] * t->link_us[link];
    w->release[first] = w->release[second] = end + t->gap[link];
    w->ready[chunk] = end + t->alpha[link], last = synth_skewed_later(last, w->ready[chunk]);
    w->send_chunk[which][x] = chunk, w->send_link[which][x] = link, w->send_step[which][x] = w->row_step[at];
    w->send_start[which][x] = start;
  }
  return last;
}

/* Plan sizes whose loads are set; 0 or SYNTH_SKEWED_FULL. */
static inline int synth_skewed_plan_nodes(const struct synth_skewed *t, const int64_t *sizes, struct synth_skewed_work *w, struct synth_skewed_plan *plan) {
  int64_t k = t->head->positions, n = t->head->nodes, span = 0, node, port, b;
  double limit = 0.0;
  plan->bound_us = synth_skewed_bound(t, sizes, w);
  memcpy(w->left, sizes, (size_t)(k * k) * 8);
  memset(w->sent, 0, (size_t)(k * k) * 8);
  if (n > 1) {
    int64_t pieces, part, segments = 0;
    memset(w->cell, 0, (size_t)t->head->cells * 8);
    pieces = synth_skewed_split(t, w);
    if (pieces == SYNTH_SKEWED_FULL) return SYNTH_SKEWED_FULL;
    for (part = 0; part < (int64_t)t->head->parts; part++) {
      const int64_t *cell = w->cell + t->part_base[part];
      span = synth_skewed_max(span, synth_skewed_line(cell, t->part_ports[part]));
      segments = synth_skewed_rounds(cell, t->part_ports[part], t->part_base[part], segments, w);
      if (segments == SYNTH_SKEWED_FULL) return SYNTH_SKEWED_FULL;
    }
    synth_skewed_segments(t->head->cells, segments, w);
    if (synth_skewed_cut(t, span, pieces, w)) return SYNTH_SKEWED_FULL;
  }
  for (node = 0; node < n; node++)
    if (synth_skewed_inner(t, sizes, node, (double)span * t->head->tick_us, w)) return SYNTH_SKEWED_FULL;
  synth_skewed_set(0, synth_skewed_times(t, 0, w), w, plan);
  memset(w->port_us, 0, (size_t)(2 * k) * 8);
  for (port = 0; port < k; port++)
    for (b = 0; b < n; b++) {
      int64_t at = port * n + b;
      if (w->to_node[at] == 0) continue;
      w->port_us[t->leaves[at]] += (double)w->to_node[at] * t->straight_us[at];
      w->port_us[k + t->enters[at]] += (double)w->to_node[at] * t->straight_us[k * n + at];
    }
  for (port = 0; port < 2 * k; port++) limit = synth_skewed_later(limit, w->port_us[port]);
  if (plan->time_us > synth_skewed_later(t->head->start_us + limit, plan->bound_us * (1 + 1e-9))) {
    double time_us;
    w->chunks = w->rows = 0;
    synth_skewed_straight(t, sizes, w);
    time_us = synth_skewed_times(t, 1, w);
    if (time_us <= plan->time_us) synth_skewed_set(1, time_us, w, plan);
  }
  return 0;
}

#endif
