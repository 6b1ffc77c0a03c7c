/* rotate: see rotation.py. */
#include <math.h>

#include "native.h"

enum { BLOCK = 4096, LANES_OF_BLOCK = 16, ROWS = BLOCK / LANES_OF_BLOCK, GROUP = 64, BLOCKS_PER_ITEM = 4 };

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

/* Flips signs of `size` elements, the first of which is number `place` of those whose draws begin at `group`. */
INLINE void flip(const uint32_t* key, int64_t group, int64_t place, int64_t size, const float* from, float* to) {
  while (size > 0) {
    uint32_t halves[2];
    draw_signs(key, (uint32_t)(group + place / GROUP), halves);
    int64_t first = place % GROUP, count = minimum(GROUP - first, size);
    if (count == GROUP) {
      for (int half = 0; half < 2; half++)
        for (int j = 0; j < GROUP / 2; j++)
          to[half * (GROUP / 2) + j] = float_of(bits_of(from[half * (GROUP / 2) + j]) ^ halves[half] >> j << 31);
    } else {
      for (int64_t j = 0; j < count; j++)
        to[j] = float_of(bits_of(from[j]) ^ halves[(first + j) / 32] >> (first + j) % 32 << 31);
    }
    from += count, to += count, place += count, size -= count;
  }
}

/* The Walsh-Hadamard transform over rows, four at a time; multiplies the sums by a factor at the end. */
INLINE void mix(float* x, int rows, int columns, float factor) {
  for (int step = 1; step < rows; step *= 4) {
    const float scale = 4 * step == rows ? factor : 1.0f;
    const int next = step * columns;
    for (int base = 0; base < rows; base += 4 * step)
      for (int row = base; row < base + step; row++) {
        float* at = x + row * columns;
        for (int j = 0; j < columns; j++) {
          float a = at[j] + at[next + j], b = at[j] - at[next + j];
          float c = at[2 * next + j] + at[3 * next + j], d = at[2 * next + j] - at[3 * next + j];
          at[j] = (a + c) * scale, at[next + j] = (b + d) * scale;
          at[2 * next + j] = (a - c) * scale, at[3 * next + j] = (b - d) * scale;
        }
      }
  }
}

/* Rotates row r of 16 by r columns to the left, or back. */
INLINE void shift_rows(float* rows, int is_back) {
  float twice[LANES_OF_BLOCK][2 * LANES_OF_BLOCK] ALIGNED;
  for (int row = 0; row < LANES_OF_BLOCK; row++)
    for (int j = 0; j < LANES_OF_BLOCK; j++)
      twice[row][j] = twice[row][LANES_OF_BLOCK + j] = rows[row * LANES_OF_BLOCK + j];
  for (int row = 0; row < LANES_OF_BLOCK; row++) {
    const float* from = twice[row] + (is_back ? LANES_OF_BLOCK - row : row);
    for (int j = 0; j < LANES_OF_BLOCK; j++) rows[row * LANES_OF_BLOCK + j] = from[j];
  }
}

/* See _transform of rotation.py. */
static void transform(float* block, int64_t size, int is_inverse) {
  if (size < BLOCK) {
    mix(block, (int)size, 1, 1.0f / sqrtf((float)size));
    return;
  }
  const float factor = 1.0f / 64;
  if (!is_inverse) mix(block, ROWS, LANES_OF_BLOCK, 1.0f);
  for (float* rows = block; rows < block + BLOCK; rows += LANES_OF_BLOCK * LANES_OF_BLOCK) {
    if (!is_inverse) shift_rows(rows, 0);
    mix(rows, LANES_OF_BLOCK, LANES_OF_BLOCK, is_inverse ? 1.0f : factor);
    if (is_inverse) shift_rows(rows, 1);
  }
  if (is_inverse) mix(block, ROWS, LANES_OF_BLOCK, factor);
}

/* Flips signs back; makes zeros positive, as an all-reduce may lose their sign. */
INLINE void flip_back(const Rotate* job, int64_t group, int64_t place, int64_t size, const float* from, float* to) {
  flip(job->key, group, place, size, from, to);
  for (int64_t j = 0; j < size; j++) to[j] += 0.0f;
}

/* Rotates a block; its first element is number `place` of those whose draws begin at `group`. */
static void turn(const Rotate* job, int64_t size, int64_t group, int64_t place, const float* from, float* to) {
  float block[BLOCK] ALIGNED;
  if (job->is_inverse) memcpy(block, from, (size_t)size * sizeof *block);
  else flip(job->key, group, place, size, from, block);
  transform(block, size, job->is_inverse);
  if (job->is_inverse) flip_back(job, group, place, size, block, to);
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
    flip_back(job, 0, whole, size - whole, to + whole, to + whole);
  }
  for (int64_t place = begin; place < end; place += block) {
    int is_waiting = has_rest && job->is_inverse && place + block == end;
    turn(job, block, 0, place, (is_waiting ? to : from) + place, to + place);
  }
  if (has_rest && !job->is_inverse) {
    flip(job->key, 0, whole, size - whole, from + whole, to + whole);
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
