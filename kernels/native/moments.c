/* Partial moments of chunks: see moments_reference.py, whose order of additions this keeps. */
#include <math.h>

#include "native.h"

enum { LINE = 16, FAN_IN = 16, GROUP = FAN_IN * RUN, CHUNK_RUNS = 128, CHUNK = CHUNK_RUNS * RUN, CHUNKS_PER_ITEM = 4 };

typedef struct Moments {
  Memory gradient;
  float *centres, *max_abs, *first, *second;
  uint32_t mask; /* of an element's bits: all, or all but the sign */
  int64_t chunks;
  const int64_t* first_chunks; /* of every tensor, then the number of chunks */
} Moments;

/* Sums of even and odd groups, and bits of the largest magnitudes, for every place. */
typedef struct Sums {
  float first[2][RUN] ALIGNED, second[2][RUN] ALIGNED;
  int32_t largest[RUN] ALIGNED;
} Sums;

INLINE int32_t magnitude_bits(float x) { return (int32_t)(bits_of(x) & 0x7FFFFFFFu); }

INLINE float masked(float x, uint32_t mask) { return float_of(bits_of(x) & mask); }

/* x - centre to 12 bits, so that its square is exact. */
INLINE float deviation(float x, float centre, uint32_t mask) {
  return float_of((bits_of(settle(masked(x, mask)) - centre) + 0x800u) & 0xFFFFF000u);
}

INLINE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

/* NaN if one of them is. */
INLINE float least(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
INLINE float most(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }

INLINE float middle(float a, float b, float c) { return most(least(a, b), least(most(a, b), c)); }

/* Adds halves onto halves, as add_runs does. */
INLINE float add_halves(const float* x) {
  float a = (x[0] + x[8]) + (x[4] + x[12]), b = (x[2] + x[10]) + (x[6] + x[14]);
  float c = (x[1] + x[9]) + (x[5] + x[13]), d = (x[3] + x[11]) + (x[7] + x[15]);
  return (a + b) + (c + d);
}

static void add_group(
    const float* restrict x, float centre, uint32_t mask, float* restrict first, float* restrict second,
    int32_t* restrict largest) {
  for (int part = 0; part < RUN; part += LINE) {
    /* Processors do not predict this order of reads, so the lines of the group after next are prefetched. */
    for (int i = 0; i < FAN_IN; i++) __builtin_prefetch(x + 2 * GROUP + (part + i) * LINE, 0, 2);
    for (int j = part; j < part + LINE; j++) {
      float deviations[FAN_IN], squares[FAN_IN];
      int32_t bits = largest[j];
#pragma GCC unroll 16
      for (int i = 0; i < FAN_IN; i++) {
        bits = larger(bits, magnitude_bits(x[i * RUN + j]));
        deviations[i] = deviation(x[i * RUN + j], centre, mask);
        squares[i] = deviations[i] * deviations[i];
      }
      largest[j] = bits;
      first[j] += add_halves(deviations);
      second[j] += add_halves(squares);
    }
  }
}

/* Fills a group up with centres, whose deviation is zero; a short last run goes to the end of its places. */
static const float* fill_group(const float* x, int64_t size, float centre, float* filled) {
  int64_t whole = size / RUN * RUN, rest = size - whole;
  for (int64_t j = 0; j < GROUP; j++) filled[j] = centre;
  memcpy(filled, x, (size_t)whole * sizeof *x);
  if (rest) memcpy(filled + whole + RUN - rest, x + whole, (size_t)rest * sizeof *x);
  return filled;
}

/* Adds up to RUN places as sum_in_any_order does: as multiples of a fraction of the largest. */
INLINE float sum_places(const float* sums, int64_t count) {
  int32_t largest = 0, total = 0;
  for (int64_t j = 0; j < count; j++) largest = larger(largest, magnitude_bits(sums[j]));
  if (largest >= 0x7F800000) return float_of((uint32_t)largest);
  int32_t exponent = larger((largest >> 23) + 1 - (30 - 7), 1); /* RUN values up to the largest come to 2^30 */
  float inverse = float_of((uint32_t)(254 - exponent) << 23);
  for (int64_t j = 0; j < count; j++) total += (int32_t)rintf(sums[j] * inverse);
  return (float)total * float_of((uint32_t)exponent << 23);
}

static float sum_even_and_odd(const float* even, const float* odd) {
  float sums[RUN] ALIGNED;
  for (int j = 0; j < RUN; j++) sums[j] = even[j] + odd[j];
  return sum_places(sums, RUN);
}

/* The centre of a segment that begins at x. */
static float centre_of(const float* x, int64_t size, uint32_t mask) {
  float first = settle(masked(x[0], mask)), last = settle(masked(x[size - 1], mask));
  return middle(first, settle(masked(x[size / 2], mask)), last);
}

static void reduce_chunk(const Moments* job, int64_t chunk, const float* x, int64_t size, float centre) {
  Sums sums = {0};
  float filled[GROUP] ALIGNED;
  for (int64_t start = 0, group = 0; start < size; start += GROUP, group++) {
    int is_whole = start + GROUP <= size;
    const float* runs = is_whole ? x + start : fill_group(x + start, size - start, centre, filled);
    add_group(runs, centre, job->mask, sums.first[group % 2], sums.second[group % 2], sums.largest);
  }
  int32_t largest = magnitude_bits(centre);
  for (int j = 0; j < RUN; j++) largest = larger(largest, sums.largest[j]);
  job->max_abs[chunk] = float_of((uint32_t)largest);
  job->first[chunk] = sum_even_and_odd(sums.first[0], sums.first[1]);
  job->second[chunk] = sum_even_and_odd(sums.second[0], sums.second[1]);
}

/* The same bits for a chunk of at most a run, without filling up a group: blocks are often this short. */
static void reduce_short_chunk(const Moments* job, int64_t chunk, const float* x, int64_t size, float centre) {
  float deviations[RUN] ALIGNED, squares[RUN] ALIGNED;
  int32_t largest = magnitude_bits(centre);
  for (int64_t j = 0; j < size; j++) {
    largest = larger(largest, magnitude_bits(x[j]));
    deviations[j] = deviation(x[j], centre, job->mask);
    squares[j] = deviations[j] * deviations[j];
  }
  job->max_abs[chunk] = float_of((uint32_t)largest);
  job->first[chunk] = sum_places(deviations, size);
  job->second[chunk] = sum_places(squares, size);
}

/* The first element of a chunk; tensors are cut into blocks, and blocks into chunks. */
static int64_t start_of(const Moments* job, int64_t chunk) {
  const Layout* layout = &job->gradient.layout;
  int64_t tensor = find_last(job->first_chunks, layout->tensors, chunk);
  int64_t number = chunk - job->first_chunks[tensor], size = layout->starts[tensor + 1] - layout->starts[tensor];
  int64_t chunks_per_block = ceiling(minimum(layout->block, size), CHUNK);
  return layout->starts[tensor] + number / chunks_per_block * layout->block + number % chunks_per_block * CHUNK;
}

static void reduce_item(const void* data, int64_t item) {
  const Moments* job = data;
  int64_t end = minimum((item + 1) * CHUNKS_PER_ITEM, job->chunks);
  for (int64_t chunk = item * CHUNKS_PER_ITEM; chunk < end; chunk++) {
    int64_t start = start_of(job, chunk);
    Segment segment = segment_at(&job->gradient.layout, start);
    const float* x = place_in(&job->gradient, segment.tensor, segment.begin);
    float centre = centre_of(x, segment.end - segment.begin, job->mask);
    if (start == segment.begin) job->centres[segment.number] = centre;
    int64_t size = minimum(segment.end - start, CHUNK);
    (size <= RUN ? reduce_short_chunk : reduce_chunk)(job, chunk, x + (start - segment.begin), size, centre);
  }
}

/* Operands: gradient or its tensors. Results: max|g|, sum and sum of squares of the deviations of every chunk; and the
 * centre of every segment. */
HANDLER jaxtern_moments(XLA_FFI_CallFrame* frame) {
  if (is_metadata_query(frame)) return NULL;
  Memory gradient;
  Moments* job = create_job(frame, sizeof *job, frame->args.args, &gradient);
  *job = (Moments){
      .gradient = gradient,
      .max_abs = result(frame, 0),
      .first = result(frame, 1),
      .second = result(frame, 2),
      .centres = result(frame, 3),
      .mask = attribute(frame, "of_magnitudes") ? 0x7FFFFFFFu : 0xFFFFFFFFu,
  };
  int64_t size;
  job->first_chunks = table(frame, "first_chunks", &size);
  job->chunks = job->first_chunks[size - 1];
  run_items(frame, ceiling(job->chunks, CHUNKS_PER_ITEM), reduce_item, job);
  free(job);
  return NULL;
}
