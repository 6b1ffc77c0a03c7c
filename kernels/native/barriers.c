/* concatenate and follow: see barriers.py. */
#include <time.h>

#include "native.h"

enum { PLACES_PER_ITEM = 1 << 16 };

typedef struct Concatenate {
  const XLA_FFI_CallFrame* frame;
  float* joined;
  Layout layout;
} Concatenate;

/* Copies PLACES_PER_ITEM places of the result, from one part or several. */
static void copy_item(const void* data, int64_t item) {
  const Concatenate* job = data;
  const int64_t* starts = job->layout.starts;
  int64_t place = item * PLACES_PER_ITEM, end = minimum(place + PLACES_PER_ITEM, starts[job->layout.tensors]);
  int part = 0;
  while (place < end) {
    while (starts[part + 1] <= place) part++;
    int64_t size = minimum(starts[part + 1], end) - place;
    const float* from = (const float*)operand(job->frame, part) + (place - starts[part]);
    memcpy(job->joined + place, from, (size_t)size * sizeof(float));
    place += size;
  }
}

/* Operands: the parts. Result: their concatenation. */
HANDLER jaxtern_concatenate(XLA_FFI_CallFrame* frame) {
  if (is_metadata_query(frame)) return NULL;
  Concatenate job = {.frame = frame, .joined = result(frame, 0), .layout = layout_of(frame)};
  run_items(frame, ceiling(job.layout.starts[job.layout.tensors], PLACES_PER_ITEM), copy_item, &job);
  return NULL;
}

/* XLA must see that the call has not ended, or else the calling thread goes on with what waits for it. */
static void wait_a_moment(const void* job, int64_t item) {
  (void)job, (void)item;
  nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Operands: an array, and arrays that must be computed before. Result: the array, not copied. */
HANDLER jaxtern_follow(XLA_FFI_CallFrame* frame) {
  if (!is_metadata_query(frame) && attribute(frame, "apart")) start_items(frame, 2, wait_a_moment, NULL);
  return NULL;
}
