// How long answers took: a histogram with the same relative precision everywhere.
#ifndef HOLDFAST_LATENCY_H
#define HOLDFAST_LATENCY_H

#include <stdint.h>

// Latencies in buckets of 1/32 of a power of two: 3 % a step, from 1 ns to minutes.
#define SUB_BITS 5
#define BUCKETS (64 << SUB_BITS)
struct latencies {
  uint64_t counts[BUCKETS], total, max_ns;
};

static inline int bucket_of(uint64_t ns) {
  if (ns < 1 << SUB_BITS) return (int)ns;
  int shift = 63 - __builtin_clzll(ns) - SUB_BITS;
  return ((shift + 1) << SUB_BITS) + (int)(ns >> shift & ((1 << SUB_BITS) - 1));
}

static inline double bucket_us(int bucket) {
  int shift = (bucket >> SUB_BITS) - 1;
  uint64_t low = shift < 0 ? (uint64_t)bucket : (uint64_t)((1 << SUB_BITS) + (bucket & ((1 << SUB_BITS) - 1))) << shift;
  return (low + (shift > 0 ? (1ull << shift) / 2 : 0)) / 1e3;
}

static inline double percentile_us(const struct latencies *all, double share) {
  uint64_t wanted = (uint64_t)(all->total * share), seen = 0;
  for (int i = 0; i < BUCKETS; i++) {
    seen += all->counts[i];
    if (all->counts[i] && seen >= wanted) return bucket_us(i);
  }
  return 0;
}

static inline void note_latency(struct latencies *all, uint64_t ns) {
  all->counts[bucket_of(ns)]++;
  all->total++;
  if (ns > all->max_ns) all->max_ns = ns;
}

#endif
