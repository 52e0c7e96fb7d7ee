/* The planner of groups of any network, whose chunks take paths that share the links; see
 * `synth.engines.skewed.routes.routing`.
 *
 * It is a part of synth_skewed.h, which includes it.
 */
#ifndef SYNTH_SKEWED_ROUTED_H
#define SYNTH_SKEWED_ROUTED_H

#define SYNTH_SKEWED_MOST_ROUTED 128 /* positions: distances take k^3 steps, some twenty times a plan */
#define SYNTH_SKEWED_FAR 1e300
#define SYNTH_SKEWED_MOST_CHUNKS 512 /* of a block */
#define SYNTH_SKEWED_PARTS_OF_ONE 17592186044416.0 /* 2^44: parts count in units of 1 / 2^44, so that sums are exact */

/* Lay the columns of a table out, in their order; see synth_skewed_columns. */
static inline void synth_skewed_routed_columns(struct synth_skewed *t, struct synth_skewed_cursor *c) {
  const struct synth_skewed_head *h = t->head;
  uint64_t k = h->positions, n = h->nodes, links = h->links, uses = h->uses, paths = h->paths;
  t->uses_ptr = SYNTH_SKEWED_INTS(links + 1), t->users_ptr = SYNTH_SKEWED_INTS((uint64_t)h->resources + 1);
  t->path_ptr = SYNTH_SKEWED_INTS(k * k + 1);
  t->rank_us = SYNTH_SKEWED_REALS(2 * k), t->rank_alpha_us = SYNTH_SKEWED_REALS(2 * k);
  t->node_us = SYNTH_SKEWED_REALS(2 * n), t->node_alpha_us = SYNTH_SKEWED_REALS(2 * n);
  t->least_us = SYNTH_SKEWED_REALS(k * k);
  t->alpha = SYNTH_SKEWED_REALS(links), t->link_us = SYNTH_SKEWED_REALS(links), t->gap = SYNTH_SKEWED_REALS(links);
  t->part = SYNTH_SKEWED_REALS(uses), t->busy_us = SYNTH_SKEWED_REALS(uses);
  t->node_of = SYNTH_SKEWED_WORDS(k), t->src = SYNTH_SKEWED_WORDS(links), t->dst = SYNTH_SKEWED_WORDS(links);
  t->uses = SYNTH_SKEWED_WORDS(uses), t->users = SYNTH_SKEWED_WORDS(uses);
  t->path_hops = SYNTH_SKEWED_WORDS(paths), t->path_link = SYNTH_SKEWED_WORDS(paths * h->width);
}

/* Return why links and resources do not name each other, NULL where they do. */
static inline const char *synth_skewed_uses_error(const struct synth_skewed *t) {
  int64_t links = t->head->links, resources = t->head->resources, link, resource, at, user;
  for (link = 0; link < links; link++) {
    if (t->uses_ptr[link] == t->uses_ptr[link + 1]) return "has a link that uses nothing";
    for (at = t->uses_ptr[link]; at < t->uses_ptr[link + 1]; at++) {
      double units = t->part[at] * SYNTH_SKEWED_PARTS_OF_ONE;
      if (!(units >= 1.0 && units <= SYNTH_SKEWED_PARTS_OF_ONE) || units != (double)(int64_t)units)
        return "has a part that is none";
      if (at > t->uses_ptr[link] && t->uses[at] <= t->uses[at - 1]) return "has a link that uses something twice";
    }
  }
  for (resource = 0; resource < resources; resource++)
    for (user = t->users_ptr[resource]; user < t->users_ptr[resource + 1]; user++) {
      int64_t low, high;
      link = t->users[user], low = t->uses_ptr[link], high = t->uses_ptr[link + 1] - 1;
      while (low < high) {
        at = low + (high - low) / 2;
        if (t->uses[at] < resource) low = at + 1;
        else high = at;
      }
      if (t->uses[low] != resource || (user > t->users_ptr[resource] && link <= (int64_t)t->users[user - 1]))
        return "has a user that is none";
    }
  return NULL;
}

/* Return why the columns are no table of a network, NULL where they are one; all counts fit. */
static inline const char *synth_skewed_routed_error(struct synth_skewed *t) {
  const struct synth_skewed_head *h = t->head;
  uint64_t k = h->positions, links = h->links, resources = h->resources, width = h->width, pair, hop;
  const char *error;
  int64_t path;
  if (k > SYNTH_SKEWED_MOST_ROUTED || width < 1 || links < 1 || resources < 1) return "has numbers that are no network's";
  if (synth_skewed_above(t->src, links, k) || synth_skewed_above(t->dst, links, k) ||
      synth_skewed_above(t->uses, h->uses, resources) || synth_skewed_above(t->users, h->uses, links) ||
      synth_skewed_above(t->path_hops, h->paths, width + 1) ||
      synth_skewed_above(t->path_link, (uint64_t)h->paths * width, links))
    return "has an index beyond its end";
  if (synth_skewed_falls(t->uses_ptr, links, h->uses) || synth_skewed_falls(t->users_ptr, resources, h->uses) ||
      synth_skewed_falls(t->path_ptr, k * k, h->paths))
    return "has pointers in no order";
  if (synth_skewed_odd(t->busy_us, h->uses)) return "has a figure that is no time";
  if ((error = synth_skewed_uses_error(t))) return error;
  for (pair = 0; pair < k * k; pair++) {
    if (pair / k != pair % k && t->path_ptr[pair] == t->path_ptr[pair + 1]) return "has two positions without a path";
    for (path = t->path_ptr[pair]; path < t->path_ptr[pair + 1]; path++) {
      const uint32_t *link = t->path_link + (uint64_t)path * width;
      uint64_t at = pair / k;
      for (hop = 0; hop < t->path_hops[path]; hop++) {
        if (t->src[link[hop]] != at) return "has a path that is interrupted";
        at = t->dst[link[hop]];
      }
      if (hop == 0 || at != pair % k) return "has a path to another position";
    }
  }
  t->least_alpha_us = t->alpha[0], t->fastest_us = t->link_us[0];
  for (hop = 1; hop < links; hop++) {
    if (t->alpha[hop] < t->least_alpha_us) t->least_alpha_us = t->alpha[hop];
    if (t->link_us[hop] < t->fastest_us) t->fastest_us = t->link_us[hop];
  }
  return NULL;
}

/* Lay the columns of a workspace out; see synth_skewed_lay. */
static inline void synth_skewed_routed_lay(const struct synth_skewed *t, struct synth_skewed_work *w, struct synth_skewed_cursor *c) {
  uint64_t cells = (uint64_t)t->head->positions * t->head->positions, links = t->head->links, width = t->head->width;
  uint64_t r = (uint64_t)w->room, resources = t->head->resources, straight = cells * width;
  uint64_t sends = r * (width < 8 ? width : 8), most = sends > straight ? sends : straight;
  w->most_sends = (int64_t)sends;
  w->queue_ptr = SYNTH_SKEWED_INTS(links + 1);
  w->load = SYNTH_SKEWED_REALS(resources), w->cost = SYNTH_SKEWED_REALS(resources);
  w->used = SYNTH_SKEWED_REALS(resources), w->price = SYNTH_SKEWED_REALS(links), w->dist = SYNTH_SKEWED_REALS(cells);
  w->queue_key = SYNTH_SKEWED_REALS(most), w->event_us = SYNTH_SKEWED_REALS(r + links);
  w->done = SYNTH_SKEWED_WORDS(r), w->routes = SYNTH_SKEWED_WORDS(r);
  w->queue_chunk = SYNTH_SKEWED_WORDS(most), w->queue_count = SYNTH_SKEWED_WORDS(links);
  w->is_busy = SYNTH_SKEWED_WORDS(links), w->touched = SYNTH_SKEWED_WORDS(links);
  w->is_touched = SYNTH_SKEWED_WORDS(links), w->event = SYNTH_SKEWED_WORDS(r + links);
  synth_skewed_lay_plan(w, 0, r, sends, c);
  synth_skewed_lay_plan(w, 1, cells, straight, c);
}

/* What it costs to keep a resource busy for a microsecond. */
static inline double synth_skewed_cost(double load, double top) {
  double part = top > 0.0 ? load / top : 1.0;
  part *= part, part *= part, part *= part, part *= part;
  return 1e-3 + part;
}

/* Set the costs of all resources by their loads; return their sum. */
static inline double synth_skewed_costs(const struct synth_skewed *t, double top, struct synth_skewed_work *w) {
  int64_t resource;
  double total = 0.0;
  for (resource = 0; resource < (int64_t)t->head->resources; resource++)
    total += w->cost[resource] = synth_skewed_cost(w->load[resource], top);
  return total;
}

/* Set the least sum of prices from position to position, where prices follow the costs. */
static inline void synth_skewed_distances(const struct synth_skewed *t, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, links = t->head->links, link, cell, at, via, i, j;
  for (cell = 0; cell < k * k; cell++) w->dist[cell] = SYNTH_SKEWED_FAR;
  for (i = 0; i < k; i++) w->dist[i * k + i] = 0.0;
  for (link = 0; link < links; link++) {
    double price = 0.0;
    for (at = t->uses_ptr[link]; at < t->uses_ptr[link + 1]; at++) price += t->busy_us[at] * w->cost[t->uses[at]];
    cell = (int64_t)t->src[link] * k + t->dst[link];
    if (price < w->dist[cell]) w->dist[cell] = price;
  }
  for (via = 0; via < k; via++)
    for (i = 0; i < k; i++) {
      double begin = w->dist[i * k + via];
      if (begin >= SYNTH_SKEWED_FAR) continue;
      for (j = 0; j < k; j++) {
        double length = begin + w->dist[via * k + j];
        if (length < w->dist[i * k + j]) w->dist[i * k + j] = length;
      }
    }
}

/* Return the time in microseconds that all blocks need by the costs, with the start and the least alpha. */
static inline double synth_skewed_volume_bound(const struct synth_skewed *t, const int64_t *size, double top, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, i, j;
  double total = synth_skewed_costs(t, top, w), paid = 0.0;
  synth_skewed_distances(t, w);
  for (i = 0; i < k; i++)
    for (j = 0; j < k; j++)
      if (i != j && size[i * k + j] > 0) paid += (double)size[i * k + j] * w->dist[i * k + j];
  return t->head->start_us + paid / total + t->least_alpha_us;
}

/* Add bytes, which may be negative, to the loads on a path, and set their costs anew. */
static inline void synth_skewed_add_load(const struct synth_skewed *t, uint32_t route, double bytes, double top, struct synth_skewed_work *w) {
  const uint32_t *path = t->path_link + (uint64_t)route * t->head->width;
  uint32_t hop;
  int64_t at;
  for (hop = 0; hop < t->path_hops[route]; hop++)
    for (at = t->uses_ptr[path[hop]]; at < t->uses_ptr[path[hop] + 1]; at++) {
      uint32_t resource = t->uses[at];
      w->load[resource] += bytes * t->busy_us[at];
      w->cost[resource] = synth_skewed_cost(w->load[resource], top);
    }
}

/* Return the price of a byte on a path, or that on its first links if this is `most` or more. */
static inline double synth_skewed_path_price(const struct synth_skewed *t, uint32_t route, double most, const struct synth_skewed_work *w) {
  const uint32_t *path = t->path_link + (uint64_t)route * t->head->width;
  uint32_t hop;
  int64_t at;
  double price = 0.0;
  for (hop = 0; hop < t->path_hops[route] && !(price >= most); hop++)
    for (at = t->uses_ptr[path[hop]]; at < t->uses_ptr[path[hop] + 1]; at++)
      price += t->busy_us[at] * w->cost[t->uses[at]];
  return price;
}

/* Return the cheapest path of a block if it is cheaper than `route`, by the present costs; else `route`. */
static inline uint32_t synth_skewed_cheapest(const struct synth_skewed *t, uint32_t route, int64_t block, const struct synth_skewed_work *w) {
  double best = synth_skewed_path_price(t, route, SYNTH_SKEWED_FAR, w);
  int64_t candidate;
  for (candidate = t->path_ptr[block]; candidate < t->path_ptr[block + 1]; candidate++) {
    double price = synth_skewed_path_price(t, (uint32_t)candidate, best, w);
    if (price < best) best = price, route = (uint32_t)candidate;
  }
  return route;
}

/* Add an item to a heap; the item of the least key, then number, is its first. */
static inline void synth_skewed_push(double *key, uint32_t *item, int64_t count, double new_key, uint32_t new_item) {
  int64_t at = count;
  while (at > 0) {
    int64_t parent = (at - 1) / 2;
    if (key[parent] < new_key || (key[parent] == new_key && item[parent] < new_item)) break;
    key[at] = key[parent], item[at] = item[parent], at = parent;
  }
  key[at] = new_key, item[at] = new_item;
}

/* Take the first item out of a heap of `count` items. */
static inline void synth_skewed_pop(double *key, uint32_t *item, int64_t count) {
  int64_t at = 0, below = count - 1, child;
  double moved_key = key[below];
  uint32_t moved = item[below];
  while ((child = 2 * at + 1) < below) {
    if (child + 1 < below && (key[child + 1] < key[child] || (key[child + 1] == key[child] && item[child + 1] < item[child])))
      child++;
    if (moved_key < key[child] || (moved_key == key[child] && moved < item[child])) break;
    key[at] = key[child], item[at] = item[child], at = child;
  }
  key[at] = moved_key, item[at] = moved;
}

/* Add a link to those that may start, unless it is among them; return their number. */
static inline int64_t synth_skewed_touch(struct synth_skewed_work *w, int64_t count, uint32_t link) {
  if (w->is_touched[link]) return count;
  w->is_touched[link] = 1, w->touched[count] = link;
  return count + 1;
}

/* Let a link serve the first chunk that waits for it, if it can start; return the number of events. */
static inline int64_t synth_skewed_start(const struct synth_skewed *t, int which, double now, uint32_t link, int64_t events, double *last, struct synth_skewed_work *w) {
  int64_t at, first = t->uses_ptr[link], end = t->uses_ptr[link + 1], row = w->rows, queue = w->queue_ptr[link];
  uint32_t chunk;
  double leaves, arrives;
  if (w->queue_count[link] == 0 || w->is_busy[link]) return events;
  for (at = first; at < end; at++)
    if (!(w->used[t->uses[at]] + t->part[at] <= 1 + 1e-12)) return events;
  chunk = w->queue_chunk[queue];
  synth_skewed_pop(w->queue_key + queue, w->queue_chunk + queue, w->queue_count[link]--);
  w->is_busy[link] = 1;
  for (at = first; at < end; at++) w->used[t->uses[at]] += t->part[at];
  w->send_chunk[which][row] = chunk, w->send_link[which][row] = link, w->send_step[which][row] = w->done[chunk];
  w->send_start[which][row] = now, w->rows++;
  leaves = now + (double)w->chunk_bytes[which][chunk] * t->link_us[link], arrives = leaves + t->alpha[link];
  synth_skewed_push(w->event_us, w->event, events++, leaves + t->gap[link], (uint32_t)w->chunks + link);
  if (++w->done[chunk] < t->path_hops[w->routes[chunk]]) synth_skewed_push(w->event_us, w->event, events++, arrives, chunk);
  else *last = synth_skewed_later(*last, arrives);
  return events;
}

/* Let links serve the chunks that wait for them, and set the sends; return when the last chunk has arrived. */
static inline double synth_skewed_serve(const struct synth_skewed *t, int which, struct synth_skewed_work *w) {
  int64_t links = t->head->links, width = t->head->width, events = 0, c, at, user, count, link;
  double last = t->head->start_us, now;
  uint32_t hop;
  memset(w->queue_ptr, 0, (size_t)(links + 1) * sizeof *w->queue_ptr);
  memset(w->queue_count, 0, (size_t)links * sizeof *w->queue_count);
  memset(w->is_busy, 0, (size_t)links * sizeof *w->is_busy);
  memset(w->is_touched, 0, (size_t)links * sizeof *w->is_touched);
  for (at = 0; at < (int64_t)t->head->resources; at++) w->used[at] = 0.0;
  w->rows = 0;
  for (c = 0; c < w->chunks; c++)
    for (hop = 0; hop < t->path_hops[w->routes[c]]; hop++) w->queue_ptr[t->path_link[w->routes[c] * width + hop] + 1]++;
  for (link = 0; link < links; link++) w->queue_ptr[link + 1] += w->queue_ptr[link];
  for (c = 0; c < w->chunks; c++) w->done[c] = 0, synth_skewed_push(w->event_us, w->event, events++, last, (uint32_t)c);
  while (events > 0) {
    now = w->event_us[0], count = 0;
    while (events > 0 && w->event_us[0] == now) {
      int64_t which_event = w->event[0], ended = which_event - w->chunks;
      synth_skewed_pop(w->event_us, w->event, events--);
      if (ended < 0) { /* a chunk has arrived, and waits for its next link */
        const uint32_t *path = t->path_link + w->routes[which_event] * width;
        double ahead = 0.0;
        hop = w->done[which_event], link = path[hop];
        while (++hop < t->path_hops[w->routes[which_event]])
          for (at = t->uses_ptr[path[hop]]; at < t->uses_ptr[path[hop] + 1]; at++) ahead += w->load[t->uses[at]];
        at = w->queue_ptr[link];
        synth_skewed_push(w->queue_key + at, w->queue_chunk + at, w->queue_count[link]++, -ahead, (uint32_t)which_event);
        count = synth_skewed_touch(w, count, (uint32_t)link);
        continue;
      }
      w->is_busy[ended] = 0;
      for (at = t->uses_ptr[ended]; at < t->uses_ptr[ended + 1]; at++) {
        uint32_t resource = t->uses[at];
        w->used[resource] -= t->part[at];
        for (user = t->users_ptr[resource]; user < t->users_ptr[resource + 1]; user++)
          if (w->queue_count[t->users[user]] > 0) count = synth_skewed_touch(w, count, t->users[user]);
      }
    }
    for (at = 0; at < count; at++) {
      w->is_touched[w->touched[at]] = 0;
      events = synth_skewed_start(t, which, now, w->touched[at], events, &last, w);
    }
  }
  return last;
}

/* Cut the blocks into chunks and let these take paths, a part of each block in every round; 0 or SYNTH_SKEWED_FULL. */
static inline int synth_skewed_place(const struct synth_skewed *t, const int64_t *size, double span, double *top, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, turn, behind, i, j;
  double longest = synth_skewed_later(span / 48, 1.0) / t->fastest_us;
  for (turn = 0; turn < 8; turn++) {
    *top = synth_skewed_later(*top, span * (double)(turn + 1) / 8);
    synth_skewed_costs(t, *top, w);
    for (behind = 1; behind < k; behind++)
      for (i = 0; i < k; i++) {
        int64_t bytes, count, number, end;
        uint32_t route;
        double exact;
        j = (i + behind) % k, bytes = size[i * k + j];
        if (bytes == 0) continue;
        exact = (double)bytes / longest;
        count = exact < SYNTH_SKEWED_MOST_CHUNKS - 1 ? 1 + (int64_t)exact : SYNTH_SKEWED_MOST_CHUNKS;
        count = synth_skewed_min(count, bytes), end = ((turn + 1) * count - 1) / 8 + 1;
        for (number = (turn * count + 7) / 8; number < end; number++) {
          int64_t larger = bytes % count, part = bytes / count;
          if (w->chunks == w->room) return SYNTH_SKEWED_FULL;
          synth_skewed_chunk(w, 0, i, j, part * number + synth_skewed_min(number, larger), part + (number < larger));
          route = synth_skewed_cheapest(t, (uint32_t)t->path_ptr[i * k + j], i * k + j, w);
          synth_skewed_add_load(t, route, (double)(part + (number < larger)), *top, w);
          w->routes[w->chunks++] = route;
        }
      }
  }
  return 0;
}

/* Plan sizes whose loads are set; 0 or SYNTH_SKEWED_FULL. */
static inline int synth_skewed_plan_routed(const struct synth_skewed *t, const int64_t *sizes, struct synth_skewed_work *w, struct synth_skewed_plan *plan) {
  int64_t k = t->head->positions, resources = t->head->resources, c, at, sweep, i, j, behind, rows = 0, stale = 0, moved;
  double best = synth_skewed_bound(t, sizes, w), top = 0.0, least_top = SYNTH_SKEWED_FAR, time_us;
  for (at = 0; at < resources; at++) w->load[at] = 0.0;
  best = synth_skewed_later(best, synth_skewed_volume_bound(t, sizes, 0.0, w));
  if (synth_skewed_place(t, sizes, best - t->head->start_us, &top, w)) return SYNTH_SKEWED_FULL;
  for (sweep = 0; sweep < 16; sweep++) {
    top = 0.0;
    for (at = 0; at < resources; at++) top = synth_skewed_later(top, w->load[at]);
    best = synth_skewed_later(best, synth_skewed_volume_bound(t, sizes, top, w));
    stale = top < least_top * 0.999 ? 0 : stale + 1;
    if (top < least_top) least_top = top;
    if (top <= (best - t->head->start_us) * 1.002 || stale == 3) break;
    moved = 0;
    for (c = 0; c < w->chunks; c++) {
      double bytes = (double)w->chunk_bytes[0][c];
      uint32_t before = w->routes[c];
      synth_skewed_add_load(t, before, -bytes, top, w);
      w->routes[c] = synth_skewed_cheapest(t, before, (int64_t)w->chunk_source[0][c] * k + w->chunk_goal[0][c], w);
      synth_skewed_add_load(t, w->routes[c], bytes, top, w);
      moved += w->routes[c] != before;
    }
    if (!moved) break;
  }
  for (c = 0; c < w->chunks; c++) rows += t->path_hops[w->routes[c]];
  if (rows > w->most_sends) return SYNTH_SKEWED_FULL;
  plan->bound_us = best;
  synth_skewed_set(0, synth_skewed_serve(t, 0, w), w, plan);
  if (plan->time_us <= best * (1 + 1e-9)) return 0;
  w->chunks = 0;
  for (at = 0; at < resources; at++) w->load[at] = 0.0;
  for (behind = 1; behind < k; behind++)
    for (i = 0; i < k; i++) {
      j = (i + behind) % k;
      if (sizes[i * k + j] == 0) continue;
      synth_skewed_chunk(w, 1, i, j, 0, sizes[i * k + j]);
      w->routes[w->chunks] = (uint32_t)t->path_ptr[i * k + j];
      synth_skewed_add_load(t, w->routes[w->chunks++], (double)sizes[i * k + j], top, w);
    }
  time_us = synth_skewed_serve(t, 1, w);
  if (time_us <= plan->time_us) synth_skewed_set(1, time_us, w, plan);
  return 0;
}

#endif
