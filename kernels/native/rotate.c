/* rotate: see rotation.py. */
#include <math.h>

#include "native.h"

enum { BLOCK = 4096, WAYS = 16, ROWS = BLOCK / WAYS, GROUP = 64, BLOCKS_PER_ITEM = 4 };

typedef float Lanes __attribute__((vector_size(4 * WAYS), may_alias)); /* a row of a block */

typedef struct Rotate {
  const XLA_FFI_CallFrame* frame;
  const int64_t *sizes, *blocks, *first_items; /* of every tensor: its size, the size of its blocks, its first item */
  int64_t tensors;
  const uint32_t* key;
  int is_inverse;
} Rotate;

/* Philox 2x32-7, as in noise.py. */
static void draw_signs(const uint32_t* key, uint32_t group, uint32_t halves[2]) {
  uint32_t left = group, right = key[0];
  for (uint32_t i = 0; i < 7; i++) {
    uint64_t product = (uint64_t)left * 0xD256D193u;
    left = (uint32_t)(product >> 32) ^ (key[1] + i * 0x9E3779B9u) ^ right;
    right = (uint32_t)product;
  }
  halves[0] = left;
  halves[1] = right;
}

/* Flips signs of `size` elements, the first of which is number `place` of those whose draws begin at `group`. Where it
 * rotates back, zeros become positive, as an all-reduce may lose their sign: +0 is added; -0 changes nothing. */
static void flip(const Rotate* job, int64_t group, int64_t place, int64_t size, const float* from, float* to) {
  const float zero = job->is_inverse ? 0.0f : -0.0f;
  while (size > 0) {
    uint32_t halves[2];
    draw_signs(job->key, (uint32_t)(group + place / GROUP), halves);
    int64_t first = place % GROUP, count = minimum(GROUP - first, size);
    if (count == GROUP) {
      for (int half = 0; half < 2; half++, from += GROUP / 2, to += GROUP / 2)
        for (int j = 0; j < GROUP / 2; j++) to[j] = float_of(bits_of(from[j]) ^ halves[half] >> j << 31) + zero;
    } else {
      for (int64_t j = first; j < first + count; j++)
        *to++ = float_of(bits_of(*from++) ^ halves[j / 32] >> j % 32 << 31) + zero;
    }
    place += count, size -= count;
  }
}

/* The Walsh-Hadamard transform of a small block, four elements at a time; the sums are multiplied by a factor. */
static void mix(float* x, int size, float factor) {
  for (int step = 1; step < size; step *= 4) {
    const float scale = 4 * step == size ? factor : 1.0f;
    for (int base = 0; base < size; base += 4 * step)
      for (float* at = x + base; at < x + base + step; at++) {
        float a = at[0] + at[step], b = at[0] - at[step];
        float c = at[2 * step] + at[3 * step], d = at[2 * step] - at[3 * step];
        at[0] = (a + c) * scale, at[step] = (b + d) * scale;
        at[2 * step] = (a - c) * scale, at[3 * step] = (b - d) * scale;
      }
  }
}

INLINE void mix_four(Lanes* x, int step) {
  Lanes a = x[0] + x[step], b = x[0] - x[step], c = x[2 * step] + x[3 * step], d = x[2 * step] - x[3 * step];
  x[0] = a + c, x[step] = b + d, x[2 * step] = a - c, x[3 * step] = b - d;
}

/* The transform over 16 rows, `stride` rows apart, in registers: as `mix` has it over two steps. */
INLINE void mix_rows(Lanes* rows, int stride, float factor) {
  Lanes x[WAYS];
#pragma GCC unroll 16
  for (int row = 0; row < WAYS; row++) x[row] = rows[row * stride];
#pragma GCC unroll 4
  for (int row = 0; row < WAYS; row += 4) mix_four(x + row, 1);
#pragma GCC unroll 4
  for (int row = 0; row < 4; row++) mix_four(x + row, 4);
#pragma GCC unroll 16
  for (int row = 0; row < WAYS; row++) rows[row * stride] = x[row] * factor;
}

/* The transform over all rows. */
INLINE void mix_all(Lanes* rows, float factor) {
  for (int row = 0; row < ROWS; row += WAYS) mix_rows(rows + row, 1, 1.0f);
  for (int row = 0; row < WAYS; row++) mix_rows(rows + row, WAYS, factor);
}

/* Rotates row r of 16 by r columns to the left, or back. */
INLINE void shift_rows(Lanes* rows, int is_back) {
  float twice[WAYS][2 * WAYS] ALIGNED;
  for (int row = 0; row < WAYS; row++) {
    memcpy(twice[row], rows + row, sizeof *rows);
    memcpy(twice[row] + WAYS, rows + row, sizeof *rows);
  }
  for (int row = 0; row < WAYS; row++) memcpy(rows + row, twice[row] + (is_back ? WAYS - row : row), sizeof *rows);
}

/* See _transform of rotation.py. */
static void transform(float* block, int64_t size, int is_inverse) {
  const float factor = 1.0f / sqrtf((float)size);
  if (size < BLOCK) {
    mix(block, (int)size, factor);
    return;
  }
  Lanes* rows = (Lanes*)block;
  if (!is_inverse) mix_all(rows, 1.0f);
  for (int row = 0; row < ROWS; row += WAYS) {
    if (!is_inverse) shift_rows(rows + row, 0);
    mix_rows(rows + row, 1, is_inverse ? 1.0f : factor);
    if (is_inverse) shift_rows(rows + row, 1);
  }
  if (is_inverse) mix_all(rows, factor);
}

/* Rotates a block; its first element is number `place` of those whose draws begin at `group`. */
static void turn(const Rotate* job, int64_t size, int64_t group, int64_t place, const float* from, float* to) {
  float block[BLOCK] ALIGNED;
  if (job->is_inverse) memcpy(block, from, (size_t)size * sizeof *block);
  else flip(job, group, place, size, from, block);
  transform(block, size, job->is_inverse);
  if (job->is_inverse) flip(job, group, place, size, block, to);
  else memcpy(to, block, (size_t)size * sizeof *block);
}

/* Rotates some blocks of a tensor; the last item also has the block that overlaps the last whole one. */
static void rotate_item(const void* data, int64_t item) {
  const Rotate* job = data;
  int64_t tensor = find_last(job->first_items, job->tensors, item);
  const float* from = operand(job->frame, 1 + (int)tensor);
  float* to = result(job->frame, (int)tensor);
  int64_t size = job->sizes[tensor], block = job->blocks[tensor], whole = size / block * block, start = size - block;
  int64_t begin = (item - job->first_items[tensor]) * BLOCKS_PER_ITEM * block;
  int64_t end = minimum(begin + BLOCKS_PER_ITEM * block, whole);
  int has_rest = end == whole && whole < size;
  int64_t last_group = ceiling(size, GROUP);
  if (has_rest && job->is_inverse) { /* the last whole block waits in `to`, partly rotated back */
    int64_t last = whole - block;
    memmove(to + last, from + last, (size_t)(start - last) * sizeof *to);
    turn(job, block, last_group, 0, from + start, to + start);
    flip(job, 0, whole, size - whole, to + whole, to + whole);
  }
  for (int64_t place = begin; place < end; place += block) {
    int is_waiting = has_rest && job->is_inverse && place + block == end;
    turn(job, block, 0, place, (is_waiting ? to : from) + place, to + place);
  }
  if (has_rest && !job->is_inverse) {
    flip(job, 0, whole, size - whole, from + whole, to + whole);
    turn(job, block, last_group, 0, to + start, to + start);
  }
}

/* Operands: key, tensors. Results: the rotated tensors. */
HANDLER jaxtern_rotate(XLA_FFI_CallFrame* frame) {
  if (is_metadata_query(frame)) return NULL;
  Rotate job = {.frame = frame, .key = operand(frame, 0), .is_inverse = attribute(frame, "is_inverse") != 0};
  job.sizes = table(frame, "sizes", &job.tensors);
  job.blocks = table(frame, "blocks", &job.tensors);
  job.first_items = table(frame, "first_items", &job.tensors);
  run_items(frame, attribute(frame, "items"), rotate_item, &job);
  return NULL;
}
