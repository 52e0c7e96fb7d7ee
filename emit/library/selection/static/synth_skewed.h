/* Plans for all-to-alls whose sizes change at every step (mixtures of experts): a planner for C99 and C++11.
 *
 * It takes the steps of `synth.engines.skewed`, which explains them, and makes the same plans. The table of a process
 * group (`skewed.table`) is written beforehand by `synth topo planner`. The file is made to be mapped and asked in
 * place; nothing is allocated. All numbers are little-endian, all columns begin at multiples of 8 bytes.
 *
 *   struct synth_skewed t;
 *   if (synth_skewed_open(&t, file, bytes)) ...                 once a process group; else the reason in words
 *   int64_t room = synth_skewed_room(&t);                       chunks of a plan; more if a plan says SYNTH_SKEWED_FULL
 *   void *work = malloc(synth_skewed_work_bytes(&t, room));     once; at a multiple of 8 bytes, for one thread
 *   struct synth_skewed_plan plan;
 *   if (synth_skewed_plan_sizes(&t, sizes, room, work, &plan)) ...   at every step
 *   for (int64_t i = 0; i < plan.sends; i++) ...                sends in order of priority
 *
 * The file is not trusted: synth_skewed_open checks all that the functions here go by. Positions are places in the
 * process group, 0 to k - 1. A block is what a position sends to a position. Where floating point contracts a product
 * and a sum into one operation, times and cuts may differ from Python's in the last digits; ISO C on x86 does not.
 */
#ifndef SYNTH_SKEWED_H
#define SYNTH_SKEWED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SYNTH_SKEWED_VERSION 1
#define SYNTH_SKEWED_ORDER 0x01020304u
#define SYNTH_SKEWED_NO_LINK UINT32_MAX
#define SYNTH_SKEWED_MOST_BYTES ((int64_t)1 << 36) /* of a block */
#define SYNTH_SKEWED_FULL (-1) /* the plan has more than `room` chunks */
#define SYNTH_SKEWED_BAD (-2)  /* a size is negative or too large */

struct synth_skewed_head { /* 96 bytes */
  char magic[8];           /* "SYNTHSKW" */
  uint32_t version;        /* 1 */
  uint32_t byte_order;     /* SYNTH_SKEWED_ORDER, unless this machine is big-endian */
  uint64_t file_bytes;
  uint32_t positions, nodes, nics, lanes, links, resources, parts, cells;
  uint32_t has_ports;      /* whether links inside nodes share ports */
  uint32_t zero;
  double tick_us, start_us;
  uint64_t reserved[2];
};

struct synth_skewed { /* a table that was checked; the columns stand in the file in this order */
  const struct synth_skewed_head *head;
  const int64_t *node_ptr, *nic_ptr, *lane_ptr, *part_ports, *part_base;
  const double *lane_end, *lane_ticks, *rank_us, *rank_alpha_us, *node_us, *node_alpha_us, *least_us, *straight_us;
  const double *alpha, *link_us, *gap;
  const uint32_t *node_of, *node_rank, *nic_of, *nic_rank, *between, *lane_from, *lane_to, *lane_source, *lane_goal;
  const uint32_t *lane_flow, *exit, *entry, *first_port, *last_port;
};

struct synth_skewed_plan {                       /* columns in the workspace, until the next plan */
  int64_t chunks, sends;
  const uint32_t *chunk_source, *chunk_goal;     /* positions */
  const int64_t *chunk_offset, *chunk_bytes;     /* in the block from source to goal */
  const uint32_t *send_chunk, *send_link, *send_step; /* link of the network; sends of the chunk before it */
  const double *send_start;                      /* µs */
  double time_us, bound_us;                      /* until all has arrived; that no schedule can beat */
  int is_straight;                               /* whether all blocks go whole and straight */
};

/* Where synth_skewed_open and the workspace take their columns from. */
struct synth_skewed_cursor {
  char *at;
  uint64_t bytes; /* so far */
};
static inline void *synth_skewed_take(struct synth_skewed_cursor *c, uint64_t count, uint64_t each) {
  void *column = c->at ? c->at + c->bytes : NULL;
  c->bytes += (count * each + 7) / 8 * 8;
  return column;
}

static inline int synth_skewed_above(const uint32_t *column, uint64_t count, uint64_t end) {
  uint64_t i;
  for (i = 0; i < count; i++)
    if (column[i] >= end) return 1;
  return 0;
}
static inline int synth_skewed_falls(const int64_t *ptr, uint64_t count, uint64_t end) {
  uint64_t i;
  for (i = 0; i < count; i++)
    if (ptr[i + 1] < ptr[i]) return 1;
  return ptr[0] != 0 || (uint64_t)ptr[count] != end;
}
static inline int synth_skewed_odd(const double *column, uint64_t count) {
  uint64_t i;
  for (i = 0; i < count; i++)
    if (!(column[i] >= 0.0 && column[i] < 1e30)) return 1;
  return 0;
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
      uint64_t out = t->exit[i * n + b], into = t->entry[i * n + b];
      if (b != t->node_of[i] && (t->node_of[out] != t->node_of[i] || t->node_of[into] != b ||
                                 t->between[out * k + into] == SYNTH_SKEWED_NO_LINK))
        return "has a straight path without a link";
    }
  for (i = 0; i < h->parts; i++)
    if (t->part_ports[i] < 1 || t->part_base[i + 1] - t->part_base[i] != t->part_ports[i] * t->part_ports[i] ||
        t->part_ports[i] > 2048)
      return "has a matrix of a wrong size";
  return h->tick_us >= 1e-9 ? NULL : "has no length of a tick";
}

/* Set the columns of a table; return why the bytes are no table that can be planned with, NULL where they are one. */
static inline const char *synth_skewed_open(struct synth_skewed *t, const void *file, size_t bytes) {
  const struct synth_skewed_head *h = (const struct synth_skewed_head *)file;
  struct synth_skewed_cursor c;
  uint64_t k, n, lanes, links;
  if (!file || (uintptr_t)file % 8) return "is not at a multiple of 8 bytes";
  if (bytes < sizeof *h || memcmp(h->magic, "SYNTHSKW", 8)) return "is no table of a process group";
  if (h->byte_order != SYNTH_SKEWED_ORDER) return "is little-endian, this machine is not";
  if (h->version != SYNTH_SKEWED_VERSION) return "is of another version";
  if (h->file_bytes != bytes) return "is cut off";
  k = h->positions, n = h->nodes, lanes = h->lanes, links = h->links;
  if (k < 2 || k > 2048 || n < 1 || n > k || h->nics > k || lanes > 1 << 28 || links > 1 << 30 || h->parts > k ||
      h->cells > 1 << 30 || h->resources > 1 << 30)
    return "has numbers that are too large";
  c.at = (char *)(uintptr_t)file, c.bytes = sizeof *h;
  t->head = h;
  t->node_ptr = (const int64_t *)synth_skewed_take(&c, n + 1, 8);
  t->nic_ptr = (const int64_t *)synth_skewed_take(&c, (uint64_t)h->nics + 1, 8);
  t->lane_ptr = (const int64_t *)synth_skewed_take(&c, n * n + 1, 8);
  t->part_ports = (const int64_t *)synth_skewed_take(&c, h->parts, 8);
  t->part_base = (const int64_t *)synth_skewed_take(&c, (uint64_t)h->parts + 1, 8);
  t->lane_end = (const double *)synth_skewed_take(&c, lanes, 8);
  t->lane_ticks = (const double *)synth_skewed_take(&c, lanes, 8);
  t->rank_us = (const double *)synth_skewed_take(&c, 2 * k, 8);
  t->rank_alpha_us = (const double *)synth_skewed_take(&c, 2 * k, 8);
  t->node_us = (const double *)synth_skewed_take(&c, 2 * n, 8);
  t->node_alpha_us = (const double *)synth_skewed_take(&c, 2 * n, 8);
  t->least_us = (const double *)synth_skewed_take(&c, k * k, 8);
  t->straight_us = (const double *)synth_skewed_take(&c, 2 * k * n, 8);
  t->alpha = (const double *)synth_skewed_take(&c, links, 8);
  t->link_us = (const double *)synth_skewed_take(&c, links, 8);
  t->gap = (const double *)synth_skewed_take(&c, links, 8);
  t->node_of = (const uint32_t *)synth_skewed_take(&c, k, 4);
  t->node_rank = (const uint32_t *)synth_skewed_take(&c, k, 4);
  t->nic_of = (const uint32_t *)synth_skewed_take(&c, k, 4);
  t->nic_rank = (const uint32_t *)synth_skewed_take(&c, n > 1 ? k : 0, 4);
  t->between = (const uint32_t *)synth_skewed_take(&c, k * k, 4);
  t->lane_from = (const uint32_t *)synth_skewed_take(&c, lanes, 4);
  t->lane_to = (const uint32_t *)synth_skewed_take(&c, lanes, 4);
  t->lane_source = (const uint32_t *)synth_skewed_take(&c, lanes, 4);
  t->lane_goal = (const uint32_t *)synth_skewed_take(&c, lanes, 4);
  t->lane_flow = (const uint32_t *)synth_skewed_take(&c, lanes, 4);
  t->exit = (const uint32_t *)synth_skewed_take(&c, k * n, 4);
  t->entry = (const uint32_t *)synth_skewed_take(&c, k * n, 4);
  t->first_port = (const uint32_t *)synth_skewed_take(&c, links, 4);
  t->last_port = (const uint32_t *)synth_skewed_take(&c, links, 4);
  if (c.bytes != bytes) return "has a column beyond its end";
  {
    uint64_t i;
    for (i = 0; i < k * k; i++)
      if (t->between[i] != SYNTH_SKEWED_NO_LINK && t->between[i] >= links) return "has a link beyond its end";
  }
  if (synth_skewed_above(t->node_of, k, n) || synth_skewed_above(t->node_rank, k, k) ||
      (n > 1 && (synth_skewed_above(t->nic_of, k, h->nics) || synth_skewed_above(t->nic_rank, k, k))) ||
      synth_skewed_above(t->lane_from, lanes, h->nics) || synth_skewed_above(t->lane_to, lanes, h->nics) ||
      synth_skewed_above(t->lane_source, lanes, k) || synth_skewed_above(t->lane_goal, lanes, k) ||
      synth_skewed_above(t->lane_flow, lanes, h->cells) || synth_skewed_above(t->exit, k * n, k) ||
      synth_skewed_above(t->entry, k * n, k) || synth_skewed_above(t->first_port, links, h->resources) ||
      synth_skewed_above(t->last_port, links, h->resources))
    return "has an index beyond its end";
  if (synth_skewed_falls(t->node_ptr, n, k) || synth_skewed_falls(t->nic_ptr, h->nics, n > 1 ? k : 0) ||
      synth_skewed_falls(t->lane_ptr, n * n, lanes) || synth_skewed_falls(t->part_base, h->parts, h->cells))
    return "has pointers in no order";
  if (synth_skewed_odd(&h->tick_us, 2) || synth_skewed_odd(t->lane_end, lanes) ||
      synth_skewed_odd(t->lane_ticks, lanes) || synth_skewed_odd(t->rank_us, 2 * k) ||
      synth_skewed_odd(t->rank_alpha_us, 2 * k) || synth_skewed_odd(t->node_us, 2 * n) ||
      synth_skewed_odd(t->node_alpha_us, 2 * n) || synth_skewed_odd(t->straight_us, 2 * k * n) ||
      synth_skewed_odd(t->alpha, links) || synth_skewed_odd(t->link_us, links) || synth_skewed_odd(t->gap, links))
    return "has a figure that is no time";
  return synth_skewed_lanes_error(t);
}

struct synth_skewed_work {
  int64_t room, most_rows, buckets;
  int64_t *to_node, *pair, *rank, *cell, *left, *sent, *row_left, *first, *lane_left, *lane_seg, *lane_at;
  int64_t *piece_bytes, *seg_flow, *seg_begin, *seg_end, *seg_ptr, *flow_begin, *flow_end;
  int64_t *padded, *real, *match, *owner, *since, *queue, *came, *longest;
  int64_t *chunk_offset[2], *chunk_bytes[2]; /* of the plan, and of straight paths */
  double *row_key, *sorted_key, *ready, *release, *port_us, *filled, *send_start[2];
  uint32_t *piece_source, *piece_goal, *piece_lane, *row_chunk, *row_link, *row_step, *row_bucket, *order, *bucket_ptr;
  uint32_t *chunk_source[2], *chunk_goal[2], *send_chunk[2], *send_link[2], *send_step[2];
  int64_t chunks, rows; /* so far */
};

/* Lay the columns of a workspace out; return its bytes. */
static inline size_t synth_skewed_lay(const struct synth_skewed *t, int64_t room, char *at, struct synth_skewed_work *w) {
  uint64_t k = t->head->positions, n = t->head->nodes, lanes = t->head->lanes, most = 0, i, ports, cells, r = (uint64_t)room;
  struct synth_skewed_cursor c;
  c.at = at, c.bytes = 0;
  for (i = 0; i < n; i++)
    if ((uint64_t)(t->node_ptr[i + 1] - t->node_ptr[i]) > most) most = (uint64_t)(t->node_ptr[i + 1] - t->node_ptr[i]);
  ports = most;
  for (i = 0; i < t->head->parts; i++)
    if ((uint64_t)t->part_ports[i] > ports) ports = (uint64_t)t->part_ports[i];
  cells = most * most > t->head->cells ? most * most : t->head->cells;
  w->room = room, w->most_rows = 3 * room, w->buckets = 256;
  while (w->buckets < room / 2) w->buckets *= 2;
#define SYNTH_SKEWED_INTS(count) ((int64_t *)synth_skewed_take(&c, count, 8))
#define SYNTH_SKEWED_REALS(count) ((double *)synth_skewed_take(&c, count, 8))
#define SYNTH_SKEWED_WORDS(count) ((uint32_t *)synth_skewed_take(&c, count, 4))
  w->to_node = SYNTH_SKEWED_INTS(k * n), w->pair = SYNTH_SKEWED_INTS(n * n), w->rank = SYNTH_SKEWED_INTS(2 * k);
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
  for (i = 0; i < 2; i++) {
    uint64_t chunks = i ? k * k + 1 : r;
    w->chunk_offset[i] = SYNTH_SKEWED_INTS(chunks), w->chunk_bytes[i] = SYNTH_SKEWED_INTS(chunks);
    w->send_start[i] = SYNTH_SKEWED_REALS(3 * chunks), w->chunk_source[i] = SYNTH_SKEWED_WORDS(chunks);
    w->chunk_goal[i] = SYNTH_SKEWED_WORDS(chunks), w->send_chunk[i] = SYNTH_SKEWED_WORDS(3 * chunks);
    w->send_link[i] = SYNTH_SKEWED_WORDS(3 * chunks), w->send_step[i] = SYNTH_SKEWED_WORDS(3 * chunks);
  }
#undef SYNTH_SKEWED_INTS
#undef SYNTH_SKEWED_REALS
#undef SYNTH_SKEWED_WORDS
  return (size_t)c.bytes;
}

/* How many chunks plans of usual sizes have at most; never less than straight paths need. */
static inline int64_t synth_skewed_room(const struct synth_skewed *t) {
  return 4 * (int64_t)t->head->positions * t->head->positions + 32 * (int64_t)t->head->lanes + 64;
}
static inline size_t synth_skewed_work_bytes(const struct synth_skewed *t, int64_t room) {
  struct synth_skewed_work w;
  return synth_skewed_lay(t, room, NULL, &w);
}

static inline int64_t synth_skewed_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t synth_skewed_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline double synth_skewed_later(double a, double b) { return a > b ? a : b; }

static inline int64_t synth_skewed_loads(const struct synth_skewed *t, const int64_t *size, struct synth_skewed_work *w) {
  int64_t k = t->head->positions, n = t->head->nodes, i, j, b, total = 0;
  memset(w->pair, 0, (size_t)(n * n) * 8);
  memset(w->to_node, 0, (size_t)(k * n) * 8);
  memset(w->rank + k, 0, (size_t)k * 8);
  for (i = 0; i < k; i++) {
    int64_t here = 0;
    for (j = 0; j < k; j++) {
      int64_t bytes = size[i * k + j];
      if (bytes < 0 || bytes > SYNTH_SKEWED_MOST_BYTES) return SYNTH_SKEWED_BAD;
      if (i != j) w->rank[k + j] += bytes, w->to_node[i * n + t->node_of[j]] += bytes;
    }
    for (b = 0; b < n; b++) here += w->to_node[i * n + b], w->pair[t->node_of[i] * n + b] += w->to_node[i * n + b];
    w->rank[i] = here;
    total += here;
  }
  return total;
}

static inline double synth_skewed_bound(const struct synth_skewed *t, const int64_t *size, const struct synth_skewed_work *w) {
  int64_t k = t->head->positions, n = t->head->nodes, i, j, a, b;
  double best = 0.0;
  for (i = 0; i < 2 * k; i++)
    if (w->rank[i] > 0) best = synth_skewed_later(best, (double)w->rank[i] * t->rank_us[i] + t->rank_alpha_us[i]);
  for (a = 0; n > 1 && a < n; a++) {
    int64_t out = 0, into = 0;
    for (b = 0; b < n; b++)
      if (a != b) out += w->pair[a * n + b], into += w->pair[b * n + a];
    if (out > 0) best = synth_skewed_later(best, (double)out * t->node_us[a] + t->node_alpha_us[a]);
    if (into > 0) best = synth_skewed_later(best, (double)into * t->node_us[n + a] + t->node_alpha_us[n + a]);
  }
  for (i = 0; i < k; i++)
    for (j = 0; j < k; j++)
      if (i != j && size[i * k + j] > 0) best = synth_skewed_later(best, t->least_us[i * k + j]);
  return t->head->start_us + best;
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
static inline void synth_skewed_chunk(struct synth_skewed_work *w, int which, int64_t i, int64_t j, int64_t offset, int64_t bytes) {
  w->chunk_source[which][w->chunks] = (uint32_t)i, w->chunk_goal[which][w->chunks] = (uint32_t)j;
  w->chunk_offset[which][w->chunks] = offset, w->chunk_bytes[which][w->chunks] = bytes;
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
        stops[1] = t->exit[i * n + t->node_of[j]];
        if (t->between[stops[1] * k + j] == SYNTH_SKEWED_NO_LINK) stops[2] = t->entry[i * n + t->node_of[j]];
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

static inline void synth_skewed_set(int which, double time_us, const struct synth_skewed_work *w, struct synth_skewed_plan *plan) {
  plan->chunks = w->chunks, plan->sends = w->rows, plan->time_us = time_us, plan->is_straight = which;
  plan->chunk_source = w->chunk_source[which], plan->chunk_goal = w->chunk_goal[which];
  plan->chunk_offset = w->chunk_offset[which], plan->chunk_bytes = w->chunk_bytes[which];
  plan->send_chunk = w->send_chunk[which], plan->send_link = w->send_link[which];
  plan->send_step = w->send_step[which], plan->send_start = w->send_start[which];
}

/* Plan an all-to-all; 0, SYNTH_SKEWED_FULL or SYNTH_SKEWED_BAD.
 *
 * `sizes`: bytes from position i to position j at i * k + j; the diagonal is ignored. `work`: bytes as
 * synth_skewed_work_bytes says for `room`, which is at least synth_skewed_room. */
static inline int synth_skewed_plan_sizes(const struct synth_skewed *t, const int64_t *sizes, int64_t room, void *work, struct synth_skewed_plan *plan) {
  int64_t k = t->head->positions, n = t->head->nodes, span = 0, total, node, port, b;
  double limit = 0.0;
  struct synth_skewed_work w;
  synth_skewed_lay(t, room, (char *)work, &w);
  w.chunks = w.rows = 0;
  plan->bound_us = 0.0;
  synth_skewed_set(0, 0.0, &w, plan);
  total = synth_skewed_loads(t, sizes, &w);
  if (total <= 0) return (int)total;
  plan->bound_us = synth_skewed_bound(t, sizes, &w);
  memcpy(w.left, sizes, (size_t)(k * k) * 8);
  memset(w.sent, 0, (size_t)(k * k) * 8);
  if (n > 1) {
    int64_t pieces, part, segments = 0;
    memset(w.cell, 0, (size_t)t->head->cells * 8);
    pieces = synth_skewed_split(t, &w);
    if (pieces == SYNTH_SKEWED_FULL) return SYNTH_SKEWED_FULL;
    for (part = 0; part < (int64_t)t->head->parts; part++) {
      const int64_t *cell = w.cell + t->part_base[part];
      span = synth_skewed_max(span, synth_skewed_line(cell, t->part_ports[part]));
      segments = synth_skewed_rounds(cell, t->part_ports[part], t->part_base[part], segments, &w);
      if (segments == SYNTH_SKEWED_FULL) return SYNTH_SKEWED_FULL;
    }
    synth_skewed_segments(t->head->cells, segments, &w);
    if (synth_skewed_cut(t, span, pieces, &w)) return SYNTH_SKEWED_FULL;
  }
  for (node = 0; node < n; node++)
    if (synth_skewed_inner(t, sizes, node, (double)span * t->head->tick_us, &w)) return SYNTH_SKEWED_FULL;
  synth_skewed_set(0, synth_skewed_times(t, 0, &w), &w, plan);
  memset(w.port_us, 0, (size_t)(2 * k) * 8);
  for (port = 0; port < k; port++)
    for (b = 0; b < n; b++) {
      int64_t at = port * n + b;
      if (w.to_node[at] == 0) continue;
      w.port_us[t->exit[at]] += (double)w.to_node[at] * t->straight_us[at];
      w.port_us[k + t->entry[at]] += (double)w.to_node[at] * t->straight_us[k * n + at];
    }
  for (port = 0; port < 2 * k; port++) limit = synth_skewed_later(limit, w.port_us[port]);
  if (plan->time_us > synth_skewed_later(t->head->start_us + limit, plan->bound_us * (1 + 1e-9))) {
    double time_us;
    w.chunks = w.rows = 0;
    synth_skewed_straight(t, sizes, &w);
    time_us = synth_skewed_times(t, 1, &w);
    if (time_us <= plan->time_us) synth_skewed_set(1, time_us, &w, plan);
  }
  return 0;
}

#endif
