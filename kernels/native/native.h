/* Shared parts of the native implementations: arguments of a call, the layout of a bucket, threads.
 *
 * Each op splits its work into independent items, so any number of threads gives the same bits. Loops go over the RUN
 * places of a run, for which compilers make vector instructions. Products are never contracted with additions
 * (-ffp-contract=off), so the bits are those of the reference.
 */
#ifndef JAXTERN_NATIVE_H_
#define JAXTERN_NATIVE_H_

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define HANDLER __attribute__((visibility("default"))) XLA_FFI_Error*
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))

enum { RUN = 128, LANES = 4 };

/* Answers a query of XLA for the version of its interface; returns whether the call was such a query. */
int is_metadata_query(const XLA_FFI_CallFrame* frame);

/* Operands and results by number, attributes by name. */
void* operand(const XLA_FFI_CallFrame* frame, int number);
int64_t dimension(const XLA_FFI_CallFrame* frame, int operand_number, int axis);
void* result(const XLA_FFI_CallFrame* frame, int number);
int64_t attribute(const XLA_FFI_CallFrame* frame, const char* name);
const int64_t* table(const XLA_FFI_CallFrame* frame, const char* name, int64_t* size);

/* The layout of a bucket: tensors, each cut into blocks of `block` elements. The attributes "starts" and "firsts" hold
 * the first element and the first segment of every tensor, then the total numbers of both. */
typedef struct Layout {
  int64_t tensors, block;
  const int64_t *starts, *firsts;
} Layout;

/* The elements of a tensor, from `begin` to `end`, that share a scale. */
typedef struct Segment {
  int64_t number, tensor, begin, end;
} Segment;

Layout layout_of(const XLA_FFI_CallFrame* frame);
Segment segment_at(const Layout* layout, int64_t element);

/* The index of the last number that is at most `number`, of some ascending ones, the first of which is 0. */
INLINE int64_t find_last(const int64_t* ascending, int64_t count, int64_t number) {
  int64_t found = 0, beyond = count;
  while (beyond - found > 1) {
    int64_t middle = (found + beyond) / 2;
    if (ascending[middle] <= number) found = middle;
    else beyond = middle;
  }
  return found;
}

/* The addresses of the tensors of a layout, which are contiguous, or in separate buffers (attribute "is_split"). */
typedef struct Memory {
  Layout layout;
  float** tensors;
} Memory;

INLINE float* place_in(const Memory* memory, int64_t tensor, int64_t element) {
  return memory->tensors[tensor] + (element - memory->layout.starts[tensor]);
}

/* Allocates `size` bytes for a job; never returns NULL. */
void* create_plain_job(size_t size);

/* The same, followed by the addresses of the tensors in `buffers` (operands or results), to which `memory` then points.
 * They are copied because a job may outlive the call, and XLA reuses its frame. */
void* create_job(const XLA_FFI_CallFrame* frame, size_t size, void* const* buffers, Memory* memory);

/* The random bits of a group of four runs: the first two in `halves[0]`, the others in `halves[1]`. */
typedef struct Noise {
  int64_t group; /* -1: none drawn */
  uint32_t halves[2][RUN] ALIGNED;
} Noise;

/* Draws for RUN places, the first of which is number `first`. */
void draw_noise(const uint32_t* key, uint32_t first, Noise* noise);

/* The bits of a run, 16 for each place: the lower half if the run's number is even, else the upper. */
const uint32_t* noise_of_run(const uint32_t* key, uint32_t first_group, int64_t run, Noise* noise);

/* Calls work(job, item) for every item, on the calling thread and on free threads of XLA. */
typedef void Work(const void* job, int64_t item);
void run_items(const XLA_FFI_CallFrame* frame, int64_t items, Work* work, const void* job);

/* The same on threads of XLA only, and frees the job afterwards. It returns at once, so that the calling thread can go
 * on with work that does not need the results, such as a collective, for which XLA has no thread of its own. */
void start_items(XLA_FFI_CallFrame* frame, int64_t items, Work* work, void* job);

/* start_items for separate tensors, whose calls form a chain; else run_items. Frees the job in both cases. */
void run_job(XLA_FFI_CallFrame* frame, int64_t items, Work* work, void* job);

INLINE int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t ceiling(int64_t a, int64_t b) { return (a + b - 1) / b; }

INLINE uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

INLINE float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* As in rounding.py: clears the last bit. */
INLINE float settle(float x) { return float_of(bits_of(x) & 0xFFFFFFFEu); }

/* The largest D with radix^D <= 2^32. */
INLINE int digits_per_word(int64_t radix) {
  int digits = 0;
  for (int64_t power = radix; power <= INT64_C(1) << 32; power *= radix) digits++;
  return digits;
}

#endif
