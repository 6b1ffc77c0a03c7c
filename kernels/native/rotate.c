/* rotate: see rotation.py. */
#include <math.h>

#include "native.h"

enum { BLOCK = 4096, WAYS = 16, ROWS = BLOCK / WAYS, GROUP = 64, BLOCKS_PER_ITEM = 4 };

static const float FACTOR = 1.0f / 64; /* the root of 1 / BLOCK */

/* A row of a block, anywhere in memory. */
typedef float Lanes __attribute__((vector_size(4 * WAYS), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * WAYS), aligned(4), may_alias));

#define EACH_WAY(i) _Pragma("GCC unroll 16") for (int i = 0; i < WAYS; i++) /* unrolled, so that rows are registers */

typedef struct Rotate {
  const XLA_FFI_CallFrame* frame;
  const int64_t *sizes, *blocks, *first_items; /* of every tensor: its size, the size of its blocks, its first item */
  int64_t tensors;
  const uint32_t* key;
  int is_inverse;
} Rotate;

/* Flips signs of less than a block of elements, the first of which is number `place` of those whose draws begin at
 * `group`. Where it rotates back, zeros become positive, as an all-reduce may lose their sign: +0 is added; -0 changes
 * nothing. */
static void flip(const Rotate* job, int64_t group, int64_t place, int64_t size, const float* from, float* to) {
  const float zero = job->is_inverse ? 0.0f : -0.0f;
  Noise noise;
  draw_noise(job->key, (uint32_t)(group + place / GROUP), &noise);
  for (int64_t i = 0, at = place % GROUP; i < size; i++, at++)
    to[i] = float_of(bits_of(from[i]) ^ noise.halves[at / 32 % 2][at / GROUP] >> at % 32 << 31) + zero;
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

INLINE void flip_row(Lanes* x, const Noise* noise, int row) {
  const Bits zero = {0}, column = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  *x = (Lanes)((Bits)*x ^ (zero + (noise->halves[row / 2 % 2][row / 4] >> row % 2 * WAYS)) >> column << 31);
}

INLINE void mix_four(Lanes* x, int step) {
  Lanes a = x[0] + x[step], b = x[0] - x[step], c = x[2 * step] + x[3 * step], d = x[2 * step] - x[3 * step];
  x[0] = a + c, x[step] = b + d, x[2 * step] = a - c, x[3 * step] = b - d;
}

/* The transform over 16 rows in registers, as `mix` has it over two steps. */
INLINE void mix_rows(Lanes* x) {
#pragma GCC unroll 4
  for (int row = 0; row < WAYS; row += 4) mix_four(x + row, 1);
#pragma GCC unroll 4
  for (int row = 0; row < 4; row++) mix_four(x + row, 4);
}

/* Rotates row r of 16 by r columns to the left, or back. */
INLINE void shift_rows(Lanes* x, int is_back) {
  Lanes twice[2 * WAYS] ALIGNED;
  EACH_WAY(i) twice[2 * i] = twice[2 * i + 1] = x[i];
  EACH_WAY(i) x[i] = *(Lanes*)((float*)(twice + 2 * i) + (is_back ? WAYS - i : i));
}

/* Rotates a block of 256 rows of 16 columns: see _transform of rotation.py. Processors do not read so far ahead, so the
 * next block is prefetched to the second cache, as the first one is full. */
static void turn_rows(const Noise* noise, const Lanes* from, Lanes* to) {
  Lanes block[ROWS] ALIGNED, x[WAYS] ALIGNED;
  for (int row = 0; row < ROWS; row += WAYS) {
    EACH_WAY(i) x[i] = from[row + i], flip_row(x + i, noise, row + i);
    mix_rows(x);
    EACH_WAY(i) block[row + i] = x[i];
  }
  for (int row = 0; row < WAYS; row++) {
    EACH_WAY(i) x[i] = block[row + i * WAYS];
    mix_rows(x);
    EACH_WAY(i) block[row + i * WAYS] = x[i];
  }
  for (int row = 0; row < ROWS; row += WAYS) {
    EACH_WAY(i) x[i] = block[row + i];
    shift_rows(x, 0);
    mix_rows(x);
    EACH_WAY(i) to[row + i] = x[i] * FACTOR, __builtin_prefetch(from + row + i + ROWS, 0, 2);
  }
}

/* Rotates it back; zeros become positive, as in `flip`. */
static void turn_rows_back(const Noise* noise, const Lanes* from, Lanes* to) {
  Lanes block[ROWS] ALIGNED, x[WAYS] ALIGNED;
  for (int row = 0; row < ROWS; row += WAYS) {
    EACH_WAY(i) x[i] = from[row + i];
    mix_rows(x);
    shift_rows(x, 1);
    mix_rows(x);
    EACH_WAY(i) block[row + i] = x[i], __builtin_prefetch(from + row + i + ROWS, 0, 2);
  }
  for (int row = 0; row < WAYS; row++) {
    EACH_WAY(i) x[i] = block[row + i * WAYS];
    mix_rows(x);
    EACH_WAY(i) x[i] *= FACTOR, flip_row(x + i, noise, row + i * WAYS);
    EACH_WAY(i) to[row + i * WAYS] = x[i] + 0.0f;
  }
}

/* Rotates a block; its first element is number `place` of those whose draws begin at `group`. */
static void turn(const Rotate* job, int64_t size, int64_t group, int64_t place, const float* from, float* to) {
  if (size == BLOCK) {
    Noise noise;
    draw_noise(job->key, (uint32_t)(group + place / GROUP), &noise);
    (job->is_inverse ? turn_rows_back : turn_rows)(&noise, (const Lanes*)from, (Lanes*)to);
    return;
  }
  if (job->is_inverse) memmove(to, from, (size_t)size * sizeof *to);
  else flip(job, group, place, size, from, to);
  mix(to, (int)size, 1.0f / sqrtf((float)size));
  if (job->is_inverse) flip(job, group, place, size, to, to);
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
