/* What the native implementations share: arguments of a call, where one scale ends and the next begins, threads.
 *
 * Each op splits its work into items, whose results depend on nothing but the item, so any number of threads gives the
 * same bits. All of it is written as loops over the RUN places of a run, which compilers turn into vector
 * instructions. Products are never contracted with additions (-ffp-contract=off): the bits are those of the reference.
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

/* Whether XLA only asked for the version of its interface, which is now answered. */
int is_metadata_query(const XLA_FFI_CallFrame* frame);

/* Operands and results, by their number; attributes, by their name. */
void* operand(const XLA_FFI_CallFrame* frame, int number);
int64_t dimension(const XLA_FFI_CallFrame* frame, int operand_number, int axis);
void* result(const XLA_FFI_CallFrame* frame, int number);
int64_t attribute(const XLA_FFI_CallFrame* frame, const char* name);
const int64_t* table(const XLA_FFI_CallFrame* frame, const char* name, int64_t* size);

/* The layout of a bucket: tensors, and the blocks of `block` elements that each is cut into. The attributes "starts" and
 * "firsts" hold the first element and the first segment of every tensor, and behind the last the numbers of both. */
typedef struct Layout {
  int64_t tensors, block;
  const int64_t *starts, *firsts;
} Layout;

/* What lies under one scale: elements from `begin` to `end`, all of one tensor. */
typedef struct Segment {
  int64_t number, tensor, begin, end;
} Segment;

Layout layout_of(const XLA_FFI_CallFrame* frame);
Segment segment_at(const Layout* layout, int64_t element);

/* The last of ascending numbers, of which the first is 0, that is no larger than `number`. */
INLINE int64_t find_last(const int64_t* ascending, int64_t count, int64_t number) {
  int64_t found = 0, beyond = count;
  while (beyond - found > 1) {
    int64_t middle = (found + beyond) / 2;
    if (ascending[middle] <= number) found = middle;
    else beyond = middle;
  }
  return found;
}

/* Where the tensors of a layout lie: one behind the other, or each in a buffer of its own (attribute "is_split"). */
typedef struct Memory {
  Layout layout;
  float** tensors;
} Memory;

INLINE float* place_in(const Memory* memory, int64_t tensor, int64_t element) {
  return memory->tensors[tensor] + (element - memory->layout.starts[tensor]);
}

/* Room for a job of `size` bytes, from malloc, never NULL. */
void* create_plain_job(size_t size);

/* The same, and behind it the addresses of tensors in operands or results, `buffers`, to which `memory` then points: XLA
 * gives the frame to another call when this one returns, but a job may go on. */
void* create_job(const XLA_FFI_CallFrame* frame, size_t size, void* const* buffers, Memory* memory);

/* The random bits of four runs: of the first two in `halves[0]`, of the others in `halves[1]`. */
typedef struct Noise {
  int64_t group; /* -1: none yet */
  uint32_t halves[2][RUN] ALIGNED;
} Noise;

/* The bits of a run, 16 for each place: the lower half where the run is even, else the upper. */
const uint32_t* noise_of_run(const uint32_t* key, uint32_t first_group, int64_t run, Noise* noise);

/* Calls work(job, item) for every item, on the threads of XLA that are free and on the one that calls. */
typedef void Work(const void* job, int64_t item);
void run_items(const XLA_FFI_CallFrame* frame, int64_t items, Work* work, const void* job);

/* The same on threads of XLA alone, while this returns, and frees the job behind: the thread that calls goes on to what
 * does not need the results. XLA gives a collective no thread of its own, so that whatever else the same thread found
 * ready would wait for the wire. */
void start_items(XLA_FFI_CallFrame* frame, int64_t items, Work* work, void* job);

/* One or the other: what lies in tensors of their own is a step of a chain of such calls. */
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

/* As rounding.py has it: the last bit cleared. */
INLINE float settle(float x) { return float_of(bits_of(x) & 0xFFFFFFFEu); }

/* The largest D with radix^D <= 2^32. */
INLINE int digits_per_word(int64_t radix) {
  int digits = 0;
  for (int64_t power = radix; power <= INT64_C(1) << 32; power *= radix) digits++;
  return digits;
}

#endif
