/* ternary_decode and shard_sum: see ternary_decode.py and shards.py, and radix.py for the arithmetic. */
#include "native.h"

enum { MAX_DEPTH = 20, TILES_PER_ITEM = 8, ROWS_AT_ONCE = 4 };

/* A radix R, for which words are cut into two halves of digits; `powers[k]` is R^-k. */
typedef struct Radix {
  int32_t radix;
  int depth, low_depth;
  uint32_t half; /* R^low_depth */
  double inverse;
  float powers[MAX_DEPTH + 1];
} Radix;

static Radix radix_of(int64_t radix) {
  Radix made = {.radix = (int32_t)radix, .depth = digits_per_word(radix), .half = 1};
  made.low_depth = (made.depth + 1) / 2;
  for (int k = 0; k < made.low_depth; k++) made.half *= (uint32_t)radix;
  made.inverse = 1.0 / made.half;
  double power = 1.0;
  for (int k = 0; k <= made.low_depth; k++, power *= (double)radix) made.powers[k] = (float)(1.0 / power);
  return made;
}

/* The lower and upper halves of a run of words, plus 1/2, which keeps quotients away from whole numbers. */
static void split(const uint32_t* words, const Radix* radix, float* low, float* high) {
  for (int j = 0; j < RUN; j++) {
    int32_t quotient = (int32_t)(((double)words[j] + 0.5) * radix->inverse);
    low[j] = (float)(int32_t)(words[j] - (uint32_t)quotient * radix->half) + 0.5f;
    high[j] = (float)quotient + 0.5f;
  }
}

/* Adds the digits of a few rows to a plane, or sets it: digit[k] = floor(half / R^k) - R floor(half / R^(k+1)).
 * `quotients`, the rows' sums of floor(half / R^k), become those for k + 1; `power` is R^-(k+1). */
INLINE void add_plane(
    const float halves[][RUN], int rows, float power, int32_t radix, int is_first, int32_t* quotients, int32_t* plane) {
  for (int j = 0; j < RUN; j++) {
    int32_t next = 0;
    for (int row = 0; row < rows; row++) next += (int32_t)(halves[row][j] * power);
    int32_t digits = quotients[j] - radix * next;
    plane[j] = is_first ? digits : plane[j] + digits;
    quotients[j] = next;
  }
}

INLINE void add_half(
    const float halves[][RUN], int rows, int depth, const Radix* radix, int is_first, int32_t planes[][RUN]) {
  int32_t quotients[RUN] ALIGNED;
  for (int j = 0; j < RUN; j++) {
    quotients[j] = 0;
    for (int row = 0; row < rows; row++) quotients[j] += (int32_t)halves[row][j];
  }
  for (int k = 0; k < depth; k++)
    add_plane(halves, rows, radix->powers[k + 1], radix->radix, is_first, quotients, planes[k]);
}

/* Adds both halves of a few rows; callers pass a constant number of rows, for which compilers unroll the loops. */
INLINE void add_rows(
    const uint32_t* words, int64_t width, int rows, const Radix* radix, int is_first, int32_t planes[][RUN]) {
  float low[ROWS_AT_ONCE][RUN] ALIGNED, high[ROWS_AT_ONCE][RUN] ALIGNED;
  for (int row = 0; row < rows; row++) split(words + row * width, radix, low[row], high[row]);
  add_half(low, rows, radix->low_depth, radix, is_first, planes);
  add_half(high, rows, radix->depth - radix->low_depth, radix, is_first, planes + radix->low_depth);
}

/* Adds the digits of a tile's planes over all rows of words, which are `width` apart. */
static void sum_planes(
    const uint32_t* words, int64_t width, int64_t rows, const Radix* radix, int32_t planes[][RUN]) {
  switch (minimum(rows, ROWS_AT_ONCE)) {
    case 1: add_rows(words, width, 1, radix, 1, planes); break;
    case 2: add_rows(words, width, 2, radix, 1, planes); break;
    case 3: add_rows(words, width, 3, radix, 1, planes); break;
    default: add_rows(words, width, ROWS_AT_ONCE, radix, 1, planes);
  }
  int64_t row = ROWS_AT_ONCE;
  for (; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE)
    add_rows(words + row * width, width, ROWS_AT_ONCE, radix, 0, planes);
  for (; row < rows; row++) add_rows(words + row * width, width, 1, radix, 0, planes);
}

typedef struct Decode {
  const uint32_t *words, *total; /* total: the sum of two rows, the first of which is in `words`; else NULL */
  const float *units, *tile_scales; /* tile_scales: NULL for ones */
  Memory mean;
  Radix radix;
  int64_t rows, width, start, elements, tiles; /* start, elements: the span that is decoded */
  int32_t zero;
  const uint32_t* bits; /* of the dither; see dither.py */
  uint32_t count;
  int32_t centre;
} Decode;

/* Decodes a part of a run that has one scale; `half` holds the bits of its dither, or is NULL. */
INLINE void scale_run(
    const Decode* job, const int32_t* digits, const uint32_t* half, int shift, float unit, int64_t size, float* mean) {
  if (half == NULL) {
    for (int64_t j = 0; j < size; j++) mean[j] = settle((float)(digits[j] - job->zero) * unit);
    return;
  }
  const uint32_t count = job->count, added = job->bits[3];
  for (int64_t j = 0; j < size; j++) {
    int32_t dither = (int32_t)((half[j] >> shift & 0xFFFFu) * count + added & 0xFFFFu) - job->centre;
    float levels = (float)(digits[j] - job->zero) - (float)dither * 0x1p-16f;
    mean[j] = settle(levels * unit);
  }
}

static void decode_tile(const Decode* job, int64_t tile, Segment* segment, Noise* noise) {
  int32_t planes[MAX_DEPTH][RUN] ALIGNED;
  const uint32_t* words = job->words + tile * RUN;
  if (job->total == NULL) {
    sum_planes(words, job->width, job->rows, &job->radix, planes);
  } else {
    uint32_t both[2][RUN] ALIGNED;
    for (int j = 0; j < RUN; j++) both[0][j] = words[j], both[1][j] = job->total[tile * RUN + j] - words[j];
    sum_planes(both[0], RUN, 2, &job->radix, planes);
  }
  const float tile_scale = job->tile_scales ? job->tile_scales[tile] : 1.0f;
  for (int k = 0; k < job->radix.depth; k++) {
    int64_t run = (tile * job->radix.depth + k) * RUN, begin = job->start + run;
    int64_t end = begin + minimum(RUN, job->elements - run), place = begin, number = run / RUN;
    const int shift = number % 2 * 16;
    const uint32_t* half = NULL;
    if (job->count && place < end) half = noise_of_run(job->bits, job->bits[4], number, noise);
    while (place < end) {
      if (place >= segment->end) *segment = segment_at(&job->mean.layout, place);
      int64_t stop = minimum(segment->end, end);
      const float unit = job->units[segment->number] * tile_scale;
      float* mean = place_in(&job->mean, segment->tensor, place);
      int64_t skipped = place - begin;
      if (stop - place == RUN) scale_run(job, planes[k], half, shift, unit, RUN, mean);
      else scale_run(job, planes[k] + skipped, half ? half + skipped : NULL, shift, unit, stop - place, mean);
      place = stop;
    }
  }
}

static void decode_item(const void* data, int64_t item) {
  const Decode* job = data;
  Segment segment = {0, 0, 0, 0};
  Noise noise = {.group = -1};
  int64_t end = minimum((item + 1) * TILES_PER_ITEM, job->tiles);
  for (int64_t tile = item * TILES_PER_ITEM; tile < end; tile++) decode_tile(job, tile, &segment, &noise);
}

/* Operands: words, units, bits of the dither, the total of two rows (or nothing), scales of the tiles (or nothing); for
 * a span also its tensors, and arrays that must be computed before. Results: the means, or the tensors. */
HANDLER jaxtern_ternary_decode(XLA_FFI_CallFrame* frame) {
  if (is_metadata_query(frame)) return NULL;
  Memory mean;
  Decode* job = create_job(frame, sizeof *job, frame->rets.rets, &mean);
  *job = (Decode){
      .words = operand(frame, 0),
      .units = operand(frame, 1),
      .mean = mean,
      .radix = radix_of(attribute(frame, "radix")),
      .rows = dimension(frame, 0, 0),
      .width = dimension(frame, 0, 1),
      .start = attribute(frame, "start"),
      .elements = attribute(frame, "elements"),
      .zero = (int32_t)attribute(frame, "zero"),
      .bits = operand(frame, 2),
      .count = (uint32_t)attribute(frame, "count"),
      .centre = (int32_t)attribute(frame, "centre"),
  };
  if (dimension(frame, 3, 1)) job->total = operand(frame, 3);
  if (dimension(frame, 4, 0)) job->tile_scales = operand(frame, 4);
  job->tiles = job->width / RUN;
  run_job(frame, ceiling(job->tiles, TILES_PER_ITEM), decode_item, job);
  return NULL;
}

typedef struct ShardSum {
  const uint32_t* words;
  uint32_t* sums;
  Radix own;
  int64_t rows, width, own_tiles, tiles, radix, runs_per_item;
  int depth;
  uint32_t zero; /* digit of a missing run */
} ShardSum;

/* An item is some tiles of words that fill whole tiles of sums. */
static void sum_item(const void* data, int64_t item) {
  const ShardSum* job = data;
  int32_t planes[MAX_DEPTH][RUN] ALIGNED;
  int64_t first = item * job->runs_per_item;
  int64_t last = minimum((item + 1) * job->runs_per_item, job->tiles * job->depth);
  uint32_t sums[RUN] ALIGNED, weight = 1;
  for (int64_t run = first; run < last; run++) {
    int64_t own_tile = run / job->own.depth, plane = run % job->own.depth;
    int is_there = own_tile < job->own_tiles;
    if (is_there && plane == 0) sum_planes(job->words + own_tile * RUN, job->width, job->rows, &job->own, planes);
    int is_first = run % job->depth == 0;
    if (is_first) weight = 1;
    for (int j = 0; j < RUN; j++)
      sums[j] = (is_first ? 0 : sums[j]) + (is_there ? (uint32_t)planes[plane][j] : job->zero) * weight;
    weight *= (uint32_t)job->radix;
    if (run % job->depth == job->depth - 1) memcpy(job->sums + run / job->depth * RUN, sums, sizeof sums);
  }
}

/* Operand: words. Result: words of the sums. */
HANDLER jaxtern_shard_sum(XLA_FFI_CallFrame* frame) {
  if (is_metadata_query(frame)) return NULL;
  int64_t levels = attribute(frame, "levels"), elements = attribute(frame, "elements");
  ShardSum* job = create_plain_job(sizeof *job);
  *job = (ShardSum){
      .words = operand(frame, 0),
      .sums = result(frame, 0),
      .own = radix_of(2 * levels + 1),
      .rows = dimension(frame, 0, 0),
      .width = dimension(frame, 0, 1),
      .radix = attribute(frame, "radix"),
  };
  job->depth = digits_per_word(job->radix);
  job->own_tiles = job->width / RUN;
  job->tiles = ceiling(ceiling(elements, RUN), job->depth);
  job->zero = (uint32_t)(levels * job->rows);
  job->runs_per_item = (int64_t)job->own.depth * job->depth;
  start_items(frame, ceiling(job->tiles * job->depth, job->runs_per_item), sum_item, job);
  return NULL;
}
