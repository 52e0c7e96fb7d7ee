/* Attacks synth_table.h: mutates a table many times and asks whatever is accepted; the sanitizers see what it reads.
 *
 * usage: fuzz FILE COUNT SEED   prints how many mutations were accepted as tables, and how many calls were served
 *
 * Each table and each caller's array is in a block of exactly its own size, so that no byte beyond it can be read.
 */
#include "synth_table.h"
#include <stdio.h>
#include <stdlib.h>

static uint64_t state;
static uint64_t draw(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}
static uint64_t below(uint64_t end) { return draw() % end; }

static const uint64_t odd_values[] = {0, 1, 2, 3, 7, 8, 9, 16, 64, 127, 128, 255, 256, 1000, 4096, 65535, 1u << 20, 1u << 30,
                                      0x7fffffff, 0x80000000u, 0xfffffffe, 0xffffffffu, (uint64_t)1 << 32,
                                      (uint64_t)1 << 62, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX};
static uint64_t odd_value(void) {
  uint64_t value = below(4) ? below(40) : odd_values[below(sizeof odd_values / sizeof *odd_values)];
  return below(8) ? value : 0 - value;
}

/* Change some bytes, words, or fields of one section. */
static void mutate(char *file, size_t bytes) {
  struct synth_table head;
  uint64_t changes = 1 + below(4);
  memcpy(&head, file, sizeof head);
  while (changes--) {
    uint64_t starts[] = {0, head.records_at, head.groups_at, head.names_at, head.ranks_at, head.text_at, bytes};
    uint64_t section = below(6), from = starts[section], to = starts[section + 1], at, value = odd_value();
    size_t width = (size_t)1 << below(4);
    if (from >= to || to > bytes) from = 0, to = bytes;
    at = from + below(to - from);
    at -= at % width;
    if (at + width <= bytes) memcpy(file + at, &value, width);
  }
}

static uint32_t *ranks_of(const struct synth_table *t, const struct synth_group *group, size_t *count) {
  uint32_t *copy;
  size_t i;
  *count = (size_t)group->nranks + group->nrelays;
  copy = malloc(*count * sizeof *copy + !*count);
  for (i = 0; i < *count; i++) copy[i] = below(16) ? synth_ranks(t, group->ranks)[i] : (uint32_t)odd_value();
  return copy;
}

static uint64_t ask(const struct synth_table *t) {
  uint64_t served = 0, call;
  for (call = 0; call < 8; call++) {
    static const char *const words[] = {"allreduce", "broadcast", "executor-nccl", "LL", "", "~"};
    uint32_t number = t->groups ? (uint32_t)below(t->groups) : 0, *ranks, *order, i;
    struct synth_group nobody = {0, 0, 0, 0};
    const struct synth_group *g = t->groups ? synth_group_at(t, number) : &nobody;
    const struct synth_record *r, *like = t->records ? synth_record_at(t, (uint32_t)below(t->records)) : NULL;
    size_t count;
    int64_t group, collective, target, root;
    ranks = ranks_of(t, g, &count);
    group = synth_find_group(t, ranks, g->nranks, ranks + g->nranks, g->nrelays);
    collective = synth_find_name(t, words[below(6)]);
    target = synth_find_name(t, words[below(6)]);
    root = below(2) ? -1 : (int64_t)odd_value();
    if (like && below(4)) { /* as a record asks, so that some are served */
      group = like->group, collective = like->collective, target = like->target, root = like->root;
      g = synth_group_at(t, like->group);
      free(ranks);
      ranks = ranks_of(t, g, &count);
    }
    if (!below(16)) group = (int64_t)odd_value(), g = NULL;
    order = g && below(4) ? ranks : NULL;
    r = synth_choose(t, group, collective, target, (int)below(2), root, below(2) ? below(64) : odd_value(),
                     below(4) ? (uint32_t)below(9) : (uint32_t)odd_value(), order);
    if (r) {
      size_t length = strlen(synth_text(t, r->file)) + strlen(synth_text(t, synth_names(t)[r->protocol]));
      for (i = 0; i < r->nranks + r->nrelays; i++) length += synth_ranks(t, r->communicator)[i];
      if (strstr(synth_text(t, r->file), "..") == synth_text(t, r->file)) abort();
      served += synth_orders_group(t, r) + (length > 0);
    }
    free(ranks);
  }
  return served + (strlen(synth_text(t, t->topology)) > 1 << 30);
}

int main(int argc, char **argv) {
  FILE *f = argc == 4 ? fopen(argv[1], "rb") : NULL;
  char *good;
  size_t bytes;
  long count, accepted = 0;
  uint64_t served = 0;
  if (!f) return 2;
  fseek(f, 0, SEEK_END);
  bytes = (size_t)ftell(f);
  rewind(f);
  good = malloc(bytes);
  if (fread(good, 1, bytes, f) != bytes) return 2;
  state = 88172645463325252u ^ strtoull(argv[3], NULL, 10);
  for (count = atol(argv[2]); count > 0; count--) {
    uint64_t length = below(16) ? bytes : below(bytes + 1);
    char *file = malloc(length + !length);
    memcpy(file, good, length);
    if (length >= sizeof(struct synth_table)) {
      uint64_t stated = length;
      if (below(64)) mutate(file, length);
      if (below(16)) memcpy(file + 24, &stated, 8);
    }
    if (!synth_table_error(file, length)) accepted++, served += ask((const struct synth_table *)file);
    free(file);
  }
  free(good);
  fclose(f);
  printf("%ld accepted, %llu served\n", accepted, (unsigned long long)served);
  return 0;
}
