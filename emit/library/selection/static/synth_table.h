/* Which file of a library of collective algorithms serves a call: a reader of `library.table` for C99 and C++11.
 *
 * The file is made to be mapped (mmap, read only) and asked in place; nothing is allocated. All numbers are
 * little-endian, all sections begin at multiples of 8 bytes:
 *
 *   struct synth_table    the head
 *   struct synth_record   records: one a file, group and range of sizes, sorted by (group, collective, target,
 *                         inplace, root); of these by the order of the communicator's ranks, whichever order the
 *                         index has first; of these by min_bytes, and their ranges do not overlap
 *   struct synth_group    groups: ranks of the topology, sorted by (nranks, nrelays, ranks)
 *   uint32_t              names: offsets of text, in the order of strcmp; collectives, targets, protocols
 *   uint32_t              ranks: of groups (rising, relays after them) and of communicators (in their order)
 *   char                  text: strings, each ended by a zero byte
 *
 * Version 1. A later version 1 file may have more at the end of the head and of each record: go by head_bytes and
 * record_bytes, never by sizeof. What cannot be read by the rules here has another version.
 *
 *   const struct synth_table *t = mmap(...);
 *   if (synth_table_error(t, bytes)) ...                       once a file
 *   int64_t group = synth_find_group(t, ranks, n, NULL, 0);    once a communicator; ranks rising
 *   int64_t what = synth_find_name(t, "allreduce"), whom = synth_find_name(t, "executor-nccl");
 *   const struct synth_record *r = synth_choose(t, group, what, whom, 1, -1, size, 4, NULL);
 *   if (r) load(synth_text(t, r->file));                       else the executor's own algorithm serves the call
 *
 * The file is not trusted. synth_table_error checks all that the functions here go by, so that they read nothing beyond
 * the table, nor beyond a caller's arrays of the lengths that they say. Two things remain with the caller: nobody may
 * write to the bytes while they are mapped (a library replaces its files, it does not change them); and a communicator
 * that is made in the order of a record's `communicator` must be checked by synth_orders_group before it is made.
 */
#ifndef SYNTH_TABLE_H
#define SYNTH_TABLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SYNTH_TABLE_VERSION 1
#define SYNTH_TABLE_ORDER 0x01020304u
#define SYNTH_IN_PLACE 1u       /* flags: the file is for calls in place, else for calls out of place */
#define SYNTH_COUNTS_ELEMENTS 2u /* flags: `divides` counts elements of the call's type, else bytes */
#define SYNTH_NO_END UINT64_MAX /* max_bytes: for all larger messages */

struct synth_table {   /* 128 bytes */
  char magic[8];       /* "SYNTHTAB" */
  uint32_t version;    /* 1 */
  uint32_t byte_order; /* SYNTH_TABLE_ORDER, unless this machine is big-endian */
  uint32_t head_bytes, record_bytes;
  uint64_t file_bytes;
  uint32_t records, groups, names, ranks;                           /* how many */
  uint64_t records_at, groups_at, names_at, ranks_at, text_at;      /* bytes from the head's begin */
  uint32_t text_bytes;
  uint32_t topology;   /* text: what the library's ranks are ranks of */
  uint8_t index[32];   /* SHA-256 of the index.json that the table was made from */
};

struct synth_record {    /* 88 bytes */
  uint32_t group;        /* place among the groups */
  uint32_t collective, target, protocol; /* places among the names */
  uint32_t flags;
  uint32_t nrelays;
  int64_t root;          /* rank of the topology, -1 where the collective has none */
  uint64_t min_bytes, max_bytes; /* of the larger of a rank's two buffers, both inclusive */
  uint64_t divides;      /* which a size must be a multiple of, see SYNTH_COUNTS_ELEMENTS */
  uint32_t file;         /* text: path in the library's folder */
  uint32_t communicator; /* place among the ranks: the topology's rank of each rank of the file, nranks + nrelays */
  uint32_t nranks;       /* of the group, which come first in the communicator */
  uint32_t threadblocks; /* the most that a rank has, 0: not known */
  double time_us;        /* predicted for shown_bytes, NaN: not known */
  uint64_t shown_bytes;
};

struct synth_group { /* 16 bytes */
  uint32_t ranks, nranks, nrelays, zero;
};

static inline const char *synth_text(const struct synth_table *t, uint32_t at) {
  return (const char *)t + t->text_at + at;
}
static inline const uint32_t *synth_ranks(const struct synth_table *t, uint32_t at) {
  return (const uint32_t *)((const char *)t + t->ranks_at) + at;
}
static inline const struct synth_group *synth_group_at(const struct synth_table *t, uint32_t at) {
  return (const struct synth_group *)((const char *)t + t->groups_at) + at;
}
static inline const uint32_t *synth_names(const struct synth_table *t) {
  return (const uint32_t *)((const char *)t + t->names_at);
}
static inline const struct synth_record *synth_record_at(const struct synth_table *t, uint32_t at) {
  return (const struct synth_record *)((const char *)t + t->records_at + (uint64_t)t->record_bytes * at);
}

/* Whether a string is no path below the library's folder: parts of A-Z a-z 0-9 _ . - that begin with none of . -, up to
 * 511 bytes in all. */
static inline int synth_bad_path(const char *path) {
  uint32_t i;
  int begins = 1; /* a part */
  for (i = 0; i < 512 && path[i]; i++) {
    char c = path[i];
    int word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (begins ? !word : !word && c != '/' && c != '.' && c != '-') return 1;
    begins = c == '/';
  }
  return begins || i == 512;
}

static inline int synth_outside(uint64_t at, uint64_t count, uint64_t each, uint64_t file_bytes) {
  return at % 8 || at > file_bytes || count > (file_bytes - at) / each;
}

/* Why a file of so many bytes is no table that can be asked, NULL where it is one; reads it once from end to end. */
static inline const char *synth_table_error(const void *file, size_t bytes) {
  const struct synth_table *t = (const struct synth_table *)file;
  uint32_t i;
  if (!file || (uintptr_t)file % 8) return "is not at a multiple of 8 bytes";
  if (bytes < sizeof *t || memcmp(t->magic, "SYNTHTAB", 8)) return "is no table";
  if (t->byte_order != SYNTH_TABLE_ORDER) return "is little-endian, this machine is not";
  if (t->version != SYNTH_TABLE_VERSION) return "is of another version";
  if (t->file_bytes != bytes) return "is cut off";
  if (t->head_bytes < sizeof *t || t->head_bytes > bytes || t->record_bytes < sizeof(struct synth_record) || t->record_bytes % 8)
    return "has records of a wrong size";
  if (synth_outside(t->records_at, t->records, t->record_bytes, bytes) ||
      synth_outside(t->groups_at, t->groups, sizeof(struct synth_group), bytes) ||
      synth_outside(t->names_at, t->names, 4, bytes) || synth_outside(t->ranks_at, t->ranks, 4, bytes) ||
      synth_outside(t->text_at, t->text_bytes, 1, bytes) || !t->text_bytes || synth_text(t, t->text_bytes - 1)[0])
    return "has a section beyond its end";
  if (t->topology >= t->text_bytes) return "has a string beyond its end";
  for (i = 0; i < t->names; i++)
    if (synth_names(t)[i] >= t->text_bytes) return "has a string beyond its end";
  for (i = 0; i < t->groups; i++) {
    const struct synth_group *g = synth_group_at(t, i);
    if ((uint64_t)g->ranks + g->nranks + g->nrelays > t->ranks) return "has a group beyond its end";
  }
  for (i = 0; i < t->records; i++) {
    const struct synth_record *r = synth_record_at(t, i);
    if (r->group >= t->groups || r->collective >= t->names || r->target >= t->names || r->protocol >= t->names ||
        r->file >= t->text_bytes || (uint64_t)r->communicator + r->nranks + r->nrelays > t->ranks || !r->divides)
      return "has a record beyond its end";
    if (r->nranks != synth_group_at(t, r->group)->nranks || r->nrelays != synth_group_at(t, r->group)->nrelays)
      return "has a record whose communicator is not as large as its group";
    if (synth_bad_path(synth_text(t, r->file))) return "has a file outside its folder";
  }
  return NULL;
}

/* Whether a record's communicator is its group's ranks in some order, then its relays in some order, each once.
 *
 * For callers that make a communicator in this order; once for each that they make, since it looks at all its ranks. */
static inline int synth_orders_group(const struct synth_table *t, const struct synth_record *r) {
  const struct synth_group *g = synth_group_at(t, r->group);
  const uint32_t *members = synth_ranks(t, g->ranks), *asked = synth_ranks(t, r->communicator);
  uint32_t all = g->nranks + g->nrelays, first, last, i, end;
  for (i = 1; i < all; i++)
    if (i != g->nranks && members[i - 1] >= members[i]) return 0;
  for (i = 0, first = g->nranks; i < g->nranks && first < all;) { /* no relay is a rank of the group */
    if (members[i] == members[first]) return 0;
    if (members[i] < members[first]) i++; else first++;
  }
  for (first = 0; first < all; first = last) { /* members in blocks, each seen once */
    uint64_t seen[64];
    uint32_t count = 0;
    end = first < g->nranks ? g->nranks : all;
    last = end - first > 4096 ? first + 4096 : end;
    memset(seen, 0, sizeof seen);
    for (i = first < g->nranks ? 0 : g->nranks; i < end; i++) {
      uint32_t low = first, high = last;
      while (low < high) { /* the first member that is not below this rank */
        uint32_t middle = low + (high - low) / 2;
        if (members[middle] < asked[i]) low = middle + 1; else high = middle;
      }
      if (low == last || members[low] != asked[i]) continue;
      if (seen[(low - first) / 64] >> (low - first) % 64 & 1) return 0;
      seen[(low - first) / 64] |= (uint64_t)1 << (low - first) % 64;
      count++;
    }
    if (count != last - first) return 0;
  }
  return 1;
}

/* The place of a name among the names, -1 where no record has it. */
static inline int64_t synth_find_name(const struct synth_table *t, const char *name) {
  uint32_t low = 0, high = t->names;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    int order = strcmp(synth_text(t, synth_names(t)[middle]), name);
    if (!order) return middle;
    if (order < 0) low = middle + 1; else high = middle;
  }
  return -1;
}

/* The place of a group among the groups, -1 where no record has it. ranks, relays: of the topology, each rising. */
static inline int64_t synth_find_group(const struct synth_table *t, const uint32_t *ranks, uint32_t nranks,
                                       const uint32_t *relays, uint32_t nrelays) {
  uint32_t low = 0, high = t->groups;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2, i;
    const struct synth_group *g = synth_group_at(t, middle);
    const uint32_t *mine = synth_ranks(t, g->ranks);
    int order = g->nranks != nranks ? (g->nranks < nranks ? -1 : 1)
                                    : (g->nrelays != nrelays ? (g->nrelays < nrelays ? -1 : 1) : 0);
    for (i = 0; !order && i < nranks + nrelays; i++) {
      uint32_t asked = i < nranks ? ranks[i] : relays[i - nranks];
      if (mine[i] != asked) order = mine[i] < asked ? -1 : 1;
    }
    if (!order) return middle;
    if (order < 0) low = middle + 1; else high = middle;
  }
  return -1;
}

/* The record that serves a call, NULL where none does, and the executor's own algorithm must.
 *
 * group, collective, target: as found above; -1 finds nothing. root: rank of the topology, -1 for collectives without.
 * order: the communicator's ranks of the topology in order, group then relays, as many as the group has: a file for
 * this order goes before one for another; NULL: any. A caller must make the communicator in the order of the record's
 * `communicator`, and first check it by synth_orders_group where it is not `order`.
 */
static inline const struct synth_record *synth_choose(const struct synth_table *t, int64_t group, int64_t collective,
                                                      int64_t target, int inplace, int64_t root, uint64_t bytes,
                                                      uint32_t element_bytes, const uint32_t *order) {
  const struct synth_record *any = NULL;
  uint32_t low = 0, high = t->records, i;
  if (group < 0 || collective < 0 || target < 0) return NULL;
  while (low < high) { /* the first record that is not before the question */
    uint32_t middle = low + (high - low) / 2;
    const struct synth_record *r = synth_record_at(t, middle);
    int place = !!(r->flags & SYNTH_IN_PLACE);
    int before = r->group != group             ? r->group < group
                 : r->collective != collective ? r->collective < collective
                 : r->target != target         ? r->target < target
                 : place != !!inplace          ? place < !!inplace
                                               : r->root < root;
    if (before) low = middle + 1; else high = middle;
  }
  for (i = low; i < t->records; i++) {
    const struct synth_record *r = synth_record_at(t, i);
    uint64_t unit = r->divides;
    if (r->group != group || r->collective != collective || r->target != target ||
        !!(r->flags & SYNTH_IN_PLACE) != !!inplace || r->root != root)
      break;
    if (r->flags & SYNTH_COUNTS_ELEMENTS) {
      if (element_bytes && unit > UINT64_MAX / element_bytes) continue;
      unit *= element_bytes ? element_bytes : 1;
    }
    if (bytes < r->min_bytes || bytes > r->max_bytes || bytes % unit) continue;
    if (!order || !memcmp(order, synth_ranks(t, r->communicator), 4 * ((size_t)r->nranks + r->nrelays))) return r;
    if (!any) any = r;
  }
  return any;
}

#endif
