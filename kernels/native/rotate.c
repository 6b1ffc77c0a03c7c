/* rotate: see rotation.py. */
#include <math.h>

#include "native.h"

enum { BLOCK = 4096, WAYS = 16, ROWS = BLOCK / WAYS, GROUP = 64, BLOCKS_PER_ITEM = 4 };

static const float FACTOR = 1.0f / 64; /* the root of 1 / BLOCK */

#if defined(__AVX512F__)
enum { WIDTH = 16 }; /* floats of a register, of which there are sixteen or more */
#elif defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { PITCH = WAYS + WIDTH }; /* of rows that are read beyond their end, where their first columns are repeated */

/* Vectors of some columns of a row, which may lie anywhere in memory. */
typedef float Lanes __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
#define LANES_AT(place) (*(Lanes*)(place))

#define EACH_WAY(i) _Pragma("GCC unroll 16") for (int i = 0; i < WAYS; i++) /* unrolled, so that rows are registers */
#define EACH_PART(column) _Pragma("GCC unroll 4") for (int column = 0; column < WAYS; column += WIDTH)

typedef struct Rotate {
  const XLA_FFI_CallFrame* frame;
  const int64_t *sizes, *blocks, *first_items; /* of every tensor: its size, the size of its blocks, its first item */
  int64_t tensors;
  const uint32_t* key;
  int is_inverse;
} Rotate;

/* Flips signs of fewer than BLOCK elements, the first of which is number `place` of those whose draws begin at `group`.
 * The inverse also makes zeros positive, as an all-reduce may lose their sign, by adding +0; adding -0 changes
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

/* Flips signs by the bits of noise that belong to some columns of a row. */
INLINE Lanes flipped(Lanes x, const Noise* noise, int row, int column) {
  Bits half = {0}, shifts;
  for (int i = 0; i < WIDTH; i++) shifts[i] = (uint32_t)(31 - row % 2 * WAYS - column - i);
  half += noise->halves[row / 2 % 2][row / 4];
  return (Lanes)((Bits)x ^ (half << shifts & 0x80000000u));
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

/* Stores some columns of a row, the first ones again behind its end. */
INLINE void store_around(float* row, int column, Lanes x) {
  LANES_AT(row + column) = x;
  if (column == 0) LANES_AT(row + WAYS) = x;
}

/* Rotates a block of 256 rows of 16 columns: see _transform of rotation.py. Processors do not read so far ahead, so the
 * next block is prefetched to the second cache, as the first one is full. */
static void turn_rows(const Noise* noise, const float* from, float* to) {
  float block[BLOCK] ALIGNED, rows[WAYS * PITCH] ALIGNED;
  Lanes x[WAYS] ALIGNED;
  for (int row = 0; row < ROWS; row += WAYS)
    EACH_PART(column) {
      EACH_WAY(i) x[i] = flipped(LANES_AT(from + (row + i) * WAYS + column), noise, row + i, column);
      mix_rows(x);
      EACH_WAY(i) LANES_AT(block + (row + i) * WAYS + column) = x[i];
    }
  for (int row = 0; row < WAYS; row++)
    EACH_PART(column) {
      EACH_WAY(i) x[i] = LANES_AT(block + (row + i * WAYS) * WAYS + column);
      mix_rows(x);
      EACH_WAY(i) LANES_AT(block + (row + i * WAYS) * WAYS + column) = x[i];
    }
  for (int row = 0; row < ROWS; row += WAYS) {
    EACH_PART(column)
      EACH_WAY(i) store_around(rows + i * PITCH, column, LANES_AT(block + (row + i) * WAYS + column));
    EACH_PART(column) {
      EACH_WAY(i) x[i] = LANES_AT(rows + i * PITCH + (column + i) % WAYS);
      mix_rows(x);
      EACH_WAY(i) LANES_AT(to + (row + i) * WAYS + column) = x[i] * FACTOR;
      EACH_WAY(i) __builtin_prefetch(from + (row + i + ROWS) * WAYS + column, 0, 2);
    }
  }
}

/* Rotates it back; zeros become positive, as in `flip`. */
static void turn_rows_back(const Noise* noise, const float* from, float* to) {
  float block[BLOCK] ALIGNED, rows[WAYS * PITCH] ALIGNED;
  Lanes x[WAYS] ALIGNED;
  for (int row = 0; row < ROWS; row += WAYS) {
    EACH_PART(column) {
      EACH_WAY(i) x[i] = LANES_AT(from + (row + i) * WAYS + column);
      mix_rows(x);
      EACH_WAY(i) store_around(rows + i * PITCH, column, x[i]);
    }
    EACH_PART(column) {
      EACH_WAY(i) x[i] = LANES_AT(rows + i * PITCH + (column + WAYS - i) % WAYS);
      mix_rows(x);
      EACH_WAY(i) LANES_AT(block + (row + i) * WAYS + column) = x[i];
      EACH_WAY(i) __builtin_prefetch(from + (row + i + ROWS) * WAYS + column, 0, 2);
    }
  }
  for (int row = 0; row < WAYS; row++)
    EACH_PART(column) {
      EACH_WAY(i) x[i] = LANES_AT(block + (row + i * WAYS) * WAYS + column);
      mix_rows(x);
      EACH_WAY(i) x[i] = flipped(x[i] * FACTOR, noise, row + i * WAYS, column);
      EACH_WAY(i) LANES_AT(to + (row + i * WAYS) * WAYS + column) = x[i] + 0.0f;
    }
}

/* Rotates a block; its first element is number `place` of those whose draws begin at `group`. */
static void turn(const Rotate* job, int64_t size, int64_t group, int64_t place, const float* from, float* to) {
  if (size == BLOCK) {
    Noise noise;
    draw_noise(job->key, (uint32_t)(group + place / GROUP), &noise);
    (job->is_inverse ? turn_rows_back : turn_rows)(&noise, from, to);
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
