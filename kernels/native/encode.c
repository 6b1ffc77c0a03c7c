/* ternary_encode: see ternary_encode.py, and noise.py and rounding.py for the arithmetic. */
#include <math.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "native.h"

enum { TILES_PER_ITEM = 8, MAGIC_LEVELS = 64 };

static const float MAGIC = 12582912.0f; /* 1.5 * 2^23: floats near it are whole numbers */

typedef struct Encode {
  Memory gradient;
  const float* steps;
  const uint32_t* key;
  uint32_t* words;
  int64_t start, elements, radix, tiles; /* start, elements: the span that is encoded */
  int levels, depth;
} Encode;

/* Multiplies the low halves of 64-bit numbers, by an instruction that compilers do not pick by themselves. */
#if defined(__AVX512F__)
typedef uint64_t Wide __attribute__((vector_size(64), may_alias));
INLINE Wide multiply_low(Wide a, Wide b) { return (Wide)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
#elif defined(__AVX2__)
typedef uint64_t Wide __attribute__((vector_size(32), may_alias));
INLINE Wide multiply_low(Wide a, Wide b) { return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
#else
typedef uint64_t Wide __attribute__((vector_size(16), may_alias));
INLINE Wide multiply_low(Wide a, Wide b) { return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu); }
#endif

/* Philox 2x32-7; only the low 32 bits of `left` and `right` count. */
void draw_noise(const uint32_t* key, uint32_t first, Noise* noise) {
  enum { WIDTH = sizeof(Wide) / sizeof(uint64_t) };
  uint64_t lefts[RUN] ALIGNED, rights[RUN] ALIGNED;
  for (int j = 0; j < RUN; j++) lefts[j] = first + (uint64_t)j;
  for (int j = 0; j < RUN; j += WIDTH) {
    const Wide zero = {0}, multiplier = zero + UINT64_C(0xD256D193);
    Wide left = *(const Wide*)(lefts + j), right = zero + key[0];
    for (uint32_t i = 0; i < 7; i++) {
      Wide product = multiply_low(left, multiplier);
      left = product >> 32 ^ (uint64_t)(key[1] + i * 0x9E3779B9u) ^ right;
      right = product;
    }
    *(Wide*)(lefts + j) = left;
    *(Wide*)(rights + j) = right;
  }
  for (int j = 0; j < RUN; j++) {
    noise->halves[0][j] = (uint32_t)lefts[j];
    noise->halves[1][j] = (uint32_t)rights[j];
  }
}

const uint32_t* noise_of_run(const uint32_t* key, uint32_t first_group, int64_t run, Noise* noise) {
  if (noise->group != run / LANES) {
    noise->group = run / LANES;
    draw_noise(key, first_group + (uint32_t)(run / LANES * RUN), noise);
  }
  return noise->halves[run % LANES / 2];
}

/* Clips g / s L 2^16; treats a NaN as the lowest number. */
INLINE float clip(float scaled, float limit) {
  scaled = scaled > -limit ? scaled : -limit;
  return scaled < limit ? scaled : limit;
}

/* Adds the digits of a run to its words; places share one factor (stride 0) or have their own (stride 1). */
INLINE void add_run(
    const Encode* job, const float* x, const float* steps, int stride, const uint32_t* half, int shift, uint32_t weight,
    uint32_t* words) {
  const uint32_t mask = job->key[2], added = job->key[3]; /* see dither.py */
  const float limit = (float)((int64_t)job->levels << 16), one = steps[0];
  const uint32_t zero = (uint32_t)job->levels << 16, bias = zero - bits_of(MAGIC);
  const int is_small = job->levels <= MAGIC_LEVELS;
  for (int j = 0; j < RUN; j++) {
    float scaled = clip(x[j] * (stride ? steps[j] : one), limit);
    uint32_t drawn = (half[j] >> shift & mask) + added & 0xFFFFu;
    uint32_t fixed = is_small ? bits_of(scaled + MAGIC) + bias : (uint32_t)(int32_t)rintf(scaled) + zero;
    words[j] += ((fixed + drawn) >> 16) * weight;
  }
}

/* Collects elements and factors of a run that has several segments, or is short. */
static void collect_run(const Encode* job, Segment* segment, int64_t begin, int64_t size, float* x, float* steps) {
  int64_t place = 0;
  while (place < size) {
    if (begin + place >= segment->end) *segment = segment_at(&job->gradient.layout, begin + place);
    int64_t stop = minimum(segment->end - begin, size);
    const float* from = place_in(&job->gradient, segment->tensor, begin + place);
    memcpy(x + place, from, (size_t)(stop - place) * sizeof *x);
    for (; place < stop; place++) steps[place] = job->steps[segment->number];
  }
  for (; place < RUN; place++) x[place] = steps[place] = 0.0f;
}

static void encode_run(
    const Encode* job, int64_t run, Segment* segment, Noise* noise, uint32_t weight, uint32_t* words) {
  int64_t begin = job->start + run * RUN, size = minimum(job->elements - run * RUN, RUN);
  if (size <= 0) { /* no element: the digit of zero */
    for (int j = 0; j < RUN; j++) words[j] += (uint32_t)job->levels * weight;
    return;
  }
  const uint32_t* half = job->key[2] ? noise_of_run(job->key, job->key[4], run, noise) : noise->halves[0];
  const int shift = run % 2 * 16;
  if (begin >= segment->end) *segment = segment_at(&job->gradient.layout, begin);
  if (size == RUN && begin + RUN <= segment->end) {
    const float* x = place_in(&job->gradient, segment->tensor, begin);
    add_run(job, x, job->steps + segment->number, 0, half, shift, weight, words);
  } else {
    float x[RUN] ALIGNED, steps[RUN] ALIGNED;
    collect_run(job, segment, begin, size, x, steps);
    add_run(job, x, steps, 1, half, shift, weight, words);
  }
}

static void encode_item(const void* data, int64_t item) {
  const Encode* job = data;
  Segment segment = {0, 0, 0, 0};
  Noise noise = {.group = -1};
  int64_t end = minimum((item + 1) * TILES_PER_ITEM, job->tiles);
  for (int64_t tile = item * TILES_PER_ITEM; tile < end; tile++) {
    uint32_t words[RUN] ALIGNED = {0}, weight = 1;
    for (int k = 0; k < job->depth; k++) {
      encode_run(job, tile * job->depth + k, &segment, &noise, weight, words);
      weight *= (uint32_t)job->radix;
    }
    memcpy(job->words + tile * RUN, words, sizeof words);
  }
}

/* Operands: steps, key, gradient or its tensors, and arrays that must be computed before. Results: words; for a span
 * also the tensors, not copied. */
HANDLER jaxtern_ternary_encode(XLA_FFI_CallFrame* frame) {
  if (is_metadata_query(frame)) return NULL;
  Memory gradient;
  Encode* job = create_job(frame, sizeof *job, frame->args.args + 2, &gradient);
  *job = (Encode){
      .gradient = gradient,
      .steps = operand(frame, 0),
      .key = operand(frame, 1),
      .words = result(frame, 0),
      .start = attribute(frame, "start"),
      .elements = attribute(frame, "elements"),
      .radix = attribute(frame, "radix"),
      .levels = (int)attribute(frame, "levels"),
  };
  job->depth = digits_per_word(job->radix);
  job->tiles = ceiling(ceiling(job->elements, RUN), job->depth);
  run_job(frame, ceiling(job->tiles, TILES_PER_ITEM), encode_item, job);
  return NULL;
}
