/* Plans for all-to-alls whose sizes change at every step (mixtures of experts): planners for C99 and C++11.
 *
 * They take the steps of `synth.engines.skewed`, which explains them, and make the same plans. The table of a process
 * group (`skewed.table`) is written beforehand by `synth topo planner`. The file is made to be mapped and asked in
 * place; nothing is allocated. All numbers are little-endian, all columns begin at multiples of 8 bytes.
 *
 *   struct synth_skewed t;
 *   const char *error = synth_skewed_open(&t, file, bytes);     once a process group; NULL, or what is wrong in words
 *   synth_skewed_link_ends(&t, from, to);                       once; which positions each link joins
 *   int64_t room = synth_skewed_room(&t);                       chunks of a plan; more if a plan says SYNTH_SKEWED_FULL
 *   void *work = malloc(synth_skewed_work_bytes(&t, room));     once; at a multiple of 8 bytes, for one thread
 *   struct synth_skewed_plan plan;
 *   int code = synth_skewed_plan_sizes(&t, sizes, room, work, &plan);   at every step; 0, or why there is no plan
 *   for (int64_t i = 0; i < plan.sends; i++) ...                sends in order of priority
 *
 * Send i moves chunk plan.send_chunk[i] from position from[plan.send_link[i]] to position to[plan.send_link[i]], once
 * the chunk is there: a send whose plan.send_step is above 0 waits for the chunk's send of the step before it. A chunk
 * is the bytes from chunk_offset on of the block from chunk_source to chunk_goal.
 *
 * The table decides which planner is asked: synth_skewed_nodes.h for groups in nodes whose ranks all have links, joined
 * by NICs, and synth_skewed_routed.h for all other networks. Both must lie beside this file.
 *
 * The file is not trusted: synth_skewed_open checks all that the functions here go by. Positions are places in the
 * process group, 0 to k - 1. A block is what a position sends to a position. Where floating point contracts a product
 * and a sum into one operation, times, cuts and paths may differ from Python's, and are right all the same; ISO C on x86
 * (gcc -std=c99, or -ffp-contract=off) does not contract.
 */
#ifndef SYNTH_SKEWED_H
#define SYNTH_SKEWED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SYNTH_SKEWED_NODES 1u  /* versions of the table: a group in nodes */
#define SYNTH_SKEWED_ROUTED 2u /* a group of any other network */
#define SYNTH_SKEWED_ORDER 0x01020304u
#define SYNTH_SKEWED_NO_LINK UINT32_MAX
#define SYNTH_SKEWED_MOST_BYTES ((int64_t)1 << 36) /* of a block */
#define SYNTH_SKEWED_MOST_ROOM ((int64_t)1 << 28)  /* chunks of a plan */
#define SYNTH_SKEWED_FULL (-1)    /* the plan needs a larger `room` */
#define SYNTH_SKEWED_BAD (-2)     /* a size is negative or too large */
#define SYNTH_SKEWED_NO_ROOM (-3) /* `room` has no workspace (see synth_skewed_work_bytes), or `work` is no place for it */

struct synth_skewed_head { /* 96 bytes */
  char magic[8];           /* "SYNTHSKW" */
  uint32_t version;        /* SYNTH_SKEWED_NODES or SYNTH_SKEWED_ROUTED, which leaves the other's numbers at 0 */
  uint32_t byte_order;     /* SYNTH_SKEWED_ORDER, unless this machine is big-endian */
  uint64_t file_bytes;
  uint32_t positions, nodes;
  uint32_t nics, lanes;    /* of nodes */
  uint32_t links, resources;
  uint32_t parts, cells;   /* of nodes */
  uint32_t has_ports;      /* of nodes: whether links inside nodes share ports */
  uint32_t zero;
  double tick_us;          /* of nodes */
  double start_us;
  uint32_t paths, width, uses; /* of other networks: all paths, most links of a path, entries of `uses` */
  uint32_t zero_too;
};

struct synth_skewed { /* a table that was checked; the columns stand in the file in the order of *_columns */
  const struct synth_skewed_head *head;
  const double *rank_us, *rank_alpha_us, *node_us, *node_alpha_us, *least_us, *alpha, *link_us, *gap;
  const uint32_t *node_of;
  /* of nodes */
  const int64_t *node_ptr, *nic_ptr, *lane_ptr, *part_ports, *part_base;
  const double *lane_end, *lane_ticks, *straight_us;
  const uint32_t *node_rank, *nic_of, *nic_rank, *between, *lane_from, *lane_to, *lane_source, *lane_goal, *lane_flow;
  const uint32_t *leaves, *enters, *first_port, *last_port;
  /* of other networks */
  const int64_t *uses_ptr, *users_ptr, *path_ptr;
  const double *part, *busy_us;
  const uint32_t *src, *dst, *uses, *users, *path_hops, *path_link;
  double least_alpha_us, fastest_us; /* of the links */
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

/* Where a table and a workspace take their columns from; NULL where only their bytes are counted. */
struct synth_skewed_cursor {
  char *at;
  uint64_t bytes; /* so far */
};
static inline void *synth_skewed_take(struct synth_skewed_cursor *c, uint64_t count, uint64_t each) {
  void *column = c->at ? c->at + c->bytes : NULL;
  c->bytes += (count * each + 7) / 8 * 8;
  return column;
}
#define SYNTH_SKEWED_INTS(count) ((int64_t *)synth_skewed_take(c, count, 8))
#define SYNTH_SKEWED_REALS(count) ((double *)synth_skewed_take(c, count, 8))
#define SYNTH_SKEWED_WORDS(count) ((uint32_t *)synth_skewed_take(c, count, 4))

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
    if (!(column[i] == 0.0 || (column[i] >= 1e-30 && column[i] < 1e30))) return 1;
  return 0;
}

static inline int64_t synth_skewed_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t synth_skewed_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline double synth_skewed_later(double a, double b) { return a > b ? a : b; }

/* The columns of a workspace. */
struct synth_skewed_work {
  int64_t room, chunks, rows; /* the last two: so far */
  int64_t *to_node, *pair, *rank;
  int64_t *chunk_offset[2], *chunk_bytes[2]; /* of the plan, and of straight paths */
  double *send_start[2];
  uint32_t *chunk_source[2], *chunk_goal[2], *send_chunk[2], *send_link[2], *send_step[2];
  /* of nodes */
  int64_t most_rows, buckets;
  int64_t *cell, *left, *sent, *row_left, *first, *lane_left, *lane_seg, *lane_at;
  int64_t *piece_bytes, *seg_flow, *seg_begin, *seg_end, *seg_ptr, *flow_begin, *flow_end;
  int64_t *padded, *real, *match, *owner, *since, *queue, *came, *longest;
  double *row_key, *sorted_key, *ready, *release, *port_us, *filled;
  uint32_t *piece_source, *piece_goal, *piece_lane, *row_chunk, *row_link, *row_step, *row_bucket, *order, *bucket_ptr;
  /* of other networks */
  int64_t most_sends, *queue_ptr;
  double *load, *cost, *used, *price, *dist, *queue_key, *event_us;
  uint32_t *done, *routes, *queue_chunk, *queue_count, *is_busy, *touched, *is_touched, *event;
};

/* Lay the columns of a plan out: which = 0, or 1 for straight paths. */
static inline void synth_skewed_lay_plan(struct synth_skewed_work *w, int which, uint64_t chunks, uint64_t sends, struct synth_skewed_cursor *c) {
  w->chunk_offset[which] = SYNTH_SKEWED_INTS(chunks), w->chunk_bytes[which] = SYNTH_SKEWED_INTS(chunks);
  w->send_start[which] = SYNTH_SKEWED_REALS(sends);
  w->chunk_source[which] = SYNTH_SKEWED_WORDS(chunks), w->chunk_goal[which] = SYNTH_SKEWED_WORDS(chunks);
  w->send_chunk[which] = SYNTH_SKEWED_WORDS(sends), w->send_link[which] = SYNTH_SKEWED_WORDS(sends);
  w->send_step[which] = SYNTH_SKEWED_WORDS(sends);
}

static inline void synth_skewed_chunk(struct synth_skewed_work *w, int which, int64_t i, int64_t j, int64_t offset, int64_t bytes) {
  w->chunk_source[which][w->chunks] = (uint32_t)i, w->chunk_goal[which][w->chunks] = (uint32_t)j;
  w->chunk_offset[which][w->chunks] = offset, w->chunk_bytes[which][w->chunks] = bytes;
}

static inline void synth_skewed_set(int which, double time_us, const struct synth_skewed_work *w, struct synth_skewed_plan *plan) {
  plan->chunks = w->chunks, plan->sends = w->rows, plan->time_us = time_us, plan->is_straight = which;
  plan->chunk_source = w->chunk_source[which], plan->chunk_goal = w->chunk_goal[which];
  plan->chunk_offset = w->chunk_offset[which], plan->chunk_bytes = w->chunk_bytes[which];
  plan->send_chunk = w->send_chunk[which], plan->send_link = w->send_link[which];
  plan->send_step = w->send_step[which], plan->send_start = w->send_start[which];
}

/* Set the bytes at each position and between nodes; return the bytes in all, or SYNTH_SKEWED_BAD. */
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

#include "synth_skewed_nodes.h"
#include "synth_skewed_routed.h"

/* Lay the columns of a table out from `at` on, or only count them where `at` is NULL; return their bytes with the head. */
static inline uint64_t synth_skewed_columns(struct synth_skewed *t, char *at) {
  struct synth_skewed_cursor c;
  c.at = at, c.bytes = sizeof *t->head;
  if (t->head->version == SYNTH_SKEWED_ROUTED) synth_skewed_routed_columns(t, &c);
  else synth_skewed_nodes_columns(t, &c);
  return c.bytes;
}

/* Set the columns of a table; return why the bytes are no table that can be planned with, NULL where they are one. */
static inline const char *synth_skewed_open(struct synth_skewed *t, const void *file, size_t bytes) {
  const struct synth_skewed_head *h = (const struct synth_skewed_head *)file;
  uint64_t k, n, links;
  memset(t, 0, sizeof *t);
  if (!file || (uintptr_t)file % 8) return "is not at a multiple of 8 bytes";
  if (bytes < sizeof *h || memcmp(h->magic, "SYNTHSKW", 8)) return "is no table of a process group";
  if (h->byte_order != SYNTH_SKEWED_ORDER) return "is little-endian, this machine is not";
  if (h->version != SYNTH_SKEWED_NODES && h->version != SYNTH_SKEWED_ROUTED) return "is of another version";
  if (h->file_bytes != bytes) return "is cut off";
  k = h->positions, n = h->nodes, links = h->links;
  if (k < 2 || k > 2048 || n < 1 || n > k || h->nics > k || h->lanes > 1 << 28 || links > 1 << 30 || h->parts > k ||
      h->cells > 1 << 30 || h->resources > 1 << 30 || h->paths > 1 << 28 || h->width > 2048 || h->uses > 1 << 30)
    return "has numbers that are too large";
  t->head = h;
  if (synth_skewed_columns(t, NULL) != bytes) return "has a column beyond its end";
  synth_skewed_columns(t, (char *)(uintptr_t)file);
  if (synth_skewed_above(t->node_of, k, n)) return "has an index beyond its end";
  if (synth_skewed_odd(&h->tick_us, 1) || synth_skewed_odd(&h->start_us, 1) || synth_skewed_odd(t->rank_us, 2 * k) ||
      synth_skewed_odd(t->rank_alpha_us, 2 * k) || synth_skewed_odd(t->node_us, 2 * n) ||
      synth_skewed_odd(t->node_alpha_us, 2 * n) || synth_skewed_odd(t->least_us, k * k) ||
      synth_skewed_odd(t->alpha, links) || synth_skewed_odd(t->link_us, links) || synth_skewed_odd(t->gap, links))
    return "has a figure that is no time";
  return h->version == SYNTH_SKEWED_ROUTED ? synth_skewed_routed_error(t) : synth_skewed_nodes_error(t);
}

/* Lay the columns of a workspace out from `at` on, or only count them where `at` is NULL; return their bytes. */
static inline uint64_t synth_skewed_lay(const struct synth_skewed *t, int64_t room, char *at, struct synth_skewed_work *work) {
  struct synth_skewed_cursor cursor, *c = &cursor;
  uint64_t k = t->head->positions, n = t->head->nodes;
  cursor.at = at, cursor.bytes = 0;
  memset(work, 0, sizeof *work);
  work->room = room;
  work->to_node = SYNTH_SKEWED_INTS(k * n), work->pair = SYNTH_SKEWED_INTS(n * n);
  work->rank = SYNTH_SKEWED_INTS(2 * k);
  if (t->head->version == SYNTH_SKEWED_ROUTED) synth_skewed_routed_lay(t, work, c);
  else synth_skewed_nodes_lay(t, work, c);
  return cursor.bytes;
}
#undef SYNTH_SKEWED_INTS
#undef SYNTH_SKEWED_REALS
#undef SYNTH_SKEWED_WORDS

/* Set the position that each link leaves and the one that it reaches, in columns of t->head->links numbers, for the sends
 * of plans. Links that no plan uses may have SYNTH_SKEWED_NO_LINK. */
static inline void synth_skewed_link_ends(const struct synth_skewed *t, uint32_t *from, uint32_t *to) {
  uint32_t k = t->head->positions, link, i, j;
  for (link = 0; link < t->head->links; link++) {
    from[link] = t->src ? t->src[link] : SYNTH_SKEWED_NO_LINK;
    to[link] = t->dst ? t->dst[link] : SYNTH_SKEWED_NO_LINK;
  }
  for (i = 0; t->between && i < k; i++)
    for (j = 0; j < k; j++)
      if ((link = t->between[i * k + j]) != SYNTH_SKEWED_NO_LINK) from[link] = i, to[link] = j;
}

/* How many chunks plans of usual sizes have at most; never less than straight paths need. */
static inline int64_t synth_skewed_room(const struct synth_skewed *t) {
  int64_t k = t->head->positions;
  if (t->head->version == SYNTH_SKEWED_ROUTED) return 2 * k * k + 64 * (int64_t)t->head->links;
  return 4 * k * k + 32 * (int64_t)t->head->lanes + 64;
}

/* Bytes of the workspace for plans of up to `room` chunks; 0 if `room` is below k * k, above SYNTH_SKEWED_MOST_ROOM, or
 * needs more bytes than a size_t counts. */
static inline size_t synth_skewed_work_bytes(const struct synth_skewed *t, int64_t room) {
  int64_t k = t->head->positions;
  struct synth_skewed_work work;
  uint64_t bytes = room < k * k || room > SYNTH_SKEWED_MOST_ROOM ? 0 : synth_skewed_lay(t, room, NULL, &work);
  return bytes > SIZE_MAX ? 0 : (size_t)bytes;
}

/* Plan an all-to-all; 0, SYNTH_SKEWED_FULL, SYNTH_SKEWED_BAD or SYNTH_SKEWED_NO_ROOM.
 *
 * `sizes`: bytes from position i to position j at i * k + j; the diagonal is ignored. `work`: as many bytes as
 * synth_skewed_work_bytes says for `room`, which should be synth_skewed_room or more. After FULL, a call with twice the
 * room and its workspace has more success. */
static inline int synth_skewed_plan_sizes(const struct synth_skewed *t, const int64_t *sizes, int64_t room, void *work, struct synth_skewed_plan *plan) {
  struct synth_skewed_work w;
  int64_t total;
  memset(plan, 0, sizeof *plan);
  if (!synth_skewed_work_bytes(t, room) || !work || (uintptr_t)work % 8) return SYNTH_SKEWED_NO_ROOM;
  synth_skewed_lay(t, room, (char *)work, &w);
  synth_skewed_set(0, 0.0, &w, plan);
  total = synth_skewed_loads(t, sizes, &w);
  if (total <= 0) return (int)total;
  if (t->head->version == SYNTH_SKEWED_ROUTED) return synth_skewed_plan_routed(t, sizes, &w, plan);
  return synth_skewed_plan_nodes(t, sizes, &w, plan);
}

#endif
